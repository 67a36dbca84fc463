"""Keeps what a lent computer has of one network in one role: the configuration, stored objects, a journal, a lock.

node.toml       what the role's main function reads (peers.node.config); written at each start
slot.key        the node's key, which follows from its owner's account (peers.network.account)
account.key     in its stead: a key that was drawn for this node, in homes of before
data/           objects, sealed files, vouchers
journal.jsonl   jobs and pay, one object a line
lock            the process that lends now; its number is in the file
control.sock    how its owner's other commands reach that process
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from farflung.core.crypto import SigningKey
from farflung.core.errors import RunError, UsageError
from farflung.core.io.ordinary_files import read_bounded
from farflung.peers.keys.files import is_there, read_account, write_account
from farflung.peers.process.user_dirs import state_folder

CONFIG: Final = "node.toml"
ACCOUNT: Final = "account.key"
SLOT_KEY: Final = "slot.key"
SOCKET: Final = "control.sock"
_JOURNAL: Final = "journal.jsonl"
_LOCK: Final = "lock"
ROLES: Final = ("lend", "audit")  # the folders of providers and verifiers


CLAIMS: Final = "jobs"  # beside the homes: which node of this owner works on which job
SLOTS: Final = 64


def home_of(network: str, role: str, slot: int = 1) -> Path:
    """Where this computer's node of a network lies; `slot` tells several of one role apart."""
    return state_folder() / network / (role if slot == 1 else f"{role}-{slot}")


def is_verifier(home: Path) -> bool:
    """Whether the node of a home audits."""
    return home.name.partition("-")[0] == ROLES[1]


def key_file(home: Path) -> Path:
    """Where the key of a home's node lies: a key that was drawn for it goes on, since its stake hangs on it."""
    drawn = home / ACCOUNT
    return drawn if is_there(drawn) else home / SLOT_KEY


def own_key(home: Path, derived: SigningKey) -> SigningKey:
    """The key that the home has; where it has none, `derived` becomes it. Raises what `read_account` raises."""
    file = key_file(home)
    if not is_there(file):
        write_account(file, derived)
    return read_account(file)


@contextlib.contextmanager
def held(home: Path) -> Iterator[None]:
    """The home is this process's. Raises RunError FF-APP-581: another process lends from it."""
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle = os.open(home / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            number = os.pread(handle, 32, 0).decode("ascii", "replace").strip()
            raise RunError(
                "FF-APP-581",
                "this computer lends to that network already",
                cause=f"process {number or 'unknown'} holds {home}",
                hint="farflung lend status shows it; farflung lend leave ends it",
            ) from None
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(handle)


def note(home: Path, facts: Mapping[str, Any]) -> None:
    """One line of the journal. A full disk loses the line, and nothing else."""
    with contextlib.suppress(OSError), (home / _JOURNAL).open("a", encoding="utf-8") as file:
        file.write(json.dumps(dict(facts)) + "\n")


def known_homes(network: str = "") -> list[Path]:
    """The homes of this user that have a configuration, of one network or of all."""
    root = state_folder()
    names = [network] if network else sorted(path.name for path in root.iterdir()) if root.is_dir() else []
    homes = [home_of(name, role, slot) for name in names for role in ROLES for slot in range(1, SLOTS + 1)]
    return [home for home in homes if (home / CONFIG).is_file()]


def stake_in(home: Path) -> int:
    """The stake of the configuration that was written before; 0: there is none."""
    with contextlib.suppress(OSError, UnicodeDecodeError, ValueError, UsageError):
        for line in read_bounded(home / CONFIG, 1 << 20).decode().splitlines():
            name, _, value = line.partition(" = ")
            if name == "stake":
                return int(value)
    return 0
