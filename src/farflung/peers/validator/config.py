"""Reads a validator's configuration: one TOML file beside its key and the genesis.

key = "validator.key"        # the consensus key, and the validator's identity on the network
genesis = "genesis.bin"      # what the ledger begins with; the same file for all
folder = "data"              # chain, votes, directory
host = "127.0.0.1"           # an address that the others reach; nothing else is listened on
port = 4520
readers = 0                  # a port of 127.0.0.1 for readers and metrics; 0: none
keep_days = 0                # transactions older than this are dropped, never before stakes are free; 0: all are kept
judges = 1                   # processes that judge signatures, for a committee of several; 0: none; left out: see below
[validators]                 # where others are, by key; what the ledger says of them is known anyway
"KEY" = "host:port"

Without a word on `judges` there is one less than there are cores, MOST_JUDGES at most: none on a single core.
"""

from __future__ import annotations

import difflib
import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, NoReturn

import msgspec

from farflung.core import limits
from farflung.core.codec import decode
from farflung.core.errors import FarflungError, UsageError
from farflung.core.ids import ID_BYTES, PeerId
from farflung.ledger.block import Genesis
from farflung.ledger.params import DAY_MS
from farflung.net.io.listen_errors import LOOPBACK
from farflung.peers.keys.files import read_account
from farflung.peers.validator.committee import place_of
from farflung.peers.validator.http_readers import HttpReadersConfig
from farflung.peers.validator.service import ValidatorConfig

PORT: Final = 4520
MOST_JUDGES: Final = 4  # that a validator takes unasked: what one process can execute, so many judge


_KINDS: Final[dict[str, type]] = {
    "port": int,
    "readers": int,
    "keep_days": int,
    "judges": int,
    "validators": dict,
}


@dataclass(frozen=True)
class ValidatorConfigFile:
    """The file's values. Paths are relative to it."""

    key: str = "validator.key"
    genesis: str = "genesis.bin"
    folder: str = "data"
    host: str = LOOPBACK
    port: int = PORT
    readers: int = 0
    keep_days: int = 0
    judges: int | None = None
    validators: dict[str, str] | None = None


def read_config(path: Path) -> tuple[ValidatorConfigFile, ValidatorConfig, dict[PeerId, tuple[str, int]]]:
    """What the file says, and where other validators are. Raises UsageError FF-APP-300, and what key files raise."""
    try:
        said = msgspec.toml.decode(path.read_bytes())
    except (OSError, ValueError) as error:
        _refuse(path, str(error)[:200])
    names = [each.name for each in fields(ValidatorConfigFile)]
    for name, value in said.items():
        if name not in names:
            near = difflib.get_close_matches(name, names, 1)
            _refuse(path, f"it sets {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
        expected = _KINDS.get(name, str)
        most = limits.JUDGES if name == "judges" else (1 << 16) - 1
        is_in_range = not isinstance(value, int) or (not isinstance(value, bool) and 0 <= value <= most)
        if not isinstance(value, expected) or not is_in_range:
            _refuse(path, f"{name} is {value!r}")
    written = ValidatorConfigFile(**said)
    return written, _setting(path, written), _places(path, written.validators or {})


def _setting(path: Path, written: ValidatorConfigFile) -> ValidatorConfig:
    key = read_account(path.parent / written.key)
    genesis = read_genesis(path.parent / written.genesis)
    folder = path.parent / written.folder
    folder.mkdir(parents=True, exist_ok=True)
    readers = HttpReadersConfig(port=written.readers) if written.readers else None
    is_remote = written.host != LOOPBACK
    keep_ms = written.keep_days * DAY_MS or None
    place = (written.host, written.port)
    judges = spare_cores() if written.judges is None else written.judges
    return ValidatorConfig(
        key, genesis, folder, *place, is_remote, readers=readers, keep_ms=keep_ms, judges=judges
    )


def spare_cores() -> int:
    """How many processes judge signatures where nobody said: the cores that the validator's own leaves."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores - 1, MOST_JUDGES)


def _places(path: Path, said: dict[str, Any]) -> dict[PeerId, tuple[str, int]]:
    found = {}
    for text, address in said.items():
        place = place_of(address) if isinstance(address, str) else None
        try:
            key = bytes.fromhex(text)
        except ValueError:
            key = b""
        if place is None or len(key) != ID_BYTES:
            _refuse(path, f"[validators] has {text[:16]!r} = {address!r}, not KEY = HOST:PORT")
        found[PeerId(key)] = place
    return found


def read_genesis(path: Path) -> Genesis:
    """A genesis file. Raises UsageError FF-APP-300."""
    try:
        return decode(path.read_bytes(), Genesis, limits.TX_BYTES)
    except (OSError, FarflungError) as error:
        _refuse(path, str(error)[:200])


def _refuse(path: Path, cause: str) -> NoReturn:
    raise UsageError(
        "FF-APP-300",
        f"{path} cannot be used",
        cause=cause,
        hint="farflung ledger init FOLDER writes files that can; docs/operate.md explains each value",
    )
