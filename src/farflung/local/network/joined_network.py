"""Describes the network that a run is on, as its requester sees it: others keep it, or a stage here does."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from msgspec.structs import replace

from farflung.core.ids import PeerId
from farflung.core.money import Credits, parse_credits
from farflung.core.units import Seconds
from farflung.job.spec import JobSpec
from farflung.local.network.placement import LINE, MBIT, LoopbackPlacement
from farflung.net.io.listen_errors import LOOPBACK
from farflung.peers.network.account import account_file, own_account
from farflung.peers.node.lan_discovery import own_address
from farflung.peers.process.channel import RELAY, REQUESTER, relay_names
from farflung.peers.process.config import HexId
from farflung.peers.rundir.network_record import NetworkRecord
from farflung.plan.exchange_paths import RunLinks
from farflung.plan.link_syntax import Link

_TOLD: Final = "{}: what is assumed of every line of a network, none of which this computer can measure"


class RemotePlacement(LoopbackPlacement):
    """Nodes, relays and ledger are wherever they are; only the requester is on this computer."""

    is_dialled = False

    def __init__(self, host: str) -> None:
        """`host`: the address of this computer that the network sees, or loopback."""
        self._host = host

    def host(self, name: str) -> str:
        """Where the requester listens."""
        return self._host

    @property
    def network(self) -> RunLinks:
        """Everybody's line is taken for an ordinary home's."""
        link = Link(LINE.up * MBIT, LINE.down * MBIT, Seconds(LINE.rtt / 1e3))
        return RunLinks(link, requester=link, is_apart=True, told=_TOLD.format(link))


class JoinedNetwork:
    """One network as a run on it sees it."""

    def __init__(
        self,
        spec: JobSpec,
        record: NetworkRecord,
        account: PeerId,
        files: Mapping[str, str],
        placement: LoopbackPlacement,
        parties: Mapping[str, PeerId] = MappingProxyType({}),
    ) -> None:
        """`account`: the requester's. `files`: of its keys and the genesis, as its configuration names them. `parties`:
        the other accounts of a network that this run's stage keeps, by name; none: it is others'.
        """
        self.spec, self.record, self.account, self.placement = spec, record, account, placement
        self._files, self._parties = files, parties
        self.unit_price, self.stake = parse_credits(spec.unit_price), Credits(record.stake)

    @property
    def relays(self) -> dict[str, PeerId]:
        """The relays by name; none where nobody needs one."""
        found = self.record.relays
        return {name: PeerId(bytes(one.peer)) for name, one in zip(relay_names(len(found)), found, strict=True)}

    @property
    def relay_price(self) -> int:
        """What each relay is paid, in pico-credits a GiB; 0: nothing, or there is none."""
        return self.record.relay_price if self.record.relays else 0

    @property
    def reached(self) -> JobSpec:
        """The job as its network is reached, for plans: nobody reaches into a home. Its terms do not know of that."""
        if not self.placement.homes:
            return self.spec
        network = replace(self.spec.network, hidden=self.spec.network.providers)
        return replace(self.spec, network=network)

    def requester(self) -> dict[str, Any]:
        """The requester's configuration in the run's folder, but for what the plan says."""
        record, placement = self.record, self.placement
        attaches = bool(record.relays) and not placement.is_dialled
        return {
            **self._files,
            "root": ".",
            "host": LOOPBACK if attaches else placement.host(REQUESTER),
            "port": self.spec.network.port,
            "ledger": record.ledger,
            "relays": record.relays,
            "relay_price": self.relay_price,
            "attaches": attaches,
            "lines": {
                "member": placement.line("provider-0"),
                "requester": placement.line(REQUESTER),
                "relay": placement.line(RELAY),
            },
            "relayed": attaches or self.reached.hidden == self.spec.network.providers,
            "unit_price": self.unit_price,
            "deadline": record.deadline,
            "parties": {name: HexId(key) for name, key in self._parties.items()},
        }


def others_network(spec: JobSpec, record: NetworkRecord) -> JoinedNetwork:
    """A network that others keep, for this user's account. Raises what key files raise."""
    account, files = own_account().public, {"key": str(account_file()), "genesis": "genesis.bin"}
    placement = RemotePlacement(own_address(record.ledger.host, record.ledger.port) or LOOPBACK)
    return JoinedNetwork(spec, record, account, files, placement)
