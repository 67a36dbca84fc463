"""Keeps the nodes of one owner apart: no two of them work on one job, whatever their roles.

Each node has a key of its own, with its own stake, and the ledger takes keys for owners: two providers must
not agree on the same wrong work, and nobody may audit itself. A job's claim is a file that holds the key of the one
node that takes it, in a folder that all nodes of this user share. Whoever lies about its owner is no worse off by
this than before; what an account risks is its stake (docs/threats.md).
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Awaitable, Callable
from pathlib import Path

from farflung.core.errors import PolicyError
from farflung.core.ids import Hash, PeerId

IsOver = Callable[[Hash], Awaitable[bool]]


class JobClaims:
    """One node's. `folder`: of the claims; None: nobody else is of this owner."""

    def __init__(self, folder: Path | None, own: PeerId) -> None:
        self._folder, self._own = folder, own.hex()

    def take(self, job: Hash) -> None:
        """From now on the job is this node's; again: it still is. Raises PolicyError FF-APP-624."""
        if self._folder is None:
            return
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path, made = self._folder / job.hex(), self._folder / f".{secrets.token_hex(8)}"
        made.write_text(self._own, encoding="ascii")
        try:
            os.link(made, path)  # the file and what is in it, or nothing
        except FileExistsError:
            if path.read_text(encoding="ascii") != self._own:
                raise PolicyError(
                    "FF-APP-624",
                    "another node of this owner works on the job",
                    cause="one owner's nodes would be counted as several",
                    hint="propose to another provider",
                ) from None
        finally:
            made.unlink(missing_ok=True)

    async def clear(self, is_over: IsOver) -> None:
        """Removes the claims of jobs that are over, of any node. Raises what `is_over` raises."""
        for path in sorted(self._folder.glob("*")) if self._folder is not None and self._folder.is_dir() else ():
            with contextlib.suppress(ValueError, FileNotFoundError):
                if await is_over(Hash(bytes.fromhex(path.name))):
                    path.unlink()
