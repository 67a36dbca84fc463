"""Reads a validator's configuration: one TOML file beside its key and the genesis.

key = "validator.key"        # the consensus key, and the validator's identity on the network
genesis = "genesis.bin"      # what the ledger begins with; the same file for all
folder = "data"              # chain, votes, directory
host = "127.0.0.1"           # an address that the others reach; nothing else is listened on
port = 4520
readers = 0                  # a port of 127.0.0.1 for readers and metrics; 0: none
keep_days = 0                # transactions older than this are dropped, never before stakes are free; 0: all are kept
judges = 1                   # processes that judge signatures, for a committee of several; 0: none; left out: see below
[network]                    # what its card says to whoever joins (peers.network.card); all of it may be left out
host = "net.example"         # where others reach this seat, where that is not `host` above; `port` as well
name = "commons"             # of the network; left out: the ledger's
least = "0.1.0"              # the oldest farflung that takes part
foreign_modules = false      # whether jobs with Python code of their own are usual
message = ""                 # of the day
[network.faucet]             # at one seat of a network; credits as text (an integer would be pico-credits)
key = "faucet.key"           # of the account that pays
grant = "10"                 # to a new account, once
block_day = "160"            # to an address block (/24, /48) in 24 hours, where no token lifts it
day = "2000"                 # to everybody together in 24 hours
[[network.relays]]           # whom peers behind routers are reached through
peer = "KEY"
host = "net.example"
port = 4521
price = "0.002"              # credits a GiB; left out: it carries for nothing
[validators]                 # where others are, by key; what the ledger says of them is known anyway
"KEY" = "host:port"

Without a word on `judges` there is one less than there are cores, MOST_JUDGES at most: none on a single core.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Final

import msgspec

from farflung.core import limits
from farflung.core.crypto import SigningKey
from farflung.core.ids import ID_BYTES, PeerId
from farflung.ledger.params import DAY_MS
from farflung.net.io.listen_errors import LOOPBACK
from farflung.peers.network.card import NetworkConfig
from farflung.peers.process.channel import LEDGER
from farflung.peers.process.config import Count, GenesisFile, Port, RoleConfig, read_role_config, refuse_config
from farflung.peers.validator.committee import place_of
from farflung.peers.validator.http_readers import HttpReadersConfig
from farflung.peers.validator.service import ValidatorConfig

PORT: Final = 4520
MOST_JUDGES: Final = 4  # that a validator takes unasked: what one process can execute, so many judge


class ValidatorConfigFile(RoleConfig, frozen=True):
    """What a validator is told. `local`: its ledger's time counts blocks, and its supervisor says who is where."""

    FILES: ClassVar[Mapping[str, str]] = {"key": "validator.key", "genesis": "genesis.bin", "folder": "data"}

    key: SigningKey
    genesis: GenesisFile
    folder: Path
    name: str = LEDGER
    host: str = LOOPBACK
    port: Port = PORT
    readers: Port = 0
    keep_days: Count = 0
    judges: Annotated[int, msgspec.Meta(ge=0, le=limits.JUDGES)] | None = None
    validators: dict[str, str] = msgspec.field(default_factory=dict)
    network: NetworkConfig = NetworkConfig()
    local: bool = False

    def setting(self) -> ValidatorConfig:
        """The same as a service takes it; makes its folder."""
        self.folder.mkdir(parents=True, exist_ok=True)
        return ValidatorConfig(
            self.key,
            self.genesis.genesis,
            self.folder,
            self.host,
            self.port,
            is_remote=self.host != LOOPBACK,
            is_logical=self.local,
            readers=HttpReadersConfig(port=self.readers) if self.readers else None,
            keep_ms=self.keep_days * DAY_MS or None,
            judges=spare_cores() if self.judges is None else self.judges,
            network=self.network,
        )

    def places(self) -> dict[PeerId, tuple[str, int]]:
        """Where other validators are. Raises UsageError FF-APP-300."""
        found = {}
        for text, address in self.validators.items():
            place = place_of(address)
            try:
                key = bytes.fromhex(text)
            except ValueError:
                key = b""
            if place is None or len(key) != ID_BYTES:
                refuse_config("[validators]", f"it has {text[:16]!r} = {address!r}, not KEY = HOST:PORT")
            found[PeerId(key)] = place
        return found


def read_config(path: Path) -> tuple[ValidatorConfigFile, ValidatorConfig, dict[PeerId, tuple[str, int]]]:
    """What the file says, and where other validators are. Raises UsageError FF-APP-300, and what key files raise."""
    written = read_role_config(path, ValidatorConfigFile)
    return written, written.setting(), written.places()


def spare_cores() -> int:
    """How many processes judge signatures where nobody said: the cores that the validator's own leaves."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores - 1, MOST_JUDGES)
