"""The ways of cheating that a run can be asked to show (`--cheat`), by name; `train.cheats` does them."""

from __future__ import annotations

from typing import Final

HONEST: Final = "none"
DEFAULT: Final = "skip"

KINDS: Final = (HONEST, "skip", "stale", "copy", "noise", "half-batch", "wrong-data", "poison-encoding")
