"""Makes importable what tests of this folder share, and the ledger's committee in virtual time."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[1:1] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "ledger")]
