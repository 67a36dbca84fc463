"""Lets the owner's commands reach a node that runs: one JSON line each way over a socket in its home.

The socket is in a folder that is the owner's alone, and its file is, too: who can open it is the owner, or root.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Final

from farflung.core.errors import RunError
from farflung.core.limits import KIB

LINE_BYTES: Final = 64 * KIB
SECONDS: Final = 10.0  # for an answer
_PATH_BYTES: Final = 100  # that a socket's address has room for

Answer = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]


class ControlSocket:
    """The running node's end."""

    def __init__(self, path: Path, answer: Answer) -> None:
        """`answer` takes one order and says what became of it."""
        self._path, self._answer = path, answer
        self._server: asyncio.AbstractServer | None = None

    async def open(self) -> None:
        """From now on commands are answered. The home is held, so a socket that is there is of a dead process."""
        self._path.unlink(missing_ok=True)
        listening = socket.socket(socket.AF_UNIX)
        before = os.umask(0o177)
        try:
            with _short(self._path) as path:
                listening.bind(path)
        finally:
            os.umask(before)
        self._server = await asyncio.start_unix_server(self._serve, sock=listening, limit=LINE_BYTES)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, ValueError, asyncio.LimitOverrunError, TimeoutError):
            async with asyncio.timeout(SECONDS):
                order = json.loads(await reader.readline())
                if isinstance(order, dict):
                    writer.write(json.dumps(await self._answer(order)).encode() + b"\n")
                    await writer.drain()
        writer.close()

    async def close(self) -> None:
        """Nobody is answered any more."""
        if self._server is not None:
            self._server.close()
        self._path.unlink(missing_ok=True)


def ask(path: Path, order: dict[str, Any]) -> dict[str, Any]:
    """What the node that runs in this home answers. Raises RunError FF-APP-582: none does."""
    try:
        with socket.socket(socket.AF_UNIX) as line, _short(path) as place:
            line.settimeout(SECONDS)
            line.connect(place)
            line.sendall(json.dumps(order).encode() + b"\n")
            with line.makefile("rb") as answered:
                said = json.loads(answered.readline(LINE_BYTES))
            if isinstance(said, dict):
                return said
            cause = "what answers is no node"
    except (OSError, ValueError) as error:
        cause = getattr(error, "strerror", None) or str(error) or type(error).__name__
    raise RunError(
        "FF-APP-582",
        f"no node runs in {path.parent}",
        cause=cause,
        hint=f"start it: farflung lend {path.parent.parent.name}",
    )


@contextlib.contextmanager
def _short(path: Path) -> Iterator[str]:
    """A name of the socket that fits into its address, while this lasts."""
    if len(os.fsencode(path)) < _PATH_BYTES or sys.platform != "linux":
        yield str(path)
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
