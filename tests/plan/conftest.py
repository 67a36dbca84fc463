"""Makes the ledger's committee in virtual time importable: plans are held against what it sends."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(1, str(Path(__file__).parents[1] / "ledger"))
