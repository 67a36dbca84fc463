"""Hiring: from a funded job to providers and verifiers that hold its data and are ready to work."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import msgspec

from farflung.app import wire
from farflung.app.archive import Archive
from farflung.app.directory import LIST, Listing, sound
from farflung.app.journal import Emitter
from farflung.app.ledger_client import LedgerClient
from farflung.app.lines import Dial
from farflung.app.policy import check_image
from farflung.app.wrapping import is_lease_key_signed, wrap
from farflung.core import limits
from farflung.core.attestations import Attestation, is_of_lease
from farflung.core.codec import decode, encode
from farflung.core.crypto import NS_OFFER, is_signed
from farflung.core.errors import FarflungError, PolicyError, RunError, VerificationError
from farflung.core.events import Joined, Left, Matched, Warned
from farflung.core.ids import Hash, PeerId
from farflung.core.money import Credits
from farflung.core.tolls import SignedPass
from farflung.core.units import Seconds
from farflung.job.spec import Terms
from farflung.ledger.tx import JobSchedule, Offer, Role
from farflung.market import match as market
from farflung.market.offer import Listing as Ask
from farflung.net.io.connection import Connection
from farflung.store.objects import Manifest
from farflung.train.roundlog import Record, accepted_by_round

Passes = Callable[[], tuple[SignedPass, ...]]

WARNING_CHARACTERS = 300  # of what a provider says for people to read


class Budget(msgspec.Struct, frozen=True):
    """What the job may cost, and what it asks of those who work on it. Money in micro-credits."""

    unit_price: Credits
    escrow: Credits
    memory_bytes: int
    deadline: int  # ledger time, ms
    dataset_bytes: int
    answer: Seconds  # within which a verifier answers (plan.time)
    audit_units: int = 0  # tokens that each verifier may be paid for at most


class Supplies(msgspec.Struct, frozen=True):
    """What a provider fetches from the requester before it can train."""

    dataset: Manifest
    module: Manifest
    graph: Manifest
    snapshot: Manifest
    snapshot_round: int


class Asks(msgspec.Struct, frozen=True):
    """Standing asks by role, and where everybody can be reached."""

    of: dict[Role, list[Ask]]
    addresses: dict[PeerId, wire.Address]

    @property
    def benchmarks(self) -> dict[PeerId, int]:
        """FLOP/s that each provider offers, all threads of its worker together."""
        return {a.peer: a.capabilities.flops * a.capabilities.threads for a in self.of[Role.TRAIN]}


class Hired(msgspec.Struct, frozen=True):
    """Who signed, ascending, the keys that their leases' secrets are wrapped for, and what they say they run."""

    members: list[PeerId]
    verifiers: list[PeerId]
    keys: dict[PeerId, bytes]
    attested: dict[PeerId, Attestation] = {}


async def read_asks(ledger: LedgerClient, directory: Connection) -> Asks:
    """Standing asks: price and stake from the ledger, role, capabilities and address from the directory."""
    listing = decode(await directory.call(LIST, b""), Listing, limits.CONTROL_BYTES)
    nodes = {node.node: node for node in await ledger.nodes()}
    of: dict[Role, list[Ask]] = {role: [] for role in Role}
    addresses = {}
    for advertisement in sound(listing, time.time()):
        record = advertisement.endpoint
        addresses[record.peer] = wire.Address(record.peer, record.places)
        if (node := nodes.get(record.peer)) is not None:
            price, stake = Credits(node.unit_price), Credits(node.free)
            of[advertisement.role].append(Ask(record.peer, price, stake, advertisement.capabilities))
    return Asks(of, addresses)


