"""Makes the network of `test_sim_rounds` importable."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
