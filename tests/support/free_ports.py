"""Ports in a row that no other process of these tests takes, for servers whose ports stand in a file."""

from __future__ import annotations

import fcntl
import os
import socket
import tempfile
from pathlib import Path

# Below the ports that systems give to outgoing connections (32768 and above on Linux).
FIRST, END, ROW = 21_000, 32_000, 16
_held: list[int] = []


def free_ports(count: int) -> int:
    """Returns the first of at most 16 ports in a row that nobody uses; they are this process's until it ends."""
    assert count <= ROW
    folder = Path(tempfile.gettempdir()) / f"farflung-test-ports-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    for first in range(FIRST, END, ROW):
        lock = os.open(folder / str(first), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not all(_is_free(port) for port in range(first, first + count)):
                raise OSError
        except OSError:
            os.close(lock)
            continue
        _held.append(lock)
        return first
    raise AssertionError("no free ports")


def _is_free(port: int) -> bool:
    with socket.socket() as taken:
        try:
            taken.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