async def hire(
    ledger: LedgerClient, terms: Terms, budget: Budget, asks: Asks, dial: Dial, journal: Emitter
) -> Hired:
    """Those of the job's leases, or the cheapest similar ones, leased now by one transaction."""
    leases = [lease for lease in await ledger.leases(terms.id) if lease.is_open]
    network, is_new = terms.spec.network, not leases
    counts = {Role.TRAIN: network.providers, Role.AUDIT: network.verifiers if terms.spec.is_audited else 0}
    proposals: dict[PeerId, wire.Proposal] = {}
    price, stake = Credits(0), Credits(terms.stake)
    for role in [role for role in Role if is_new and counts[role]]:
        request = market.Request(counts[role], budget.unit_price, budget.memory_bytes, stake=stake)
        found = market.match(request, asks.of[role])
        price = max(price, found.unit_price)
        units = _units(terms, budget, role)
        proposals |= {p: _proposal(ledger, terms, budget, role, found.unit_price, units) for p in found.peers}
    for lease in leases:
        proposals[lease.node] = _proposal(
            ledger, terms, budget, lease.role, lease.unit_price, lease.units_max
        )
        price = Credits(lease.unit_price)
    offered = await _propose_all(dial, proposals, journal)
    if not any(proposals[p].role is Role.TRAIN for p in offered):
        raise RunError("FF-APP-061", "no provider took the job", hint="look at the asks")
    if is_new:
        await ledger.submit(JobSchedule(terms.id, tuple(offered[p].offer for p in sorted(offered))))
    by = {role: sorted(p for p in offered if proposals[p].role is role) for role in Role}
    keys = {p: o.lease_key for p, o in offered.items()}
    hired = Hired(by[Role.TRAIN], by[Role.AUDIT], keys, {p: o.attestation for p, o in offered.items()})
    count = len(asks.of[Role.TRAIN])
    journal.emit(Matched(peers=tuple(p.hex() for p in hired.members), offers=count, unit_price=price))
    return hired


def _units(terms: Terms, budget: Budget, role: Role) -> int:
    return terms.spec.rounds * terms.spec.round_tokens if role is Role.TRAIN else budget.audit_units


def _proposal(
    ledger: LedgerClient, terms: Terms, budget: Budget, role: Role, price: int, units: int
) -> wire.Proposal:
    money = (price, terms.stake, units, budget.deadline)
    return wire.Proposal(ledger.chain, terms, budget.dataset_bytes, *money, role)


async def again(ledger: LedgerClient, terms: Terms, budget: Budget, peer: PeerId, dial: Dial) -> wire.Offered:
    """Proposes an open lease of the job to its node once more, after it died.

    Raises NetworkError when it is not back yet, PolicyError FF-APP-091 when its lease is closed.
    """
    lease = next((x for x in await ledger.leases(terms.id) if x.node == peer and x.is_open), None)
    if lease is None:
        raise PolicyError("FF-APP-091", "the peer holds no open lease in this job")
    proposal = _proposal(ledger, terms, budget, lease.role, lease.unit_price, lease.units_max)
    return await _propose(dial, peer, proposal)


async def _propose_all(
    dial: Dial, proposals: dict[PeerId, wire.Proposal], journal: Emitter
) -> dict[PeerId, wire.Offered]:
    replies = await asyncio.gather(
        *(_propose(dial, p, proposal) for p, proposal in proposals.items()), return_exceptions=True
    )
    offered: dict[PeerId, wire.Offered] = {}
    for peer, reply in zip(proposals, replies, strict=True):
        if isinstance(reply, wire.Offered):
            offered[peer] = reply
        elif isinstance(reply, FarflungError):
            journal.emit(Left(peer=peer.hex(), reason=f"{reply.code} {reply.message}"))
        else:
            raise RunError("FF-APP-062", "a provider's answer is no offer", cause=str(reply)[:200])
    return offered


async def _propose(dial: Dial, peer: PeerId, proposal: wire.Proposal) -> wire.Offered:
    connection = await dial(peer)
    data = await connection.call(wire.PROPOSE, encode(proposal))
    offered = decode(data, wire.Offered, limits.CONTROL_BYTES)
    signed, job = offered.offer, proposal.terms.id
    money = (proposal.unit_price, proposal.stake, proposal.units_max, proposal.expires)
    asked = Offer(proposal.chain, job, peer, *money, proposal.role, signed.offer.attests)
    if signed.offer != asked or not is_signed(peer, signed.signature, NS_OFFER, encode(asked)):
        # one bad offer would make the ledger refuse them all
        raise VerificationError("FF-APP-063", "a provider signed another offer than the one proposed")
    if not is_lease_key_signed(peer, offered.signature, job, offered.lease_key):
        raise VerificationError("FF-APP-063", "a lease key is not signed by its node")
    if not is_of_lease(offered.attestation, proposal.chain, job, peer, asked.attests):
        raise VerificationError("FF-APP-370", "a provider attests something else than its offer names")
    check_image(proposal.terms, lambda: offered.attestation.image)
    return offered


