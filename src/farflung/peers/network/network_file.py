"""Keeps what this computer knows of a network: NAME.toml and NAME.genesis in `networks` of the user's config folder.

chain = "HASH"               # of the genesis beside it
seen = 12                    # height of the newest block that a seat proved: a seat that is behind it shows the past
[[seats]]                    # who certifies the ledger, and where each is reached
peer = "KEY"
host = "net.example"
port = 4520
[[relays]]                   # whom peers behind routers are reached through
peer = "KEY"
host = "net.example"
port = 4521
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from farflung.core import limits
from farflung.core.errors import FarflungError, UsageError
from farflung.core.ids import Hash
from farflung.core.io.durable_files import write_atomic
from farflung.core.io.ordinary_files import read_bounded
from farflung.core.release import VERSION
from farflung.core.similar_name import similar_name
from farflung.ledger import genesis_file
from farflung.ledger.block import Genesis
from farflung.peers.network.invitation import is_name, is_place
from farflung.peers.process.config import Count, HexId, ListenerConfig, RoleConfig, read_role_config
from farflung.peers.process.user_dirs import config_folder

_NAMES_OF_ONE: Final = 99  # networks of one name that one computer may know
_INVITE: Final = "farflung lend INVITE or farflung run --on INVITE writes it again, from an invitation"


class NetworkFile(NamedTuple):
    """A network under the name that it has on this computer. `seen`: the height of the newest block that was proved."""

    name: str
    chain: Hash
    seats: tuple[ListenerConfig, ...]
    relays: tuple[ListenerConfig, ...] = ()
    seen: int = 0


class _NetworkTable(RoleConfig, frozen=True):
    chain: HexId
    seats: tuple[ListenerConfig, ...]
    relays: tuple[ListenerConfig, ...] = ()
    seen: Count = 0


def networks_folder() -> Path:
    """Where the files of networks lie."""
    return config_folder() / "networks"


def remembered() -> tuple[str, ...]:
    """The names of all networks that this computer knows, in order."""
    try:
        names = sorted(path.stem for path in networks_folder().iterdir() if path.suffix == ".toml")
    except OSError:
        return ()
    return tuple(name for name in names if is_name(name))


def load(name: str) -> NetworkFile:
    """A network by its name. Raises UsageError FF-APP-528 (unknown), FF-APP-529 (its file cannot be used)."""
    path = networks_folder() / f"{name}.toml"
    if not is_name(name) or not path.exists():
        known = remembered()
        near = similar_name(name[:60], known)
        raise UsageError(
            "FF-APP-528",
            f"no network {name[:60]!r} is known here" + (f". Did you mean {near!r}?" if near else ""),
            cause=f"known networks: {', '.join(known)}" if known else "this computer has joined no network",
            hint="name an invitation, which begins with farflung1, in place of the name",
        )
    try:
        table = read_role_config(path, _NetworkTable)
    except UsageError as error:
        raise _unusable(path, error.cause) from error
    _check_places(path, table)
    seats, relays = table.seats[: limits.NETWORK_SEATS], table.relays[: limits.NETWORK_RELAYS]
    return NetworkFile(name, Hash(bytes(table.chain)), seats, relays, table.seen)


def _check_places(path: Path, table: _NetworkTable) -> None:
    if not table.seats:
        raise _unusable(path, "it names no seat")
    for each in (*table.seats, *table.relays):
        if not is_place(each.host, each.port):
            raise _unusable(path, f"{each.host[:60]!r} with port {each.port} is no place on a network")


def genesis_of(file: NetworkFile) -> Genesis:
    """What its ledger began with. Raises UsageError FF-APP-529 where it is not there, or another one's."""
    path = networks_folder() / f"{file.name}.genesis"
    try:
        genesis = genesis_file.read(read_bounded(path, genesis_file.BYTES))
    except OSError as error:
        raise _unusable(path, error.strerror or str(error)) from error
    except FarflungError as error:
        raise _unusable(path, error.cause or error.message) from error
    if genesis.chain != file.chain:
        raise _unusable(path, f"it is of the chain {genesis.chain.hex()[:12]}, not of {file.chain.hex()[:12]}")
    return genesis


def name_for(name: str, chain: Hash) -> str:
    """The name that a network has here, or would get: its own, or NAME-2 where another network has it already.

    Operators choose names without knowing of each other, so a name that is taken keeps nobody from joining. Raises
    UsageError FF-APP-529 (a file of that name cannot be used), FF-APP-531 (too many).
    """
    for number in range(1, _NAMES_OF_ONE + 1):
        end = "" if number == 1 else f"-{number}"
        found = name[: limits.NETWORK_NAME_CHARACTERS - len(end)] + end
        if not (networks_folder() / f"{found}.toml").exists() or load(found).chain == chain:
            return found
    raise UsageError(
        "FF-APP-531",
        f"{_NAMES_OF_ONE} networks of the name {name} are known here",
        hint=f"remove those that you do not need from {networks_folder()}",
    )


def save(file: NetworkFile, genesis: Genesis) -> None:
    """Writes both files. Raises RunError FF-CORE-050."""
    folder = networks_folder()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_atomic(folder / f"{file.name}.genesis", genesis_file.write(genesis), "network.genesis")
    lines = [f"# written by farflung {VERSION}", f'chain = "{file.chain.hex()}"', f"seen = {file.seen}"]
    lines += [*_tables("seats", file.seats), *_tables("relays", file.relays)]
    write_atomic(folder / f"{file.name}.toml", ("\n".join(lines) + "\n").encode(), "network.file")


def _tables(name: str, places: Iterable[ListenerConfig]) -> list[str]:
    return [
        line
        for each in places
        for line in (f"[[{name}]]", f'peer = "{each.peer.hex()}"', f'host = "{each.host}"', f"port = {each.port}")
    ]


def _unusable(path: Path, cause: str) -> UsageError:
    return UsageError(
        "FF-APP-529", f"the network file {path} cannot be used", cause=cause, hint=f"move it away; {_INVITE}"
    )
