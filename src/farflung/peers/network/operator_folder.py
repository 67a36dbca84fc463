"""Writes and reads the folder of a network's operator: genesis, keys, and the files of one validator and one relay.

treasury.key            owns the network's credits; no process that listens reads it
faucet.key              of the account that the faucet pays from
seat/validator.toml     with validator.key, genesis.bin and data/ beside it
relay/relay.toml        with relay.key beside it

The two TOML files are the operator's to edit (peers.validator.config, peers.relay.config say what each value is).
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from farflung.core import bounded_toml, limits
from farflung.core.crypto import SigningKey
from farflung.core.errors import FarflungError, UsageError
from farflung.core.ids import PeerId
from farflung.core.io.durable_files import write_atomic
from farflung.core.io.ordinary_files import read_bounded
from farflung.core.money import CREDIT
from farflung.core.release import VERSION
from farflung.ledger import genesis_file
from farflung.ledger.block import Genesis
from farflung.ledger.params import LedgerParams
from farflung.net.io.listen_errors import LOOPBACK
from farflung.peers.keys.files import new_account, new_key, read_account, write_account
from farflung.peers.network.card import FaucetConfig
from farflung.peers.network.invitation import Invitation, Seat, is_name, is_place
from farflung.peers.process.config import HexId, LedgerConfig, ListenerConfig, write_role_config
from farflung.peers.process.user_dirs import state_folder

CREDITS: Final = 1_000_000  # of a new network, in all
FAUCET_DAYS: Final = 30  # whose allowance the faucet's account holds at first: the treasury fills it up
MINUTE_MS: Final = 60_000
_LEAST: Final = re.compile(r'^least = "[^"\n]*"', re.MULTILINE)
SEAT, RELAY, TREASURY, FAUCET = "seat/validator.toml", "relay/relay.toml", "treasury.key", "faucet.key"


def open_law() -> LedgerParams:
    """The first law of an open network: nodes may claim before a job is settled, whoever is accused may answer, and
    anybody may challenge a recent round.
    """
    return LedgerParams(
        fee_min=CREDIT // 100_000,
        stake_min=CREDIT,
        window_ms=10 * MINUTE_MS,
        dispute_ms=10 * MINUTE_MS,
        bond_min=CREDIT // 10,
        challenge_rounds=8,
    )


@dataclass(frozen=True)
class NetworkPlaces:
    """Where a new network is reached: `host` as others dial it, `listen` as this computer binds it."""

    name: str
    host: str
    listen: str
    port: int

    @property
    def relay_port(self) -> int:
        """The relay's port."""
        return self.port + 1


@dataclass(frozen=True)
class OperatorFolder:
    """What the folder says. `seat`: where others reach the validator; `local`: where this computer does."""

    root: Path
    genesis: Genesis
    name: str
    seat: Seat
    local: LedgerConfig
    relays: tuple[ListenerConfig, ...]

    def invitation(self, token: bytes = b"", expires: int = 0) -> Invitation:
        """What leads others to this network."""
        return Invitation(1, self.name, self.genesis.chain, (self.seat,), token, expires)

    def faucet_key(self) -> SigningKey:
        """The key of the faucet's account. Raises UsageError as `read_account` does."""
        return read_account(self.root / FAUCET)


def default_folder() -> Path:
    """The operator's folder where none is named."""
    return state_folder() / "operator"


def listen_at(host: str) -> str:
    """The address that is bound for a host that others dial: loopback for loopback, else every address of its kind."""
    if host in ("localhost", LOOPBACK):
        return LOOPBACK
    return "::" if ":" in host else "0.0.0.0"  # noqa: S104 - an operator names a host that others reach


def is_made(root: Path) -> bool:
    """Whether a network's folder is there already."""
    return (root / SEAT).exists()


def make(root: Path, places: NetworkPlaces) -> None:
    """Writes a new network: its genesis, its keys, and the files of its validator and its relay.

    Raises UsageError FF-APP-543 (the folder holds something else), FF-APP-544 (its name or place), RunError.
    """
    _check_new(root, places)
    treasury, faucet = new_account(root / TREASURY), new_account(root / FAUCET)
    seat, relay = new_key(), new_key()
    genesis = _genesis(places.name, treasury.public, faucet, seat.public, relay.public)
    dialled = LedgerConfig(HexId(seat.public), _dialled(places.listen), places.port)
    write_relay((root / RELAY).parent, relay, {"host": places.listen, "port": places.relay_port, "ledger": dialled})
    relays = [ListenerConfig(HexId(relay.public), places.host, places.relay_port)]
    network = {**_network(places, relays), "faucet": {"key": f"../{FAUCET}"}}
    # The last one: with it the folder is a network's.
    write_seat((root / SEAT).parent, seat, genesis, {"host": places.listen, "port": places.port, "network": network})


def make_seat(
    root: Path,
    places: NetworkPlaces,
    genesis: Genesis,
    others: Sequence[ListenerConfig],
    relays: Sequence[ListenerConfig],
) -> SigningKey:
    """Writes the folder of one more seat of a network, without relay or faucet; the seat's key. Raises as `make`."""
    _check_new(root, places)
    key, known = new_key(), {each.peer.hex(): f"{each.host}:{each.port}" for each in others}
    values = {"host": places.listen, "port": places.port, "network": _network(places, relays), "validators": known}
    write_seat((root / SEAT).parent, key, genesis, values)
    return key