def replay_plan(
    archive: Archive, records: Sequence[Record], start: int, end: int
) -> tuple[wire.PastRound, ...]:
    """The closed rounds `start` .. `end - 1` as a joining peer replays them."""
    accepted = accepted_by_round(records)
    return tuple(
        wire.PastRound(round, tuple(archive.share(c) for c in accepted[round])) for round in range(start, end)
    )


class Starter:
    """Brings leased nodes to where the job stands."""

    def __init__(
        self,
        terms: Terms,
        seats: Sequence[PeerId],
        dial: Dial,
        journal: Emitter,
        job_key: bytes,
        passes: Passes = lambda: (),
    ) -> None:
        """`seats` fixes each peer's index in the job; `passes`: what each node shows at relays."""
        self._terms, self.seats, self._dial, self._journal = terms, seats, dial, journal
        self._job_key, self._passes = job_key, passes
        self.members: tuple[wire.Address, ...] = ()  # who may fetch and leave objects
        self.everybody: tuple[wire.Address, ...] = ()  # those that are out included: verifiers may need them
        self.verifiers: tuple[PeerId, ...] = ()
        self.lease_keys: dict[PeerId, bytes] = {}  # what secrets of each member's lease are wrapped for
        self.attested: dict[
            PeerId, Hash
        ] = {}  # hash of what each node says it runs, as it last offered itself

    async def member(
        self,
        peer: PeerId,
        lease_key: bytes,
        supplies: Supplies,
        replay: tuple[wire.PastRound, ...],
        root: Hash,
    ) -> None:
        """Brings a provider to the public state under `root`. Raises VerificationError FF-APP-064."""
        began = asyncio.get_running_loop().time()
        seat = self.seats.index(peer)
        started = await self._start(peer, seat, lease_key, self.members, supplies, replay)
        if started.root != root or started.round != supplies.snapshot_round + len(replay):
            raise VerificationError("FF-APP-064", "a provider holds another public state than the log")
        self.lease_keys[peer] = lease_key
        self._warn(started.warning)
        seconds = asyncio.get_running_loop().time() - began
        told = Joined(peer=peer.hex(), round=started.round, replayed=started.replayed, seconds=seconds)
        self._journal.emit(told)

    async def verifier(self, peer: PeerId, lease_key: bytes, supplies: Supplies) -> None:
        """Brings data to a verifier; public states come with the audits."""
        await self._start(peer, 0, lease_key, self.everybody, supplies, ())

    async def _start(
        self,
        peer: PeerId,
        seat: int,
        lease_key: bytes,
        members: tuple[wire.Address, ...],
        supplies: Supplies,
        replay: tuple[wire.PastRound, ...],
    ) -> wire.Started:
        job = self._terms.id
        request = wire.Start(
            job,
            wrap(lease_key, job, self._job_key),
            seat,
            members,
            self.verifiers,
            supplies.dataset,
            supplies.module,
            supplies.graph,
            supplies.snapshot,
            supplies.snapshot_round,
            replay,
        )
        connection = await self._dial(peer)
        if passes := self._passes():
            await connection.call(wire.PASSES, encode(wire.Passes(job, passes)))
        data = await connection.call(wire.START, encode(request), timeout=None)
        return decode(data, wire.Started, limits.CONTROL_BYTES)

    def _warn(self, warning: str) -> None:
        if warning:
            code, _, message = warning.partition(": ")
            has_code = code.startswith("FF-") and bool(message)
            told = (message if has_code else warning)[:WARNING_CHARACTERS]
            self._journal.emit(Warned(code=code[:16] if has_code else "FF-APP-065", message=told))


async def all_ready(
    work: dict[PeerId, Coroutine[Any, Any, None]], journal: Emitter
) -> tuple[list[PeerId], FarflungError | None]:
    """Waits for all; those that are ready, in order, and what one of the others failed with."""
    replies = await asyncio.gather(*work.values(), return_exceptions=True)
    ready: list[PeerId] = []
    error: FarflungError | None = None
    for peer, reply in zip(work, replies, strict=True):
        if isinstance(reply, FarflungError):
            journal.emit(Left(peer=peer.hex(), reason=f"{reply.code} {reply.message}"))
            error = error or reply
        elif isinstance(reply, BaseException):
            raise reply
        else:
            ready.append(peer)
    return ready, error
