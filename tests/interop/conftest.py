"""Makes the second implementation, and the simulator that it plays in, importable."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "sim"), str(HERE.parent / "core")]
