"""Makes the helpers of this folder importable: `core_edwards`, `core_oracle`, `core_canon_cases`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
