"""Lists the kinds of cheating that a run can demonstrate (`--cheat`), by name; `train.cheats` performs them."""

from __future__ import annotations

from typing import Final

HONEST: Final = "none"
DEFAULT: Final = "skip"
FIRST: Final = 1  # the first round that a cheat spoils; its work before that is honest

KINDS: Final = (HONEST, "skip", "stale", "copy", "noise", "half-batch", "wrong-data", "poison-encoding")
