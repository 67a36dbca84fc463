"""Makes folders that belong to one process, and removes those of processes that were killed.

A folder's name has the mark of its process. One whose process has ended is removed when the next of its kind is made;
another user's cannot be.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from farflung.core.io.process_mark import has_ended, own_mark


def make(prefix: str, base: Path | None = None) -> Path:
    """A new folder `PREFIXmark-...` in `base`, or in the system's temporary folder. Raises OSError."""
    place = base or Path(tempfile.gettempdir())
    for left in place.glob(f"{prefix}*"):
        if has_ended(left.name.removeprefix(prefix).partition("-")[0]) and not left.is_symlink():
            shutil.rmtree(left, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{prefix}{own_mark()}-", dir=place))