def write_seat(folder: Path, key: SigningKey, genesis: Genesis, values: Mapping[str, Any]) -> Path:
    """Writes the files of a validator (peers.validator.config), its own one last."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_account(folder / "validator.key", key)
    write_atomic(folder / "genesis.bin", genesis_file.write(genesis), "network.open")
    return write_role_config(folder / "validator.toml", values)


def write_relay(folder: Path, key: SigningKey, values: Mapping[str, Any]) -> Path:
    """Writes the files of a relay (peers.relay.config), its own one last."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_account(folder / "relay.key", key)
    return write_role_config(folder / "relay.toml", {"folder": "till", **values})


def _check_new(root: Path, places: NetworkPlaces) -> None:
    """Makes the folder. Raises UsageError FF-APP-543, FF-APP-544."""
    if root.exists() and any(root.iterdir()):
        raise UsageError(
            "FF-APP-543",
            f"{root} is not empty and holds no network",
            cause=f"a network's folder has {SEAT} in it",
            hint="name a new folder",
        )
    if not is_name(places.name) or not is_place(places.host, places.port) or places.relay_port >= 1 << 16:
        raise UsageError(
            "FF-APP-544",
            f"a network cannot be called {places.name[:40]!r} at {places.host[:60]!r} with port {places.port}",
            cause=f"a name has up to {limits.NETWORK_NAME_CHARACTERS} lower-case letters, digits and hyphens; the "
            "relay takes the port above",
            hint="farflung network open --host net.example --name commons",
        )
    root.mkdir(mode=0o700, parents=True, exist_ok=True)


def _genesis(name: str, treasury: PeerId, faucet: SigningKey, seat: PeerId, relay: PeerId) -> Genesis:
    given = FAUCET_DAYS * FaucetConfig(key=faucet).day
    fees = ((faucet.public, given), (seat, CREDIT), (relay, CREDIT))
    left = CREDITS * CREDIT - sum(amount for _, amount in fees)
    return Genesis(name, int(time.time() * 1000), ((treasury, left), *fees), (seat,), open_law())


def _network(places: NetworkPlaces, relays: Sequence[ListenerConfig]) -> dict[str, Any]:
    """What its card says; each line is there to be edited."""
    said = {"name": places.name, "host": places.host, "least": VERSION, "foreign_modules": False, "message": ""}
    return {**said, "relays": relays}


def _dialled(listen: str) -> str:
    """How this computer reaches what listens there."""
    return {"0.0.0.0": LOOPBACK, "::": "::1"}.get(listen, listen)  # noqa: S104


def read(root: Path) -> OperatorFolder:
    """What a network's folder says. Raises UsageError FF-APP-545, and what key files raise."""
    if not is_made(root):
        raise UsageError(
            "FF-APP-545",
            f"{root} holds no network",
            cause=f"it has no {SEAT}",
            hint="farflung network open --host net.example makes one, or name its folder",
        )
    table = _table(root / SEAT)
    said = table.get("network", {})
    try:
        genesis = genesis_file.read(read_bounded(root / "seat" / "genesis.bin", genesis_file.BYTES))
        key = read_account(root / "seat" / "validator.key").public
        host, port = str(table["host"]), int(table["port"])
        seat = Seat(key, str(said.get("host", host)), int(said.get("port", port)))
        relays = tuple(
            ListenerConfig(HexId(bytes.fromhex(each["peer"])), str(each["host"]), int(each["port"]))
            for each in said.get("relays", ())
        )
    except (OSError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise _unusable(root, str(error)[:200]) from error
    name = str(said.get("name", genesis.name))
    return OperatorFolder(root, genesis, name, seat, LedgerConfig(HexId(key), _dialled(host), port), relays)


def require_version(root: Path, version: str) -> None:
    """Writes into the seat's file that no older farflung joins; the rest of the file stays as its operator wrote it.

    Raises UsageError FF-APP-545 where the file has no such line.
    """
    path = root / SEAT
    text, count = _LEAST.subn(f'least = "{version}"', _bytes(path).decode(), count=1)
    if not count:
        raise _unusable(path, "it has no line `least` under [network]")
    write_atomic(path, text.encode(), "network.open")


def configs(root: Path) -> dict[str, Path]:
    """The configuration files of the network's processes here, by their roles, in the order of their start."""
    found = {"validator": root / SEAT, "relay": root / RELAY}
    return {role: path for role, path in found.items() if path.exists()}


def _table(path: Path) -> dict[str, Any]:
    try:
        return bounded_toml.parse(_bytes(path).decode(), limits.TX_BYTES)
    except ValueError as error:
        raise _unusable(path, str(error)[:200]) from error


def _bytes(path: Path) -> bytes:
    try:
        return read_bounded(path, limits.TX_BYTES)
    except OSError as error:
        raise _unusable(path, error.strerror or str(error)) from error


def _unusable(path: Path, cause: str) -> FarflungError:
    return UsageError(
        "FF-APP-545",
        f"the network's files at {path} cannot be used",
        cause=cause,
        hint="mend the file, or farflung network restore brings the folder back from a backup",
    )
