"""Checks that a folder belongs to this user alone. Nobody else may change files that processes share in it."""

from __future__ import annotations

import os
import stat


def is_private(folder: str) -> bool:
    """Makes a folder, and says whether nobody but this user can put anything into it."""
    try:
        os.makedirs(folder, 0o700, exist_ok=True)
        about = os.stat(folder)
    except OSError:
        return False
    is_shared = about.st_uid != os.getuid() or about.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return not is_shared and os.access(folder, os.W_OK)
