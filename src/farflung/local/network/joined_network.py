"""Configures a run on a network that others keep: the run starts nothing but its requester."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from farflung.core.codec import encode
from farflung.core.crypto import SigningKey
from farflung.core.ids import PeerId
from farflung.core.money import Credits, parse_credits
from farflung.core.units import Seconds
from farflung.job.spec import JobSpec
from farflung.ledger.block import Genesis
from farflung.ledger.table_rows import LeaseRow
from farflung.local.network.placement import LINE, MBIT, LoopbackPlacement
from farflung.local.network.process_config import ProcessAddress
from farflung.net.certificates import Credential
from farflung.net.io.listen_errors import LOOPBACK
from farflung.peers.node.lan_discovery import own_address
from farflung.peers.process.channel import RELAY, REQUESTER, Report, relay_names
from farflung.peers.process.config import ListenerConfig
from farflung.peers.rundir.network_record import NetworkRecord, node_name
from farflung.plan.exchange_paths import RunLinks
from farflung.plan.link_syntax import Link

_TOLD: Final = "{}: what is assumed of every line of a network, none of which this computer can measure"


class RemotePlacement(LoopbackPlacement):
    """Nodes, relays and ledger are wherever they are; only the requester is on this computer."""

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
    """One network as a run on it sees it; the counterpart of process_config.LocalNetwork."""

    providers: Mapping[str, PeerId] = MappingProxyType({})  # the run starts none
    verifiers: Mapping[str, PeerId] = MappingProxyType({})
    validators: Mapping[str, PeerId] = MappingProxyType({})

    def __init__(self, spec: JobSpec, account: SigningKey, genesis: Genesis, record: NetworkRecord) -> None:
        self.spec, self.account, self.genesis, self.record = spec, account, genesis, record
        self.credential = Credential(account)
        self.unit_price, self.stake = parse_credits(spec.unit_price), Credits(record.stake)
        self.ledger, self.relay_addresses = (
            _address(record.ledger, record.ledger.others),
            [*map(_address, record.relays)],
        )
        names = relay_names(len(record.relays))
        self.relays = {name: PeerId(bytes(one.peer)) for name, one in zip(names, record.relays, strict=True)}
        self.placement = RemotePlacement(own_address(record.ledger.host, record.ledger.port) or LOOPBACK)

    @property
    def relay_price(self) -> int:
        """What each relay is paid, in micro-credits a GiB; 0: nothing, or there is none."""
        return self.record.relay_price if self.relays else 0

    @property
    def reached(self) -> JobSpec:
        """The job, for plans: how its nodes are reached is known when they are hired."""
        return self.spec

    def parties(self, leases: Iterable[LeaseRow]) -> dict[str, PeerId]:
        """All that the job may pay or refund, by the name of the receipt."""
        return {REQUESTER: self.account.public, **{node_name(lease.node): lease.node for lease in leases}}

    def requester(self, root: str, ledger: ProcessAddress, relays: Iterable[ProcessAddress]) -> Report:
        """The requester's configuration, but for what the plan says."""
        host = self.placement.host(REQUESTER)
        return {
            "name": REQUESTER,
            "key": self.account.seed.hex(),
            "genesis": encode(self.genesis).hex(),
            "host": LOOPBACK if self.relays else host,
            "port": self.spec.network.port,
            "root": root,
            "ledger": ledger.config,
            "relays": [relay.config for relay in relays],
            "relay_price": self.relay_price,
            "attaches": bool(self.relays),
            "lines": {
                "member": self.placement.line("provider-0"),
                "requester": self.placement.line(REQUESTER),
                "relay": self.placement.line(RELAY),
            },
            "relayed": bool(self.relays),
            "unit_price": self.unit_price,
            "deadline": self.record.deadline,
        }


def _address(one: ListenerConfig, others: Iterable[ListenerConfig] = ()) -> ProcessAddress:
    return ProcessAddress(PeerId(bytes(one.peer)), one.host, one.port, [_address(other) for other in others])
