"""Makes the helpers of this folder importable: `verify_story`, `canon_graphs`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
