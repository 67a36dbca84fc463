"""Makes the helpers of this folder importable: `ledger_world`, `naive_ledger`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
