"""Makes the helpers of this folder importable: `ledger_world`, `naive_ledger`; and of core's: `core_tiny_program`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(1, str(Path(__file__).parents[1] / "core"))
