"""Writes and reads the folder of a network's operator: genesis, keys, and the files of one validator and one relay.

treasury.key            owns the network's credits; no process that listens reads it
faucet.key              of the account that the faucet pays from
seat/validator.toml     with validator.key, genesis.bin and data/ beside it
relay/relay.toml        with relay.key beside it

The two TOML files are the operator's to edit (peers.validator.config, peers.relay.config say what each value is).
"""

from __future__ import annotations

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
from farflung.core.money import MICRO
from farflung.core.release import VERSION
from farflung.ledger import genesis_file
from farflung.ledger.block import Genesis
from farflung.ledger.params import LedgerParams
from farflung.net.io.listen_errors import LOOPBACK
from farflung.peers.keys.files import new_account, read_account
from farflung.peers.network.card import FaucetConfig
from farflung.peers.network.invitation import Invitation, Seat, is_name, is_place
from farflung.peers.process.channel import Report
from farflung.peers.process.config import HexId, LedgerConfig, ListenerConfig
from farflung.peers.process.user_dirs import state_folder

CREDITS: Final = 1_000_000  # of a new network, in all
FAUCET_DAYS: Final = 30  # whose allowance the faucet's account holds at first: the treasury fills it up
MINUTE_MS: Final = 60_000
SEAT, RELAY, TREASURY, FAUCET = "seat/validator.toml", "relay/relay.toml", "treasury.key", "faucet.key"


def open_law() -> LedgerParams:
    """The first law of an open network: whoever is accused may answer, and anybody may challenge a recent round."""
    return LedgerParams(
        fee_min=10, stake_min=MICRO, dispute_ms=10 * MINUTE_MS, bond_min=MICRO // 10, challenge_rounds=8
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
    (root / "relay").mkdir(mode=0o700)
    treasury, faucet = new_account(root / TREASURY), new_account(root / FAUCET)
    seat, relay = new_account(root / "seat" / "validator.key"), new_account(root / "relay" / "relay.key")
    genesis = _genesis(places.name, treasury.public, faucet, seat.public, relay.public)
    write_atomic(root / "seat" / "genesis.bin", genesis_file.write(genesis), "network.open")
    _write(root / RELAY, _relay_lines(places, seat.public))
    lines = _seat_lines(places, [ListenerConfig(HexId(relay.public), places.host, places.relay_port)])
    # The last one: with it the folder is a network's.
    _write(root / SEAT, [*lines, "[network.faucet]", f'key = "../{FAUCET}"'])


def make_seat(
    root: Path,
    places: NetworkPlaces,
    genesis: Genesis,
    others: Sequence[ListenerConfig],
    relays: Sequence[ListenerConfig],
) -> SigningKey:
    """Writes the folder of one more seat of a network, without relay or faucet; the seat's key. Raises as `make`."""
    _check_new(root, places)
    key = new_account(root / "seat" / "validator.key")
    write_atomic(root / "seat" / "genesis.bin", genesis_file.write(genesis), "network.seat")
    known = [f'"{each.peer.hex()}" = "{each.host}:{each.port}"' for each in others]
    _write(root / SEAT, [*_seat_lines(places, relays), "[validators]", *known])
    return key


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
    for folder in (root, root / "seat"):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def _genesis(name: str, treasury: PeerId, faucet: SigningKey, seat: PeerId, relay: PeerId) -> Genesis:
    given = FAUCET_DAYS * FaucetConfig(key=faucet).day
    fees = ((faucet.public, given), (seat, MICRO), (relay, MICRO))
    left = CREDITS * MICRO - sum(amount for _, amount in fees)
    return Genesis(name, int(time.time() * 1000), ((treasury, left), *fees), (seat,), open_law())


def _seat_lines(places: NetworkPlaces, relays: Sequence[ListenerConfig]) -> list[str]:
    lines = [
        f'host = "{places.listen}"',
        f"port = {places.port}",
        "",
        "[network]",
        f'name = "{places.name}"',
        f'host = "{places.host}"',
        f'least = "{VERSION}"',
        "foreign_modules = false",
        'message = ""',
    ]
    for each in relays:
        lines += ["[[network.relays]]", f'peer = "{each.peer.hex()}"', f'host = "{each.host}"', f"port = {each.port}"]
    return lines


def _relay_lines(places: NetworkPlaces, seat: PeerId) -> list[str]:
    return [
        f'host = "{places.listen}"',
        f"port = {places.relay_port}",
        "[ledger]",
        f'peer = "{seat.hex()}"',
        f'host = "{_dialled(places.listen)}"',
        f"port = {places.port}",
    ]


def _write(path: Path, lines: list[str]) -> None:
    text = "\n".join([f"# written by farflung {VERSION}", *lines]) + "\n"
    write_atomic(path, text.encode(), "network.open")


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


def process_configs(root: Path) -> dict[str, Report]:
    """What the validator's and the relay's process are told by their supervisor, by their roles: the files' own values,
    with keys and genesis in place of their names. Raises UsageError FF-APP-545.
    """
    found = {"validator": _piped(root / SEAT, "validator.key", "data")}
    found["validator"]["genesis"] = _bytes(root / "seat" / "genesis.bin").hex()
    if (root / RELAY).exists():
        found["relay"] = _piped(root / RELAY, "relay.key", "till")
        found["relay"]["key"] = f"{read_account(root / 'relay' / 'relay.key').seed.hex()}\n"
    return found


def _piped(path: Path, key: str, folder: str) -> Report:
    table = dict(_table(path))
    table["key"] = read_account(path.parent / key).seed.hex()
    table["folder"] = str((path.parent / folder).absolute())
    network = dict(table.get("network", {}))
    if isinstance(faucet := network.get("faucet"), Mapping) and isinstance(faucet.get("key"), str):
        network["faucet"] = {**faucet, "key": read_account(path.parent / faucet["key"]).seed.hex()}
        table["network"] = network
    return table


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
