"""Makes the helper of this folder importable: `verify_story`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
