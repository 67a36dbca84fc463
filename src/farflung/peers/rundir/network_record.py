"""Stores in a run's folder which network the run is on: the ledger's genesis, its validators, its relays, the deadline.

The folder of such a run can be copied to another computer and goes on there; only the requester's key is not in it.
A run without this record has its network on its own computer (peers.rundir.genesis).
"""

from __future__ import annotations

import os
from typing import Final

import msgspec

from farflung.core import limits
from farflung.core.file_header import FileFormat, check_json
from farflung.core.ids import ID_BYTES, PeerId
from farflung.core.io.durable_files import write_atomic
from farflung.core.release import VERSION
from farflung.ledger import genesis_file
from farflung.ledger.block import Genesis
from farflung.peers.process.config import HexId, LedgerConfig, ListenerConfig
from farflung.peers.rundir.bounded_read import read_file
from farflung.peers.rundir.folder import RunFolder
from farflung.peers.rundir.inputs import damaged

BYTES: Final = 64 * limits.KIB
_FORM: Final = FileFormat("network.json")


class NetworkRecord(msgspec.Struct, frozen=True):
    """`name`: as this user calls the network. `deadline`: of the job, milliseconds since 1970. `stake`: pico-credits
    that each node of the job has at stake. `relay_price`: pico-credits a GiB, 0: relays carry for nothing.
    """

    name: str
    ledger: LedgerConfig
    deadline: int
    stake: int
    relays: tuple[ListenerConfig, ...] = ()
    relay_price: int = 0


class _File(NetworkRecord, frozen=True):
    format: int = _FORM.version
    program: str = VERSION


def write_network(run: RunFolder, genesis: Genesis, record: NetworkRecord) -> None:
    """Keeps both beside run.json; the record last, so that a run with it has the genesis too."""
    write_atomic(run.genesis_file, genesis_file.write(genesis), "run.genesis")
    said = _File(**{name: getattr(record, name) for name in NetworkRecord.__struct_fields__})
    write_atomic(run.network_file, msgspec.json.format(msgspec.json.encode(said, enc_hook=_shown), indent=2), "run.net")


def read_network(run: RunFolder) -> NetworkRecord | None:
    """The network that a run is on; None: its own computer's.

    Raises RunError FF-APP-161, VerificationError FF-APP-023 (damaged), VersionError FF-CORE-095.
    """
    if not os.path.lexists(run.network_file):
        return None
    data = read_file(run.network_file, BYTES, os.O_NOFOLLOW)
    try:
        check_json(_FORM, data)
        return msgspec.json.decode(data, type=_File, dec_hook=_read)
    except (ValueError, RecursionError) as error:
        raise damaged(run.network_file, str(error)) from error


def read_genesis(run: RunFolder) -> Genesis:
    """What the ledger of such a run began with. Raises RunError FF-APP-161 and what genesis_file.read raises."""
    return genesis_file.read(read_file(run.genesis_file, genesis_file.BYTES, os.O_NOFOLLOW))


def node_name(node: PeerId) -> str:
    """What a node of such a run is called in its files."""
    return f"node-{node.hex()[:16]}"


def _shown(value: object) -> str:
    if isinstance(value, bytes):
        return value.hex()
    raise TypeError(type(value).__name__)


def _read(kind: type, text: object) -> HexId:
    found = HexId(bytes.fromhex(str(text)))
    if kind is not HexId or len(found) != ID_BYTES:
        raise ValueError(f"a key has {2 * ID_BYTES} hex digits")
    return found
