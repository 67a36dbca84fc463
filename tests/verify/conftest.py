"""Makes the helpers of this folder importable: `verify_story`, `canon_graphs`; and those of the game's other floors."""

import sys
from pathlib import Path

for folder in ("ledger", "core", "verify"):
    sys.path.insert(0, str(Path(__file__).parents[1] / folder))
