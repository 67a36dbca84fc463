"""Makes `netns_programs` importable, and the judge of histories that the ledger's tests share."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(1, str(Path(__file__).parents[1] / "ledger"))
