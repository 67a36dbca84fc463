"""Names a process so that a later one can tell whether it has ended, for what it leaves in folders that several share.

A process id alone does not tell: in containers that share a folder each counts its processes anew. So a mark has the
inode of the PID namespace, too, and only processes of that namespace judge it. The kernel gives an inode to another
namespace once the first one has no process left.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

MARK: Final = r"[0-9]{1,10}\.[0-9]{1,20}"
_PROC: Final = Path("/proc")


def own_mark() -> str:
    """The mark of this process, `PID.NAMESPACE`."""
    return f"{os.getpid()}.{namespace()}"


def namespace() -> int:
    """The inode of the PID namespace; 0 where the system has none."""
    try:
        return os.stat(_PROC / "self" / "ns" / "pid").st_ino
    except OSError:
        return 0


def has_ended(mark: str) -> bool:
    """Whether the process of a mark has ended; False where that cannot be told here, and for what is no mark."""
    if not re.fullmatch(MARK, mark):
        return False
    pid, _, where = mark.partition(".")
    if int(where) != namespace():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):  # another user's; or beyond all numbers of processes
        return False
    return False
