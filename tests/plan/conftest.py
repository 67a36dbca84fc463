"""Makes importable what plans are held against: the ledger's committee in virtual time, and other people's figures."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(1, str(Path(__file__).parents[1] / "ledger"))
sys.path.insert(1, str(Path(__file__).parent))
