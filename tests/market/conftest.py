"""Makes the helpers of this folder importable: `market_play`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
