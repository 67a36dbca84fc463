"""Stages a whole network on this computer for one run: an operator's seats and relays, and a home for each lender.

Each process is the one that `farflung network open` and `farflung lend` start, by the same files. A stage's differ in
this only: keys come from the run's seed, the ledger's time is counted and not read, and a node registers when it is
told. So two runs with one seed give the same bits (docs/concepts/roundlog, law 4). Such keys are unsafe anywhere else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from farflung.core.crypto import SigningKey
from farflung.core.ids import PeerId
from farflung.job.spec import JobSpec
from farflung.ledger.params import DAY_MS
from farflung.local.network.joined_network import JoinedNetwork
from farflung.local.network.placement import LoopbackPlacement
from farflung.peers.keys.files import is_there, write_account, write_own
from farflung.peers.ledger_client.quorum_read import PATIENCE_SECONDS
from farflung.peers.network.operator_folder import write_relay, write_seat
from farflung.peers.node.home import ACCOUNT, CONFIG
from farflung.peers.process.channel import LEDGER, REQUESTER, relay_names, validator_names
from farflung.peers.process.config import HexId, LedgerConfig, ListenerConfig, write_role_config
from farflung.peers.rundir.folder import RunFolder
from farflung.peers.rundir.genesis import NetworkKeys, genesis_of, machine_of, stake_of
from farflung.peers.rundir.network_record import NetworkRecord

JOB_MS: Final = 30 * DAY_MS
_NODE: Final = "node.key"


class StagedNode(NamedTuple):
    """One lender. `is_hidden`: it is reached at relays only."""

    role: str
    number: int
    key: SigningKey
    is_hidden: bool

    @property
    def name(self) -> str:
        """Its name in the run."""
        return f"{self.role}-{self.number}"


class LocalStage:
    """What is on the stage, and the files of each process. `network` is how the run sees it."""

    def __init__(
        self,
        spec: JobSpec,
        placement: LoopbackPlacement | None = None,
        relays: int = 1,
        relay_price: int = 0,
        validators: int = 1,
        *,
        disputes: bool = False,
    ) -> None:
        """`placement`: where its processes are; None: on loopback. `relays`: how many, if anybody needs one.

        `relay_price`: pico-credits that each of them is paid for a GiB; 0: nothing. `validators`: of the ledger.
        `disputes`: whether its law has them.
        """
        self.keys, self._spec = NetworkKeys(spec, relays, validators), spec
        self._placement = placement or LoopbackPlacement()
        self.genesis = genesis_of(spec, validators, disputes=disputes)
        files = {"key": ACCOUNT, "node": _NODE, "genesis": f"{LEDGER}/genesis.bin"}
        record = NetworkRecord("", _ledger(self._places(self.seats, {})), JOB_MS, stake_of(spec), (), relay_price)
        account, parties = self.keys.requester.public, dict(self.keys.parties)
        del parties[REQUESTER]
        self.network = JoinedNetwork(spec, record, account, files, self._placement, parties)
        if self.network.reached.hidden:
            self.open_relays({})

    @property
    def seats(self) -> dict[str, SigningKey]:
        """The validators' keys by name."""
        keys = self.keys.validators
        return dict(zip(validator_names(len(keys)), keys, strict=True))

    @property
    def relays(self) -> dict[str, SigningKey]:
        """The relays' keys by name; none where nobody needs one."""
        keys = self.keys.relays if self.network.reached.hidden else []
        return dict(zip(relay_names(len(keys)), keys, strict=True))

    @property
    def nodes(self) -> list[StagedNode]:
        """The lenders, in the order in which they register: the first providers are reached at relays only."""
        keys, hidden, homes = self.keys, self.network.reached.hidden, self._placement.homes
        found = [StagedNode("provider", i, key, i < hidden) for i, key in enumerate(keys.providers)]
        return found + [
            StagedNode("verifier", i, key, f"verifier-{i}" in homes) for i, key in enumerate(keys.verifiers)
        ]

    @property
    def peers(self) -> dict[str, PeerId]:
        """The key of each process on the stage, by its name."""
        found = {name: key.public for name, key in (self.seats | self.relays).items()}
        return found | {node.name: node.key.public for node in self.nodes}

    def _places(self, keys: Mapping[str, SigningKey], ports: Mapping[str, int]) -> list[ListenerConfig]:
        host = self._placement.host
        return [ListenerConfig(HexId(key.public), host(name), ports.get(name, 0)) for name, key in keys.items()]

    def open_ledger(self, ports: Mapping[str, int]) -> None:
        """The seats listen there, by name."""
        ledger = _ledger(self._places(self.seats, ports))
        self.network.record = replace(self.network.record, ledger=ledger)

    def open_relays(self, ports: Mapping[str, int]) -> None:
        """The relays listen there, by name."""
        relays = tuple(self._places(self.relays, ports))
        self.network.record = replace(self.network.record, relays=relays)

    def write_requester(self, folder: RunFolder) -> None:
        """The keys of the run's own requester."""
        _write_keys(folder.root, self.keys.requester)

    def write_seats(self, folder: RunFolder) -> dict[str, Path]:
        """The validators' configurations by name."""
        found = {}
        for index, (name, key) in enumerate(self.seats.items()):
            values = {"name": name, "host": self._placement.host(name), "port": 0, "folder": "."}
            values |= {"local": True, "judges": 0}
            found[name] = write_seat(folder.validator(index), key, self.genesis, values)
        return found

    def write_relays(self, folder: RunFolder) -> dict[str, Path]:
        """The relays' configurations by name: whom each serves, its price, and the ledger that pays it."""
        found, price = {}, self.network.relay_price
        for name, key in self.relays.items():
            values = {"name": name, "host": self._placement.host(name), "port": 0, "price": price}
            values |= {"allow": [*map(HexId, self.keys.guests)], "ledger": self.network.record.ledger}
            values |= {"patience": PATIENCE_SECONDS, "settles": False, "month_gb": 0}
            found[name] = write_relay(folder.relay_folder(name), key, values)
        return found

    def write_node(self, folder: RunFolder, node: StagedNode, flops: int, more: Mapping[str, Any]) -> Path:
        """A lender's configuration. `more`: how it deviates (local.network.demonstration)."""
        home = folder.home(node.role, node.number)
        _write_keys(home, node.key)
        record = self.network.record
        values = {
            "name": node.name,
            "node": _NODE,
            "genesis": f"../../{LEDGER}/genesis.bin",
            "folder": ".",
            "unit_price": self.network.unit_price,
            "stake": self.network.stake,
            "registers": False,
            "allow_modules": True,  # the job is the user's own
            "disk_floor": 0,  # looked at before the run starts
            "flops": flops,
            "ledger": record.ledger,
            "relays": record.relays if node.is_hidden else (),
        }
        return write_role_config(home / CONFIG, {**values, **more})


def _ledger(seats: Sequence[ListenerConfig]) -> LedgerConfig:
    first, *others = seats
    return LedgerConfig(first.peer, first.host, first.port, tuple(others))


def _write_keys(folder: Path, key: SigningKey) -> None:
    """An account, and the node key that its machine proves, where they are not there yet."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not is_there(folder / ACCOUNT):
        write_account(folder / ACCOUNT, key)
    if not is_there(folder / _NODE):
        write_own(folder / _NODE, machine_of(key))
