"""Configures the processes of a whole network on this computer.

It has validators, relays, verifiers, providers with a worker each, and the requester.

Nothing in it is a stand-in: separate processes, real sockets, real signatures. It differs from a network of
strangers in one thing only: keys come from the run's seed and ledger time is counted, not read, so that two runs
with one seed give the same bits (docs/concepts/roundlog, law 4). Such keys are unsafe anywhere else.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from farflung.core.codec import encode
from farflung.core.crypto import SigningKey
from farflung.core.ids import PeerId
from farflung.core.money import parse_credits
from farflung.job.spec import JobSpec
from farflung.ledger.params import DAY_MS
from farflung.ledger.table_rows import LeaseRow
from farflung.local.network.placement import LoopbackPlacement
from farflung.net import endpoint_records as net
from farflung.peers.keys.files import key_text
from farflung.peers.ledger_client.quorum_read import PATIENCE_SECONDS
from farflung.peers.process.channel import RELAY, REQUESTER, Report, relay_names, validator_names
from farflung.peers.rundir.genesis import NetworkKeys, genesis_of, machine_of, stake_of

JOB_MS = 30 * DAY_MS


class ProcessAddress:
    """Where a process listens, as the others are told: its key, host and port; and `others` that do the same."""

    def __init__(self, peer: PeerId, host: str, port: int, others: Sequence[ProcessAddress] = ()) -> None:
        self.config: Report = {"peer": peer.hex(), "host": host, "port": port}
        if others:
            self.config["others"] = [other.config for other in others]
        self.places: list[tuple[PeerId, str, int]] = [
            (peer, host, port),
            *(place for other in others for place in other.places),
        ]
        self.of_net = net.EndpointAddress(host, port, peer)


class LocalNetwork:
    """What each process of a local network is given when it starts (see peers.process.channel: keys included)."""

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

        `relay_price`: micro-credits that each of them is paid for a GiB; 0: nothing. `validators`: of the ledger.
        `disputes`: whether its law has them.
        """
        self.placement = placement or LoopbackPlacement()
        self.spec, self.keys = spec, NetworkKeys(spec, relays, validators)
        self.genesis = genesis_of(spec, validators, disputes=disputes)
        self.unit_price, self.stake = parse_credits(spec.unit_price), stake_of(spec)
        self._relay_price = relay_price
        self.account, self.credential = self.keys.requester, machine_of(self.keys.requester)

    @property
    def providers(self) -> dict[str, PeerId]:
        """The providers that the run starts, by name."""
        return {f"provider-{i}": key.public for i, key in enumerate(self.keys.providers)}

    @property
    def verifiers(self) -> dict[str, PeerId]:
        """The verifiers that the run starts, by name."""
        return {f"verifier-{i}": key.public for i, key in enumerate(self.keys.verifiers)}

    def parties(self, leases: Iterable[LeaseRow]) -> dict[str, PeerId]:
        """All that the job may pay or refund, by the name of the receipt."""
        return self.keys.parties

    @property
    def relay_price(self) -> int:
        """What each relay is paid, in micro-credits a GiB; 0: nothing, or there is none."""
        return self._relay_price if self.relays else 0

    @property
    def relays(self) -> dict[str, PeerId]:
        """The relays by name; none where nobody needs one."""
        keys = self.keys.relays if self.reached.hidden else []
        return {name: key.public for name, key in zip(relay_names(len(keys)), keys, strict=True)}

    @property
    def validators(self) -> dict[str, PeerId]:
        """The ledger's validators by name."""
        keys = self.keys.validators
        return {name: key.public for name, key in zip(validator_names(len(keys)), keys, strict=True)}

    @property
    def reached(self) -> JobSpec:
        """The job as its network is reached, for plans: nobody reaches into a home. Its terms do not know of that."""
        if not self.placement.homes:
            return self.spec
        network = replace(self.spec.network, hidden=self.spec.network.providers)
        return replace(self.spec, network=network)

    def _base(self, name: str, key: SigningKey) -> Report:
        return {"name": name, "key": key.seed.hex(), "genesis": encode(self.genesis).hex(), "port": 0}

    def _machine(self, account: SigningKey) -> Report:
        return {"node": key_text(machine_of(account))}

    def ledger(self, index: int, folder: str) -> Report:
        """A validator's configuration."""
        name = validator_names(index + 1)[index]
        base = {**self._base(name, self.keys.validators[index]), "host": self.placement.host(name)}
        return {**base, "folder": folder, "local": True, "judges": 0}

    def relay(self, index: int, ledger: ProcessAddress | None = None, folder: str = "") -> Report:
        """A relay's configuration: whom it serves, its price, and where it hears of node keys that are withdrawn.

        `folder`: where it keeps what it may claim.
        """
        allow, key = [peer.hex() for peer in self.keys.guests], self.keys.relays[index]
        name = relay_names(index + 1)[index]
        base = {"name": name, "key": key.seed.hex(), "port": 0, "host": self.placement.host(name)}
        paid = {"ledger": ledger.config if ledger else None, "price": self.relay_price, "folder": folder}
        waits = {"patience": PATIENCE_SECONDS, "settles": False, "month_gb": 0}
        return {**base, "allow": allow, **paid, **waits}

    def node(self, name: str, key: SigningKey, folder: str, ledger: ProcessAddress, flops: int) -> Report:
        """What providers and verifiers have in common."""
        return {
            **self._base(name, key),
            **self._machine(key),
            "folder": folder,
            "ledger": ledger.config,
            "unit_price": self.unit_price,
            "stake": self.stake,
            "registers": False,
            "allow_modules": True,  # the job is the user's own
            "disk_floor": 0,  # looked at before the run starts
            "flops": flops,
        }

    def provider(
        self, index: int, folder: str, ledger: ProcessAddress, relays: Sequence[ProcessAddress], flops: int
    ) -> Report:
        """A provider's configuration: the first ones are reached at relays only."""
        return {
            **self.node(f"provider-{index}", self.keys.providers[index], folder, ledger, flops),
            "relays": [relay.config for relay in relays] if index < self.reached.hidden else [],
        }

    def verifier(
        self, index: int, folder: str, ledger: ProcessAddress, relays: Sequence[ProcessAddress], flops: int
    ) -> Report:
        """A verifier's configuration: one in a home stays at relays."""
        name = f"verifier-{index}"
        return {
            **self.node(name, self.keys.verifiers[index], folder, ledger, flops),
            "relays": [relay.config for relay in relays] if name in self.placement.homes else [],
        }

    def requester(self, root: str, ledger: ProcessAddress, relays: Sequence[ProcessAddress]) -> Report:
        """The requester's configuration, but for what the plan says."""
        return {
            **self._base(REQUESTER, self.keys.requester),
            **self._machine(self.keys.requester),
            "host": self.placement.host(REQUESTER),
            "root": root,
            "ledger": ledger.config,
            "relays": [relay.config for relay in relays],
            "relay_price": self.relay_price,
            "lines": {
                "member": self.placement.line("provider-0"),
                "requester": self.placement.line(REQUESTER),
                "relay": self.placement.line(RELAY),
            },
            "relayed": self.reached.hidden == self.spec.network.providers,
            "port": self.spec.network.port,
            "unit_price": self.unit_price,
            "deadline": JOB_MS,
        }
