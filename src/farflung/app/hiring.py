"""Hiring: from a funded job to providers that hold its data and public state and are ready to train."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from farflung.app import wire
from farflung.app.coordinator import Archive, Dial, accepted_by_round, as_failure
from farflung.app.directory import LIST, Listing, check_advertisement
from farflung.app.journal import Journal
from farflung.app.ledger_client import LedgerClient
from farflung.core import limits
from farflung.core.codec import decode, encode
from farflung.core.crypto import NS_OFFER, is_signed
from farflung.core.errors import FarflungError, RunError, VerificationError
from farflung.core.events import Joined, Left, Matched, Warned
from farflung.core.ids import PeerId
from farflung.core.money import Credits
from farflung.job.spec import Terms
from farflung.ledger.tx import JobSchedule, Offer, SignedOffer
from farflung.market import match as market
from farflung.market.offer import Listing as Ask
from farflung.net.io.connection import Connection
from farflung.store.objects import Manifest
from farflung.train.roundlog import Record
from farflung.train.snapshot import PublicState

WARNING_CHARACTERS = 300  # of what a provider says for people to read


class Budget(msgspec.Struct, frozen=True):
    """What the job may cost, and what it asks of each provider. Money in micro-credits."""

    unit_price: Credits
    escrow: Credits
    stake: Credits
    memory_bytes: int
    deadline: int  # ledger time, ms
    dataset_bytes: int


class Supplies(msgspec.Struct, frozen=True):
    """What a provider fetches from the requester before it can train."""

    job_key: bytes
    dataset: Manifest
    module: Manifest
    snapshot: Manifest
    snapshot_round: int


async def read_asks(
    ledger: LedgerClient, directory: Connection
) -> tuple[list[Ask], dict[PeerId, wire.Address]]:
    """Standing asks: price and stake from the ledger, capabilities and address from the directory."""
    listing = decode(await directory.call(LIST, b""), Listing, limits.CONTROL_BYTES)
    nodes = {node.node: node for node in await ledger.nodes()}
    asks, addresses = [], {}
    for advertisement in listing.advertisements:
        record = advertisement.endpoint
        check_advertisement(advertisement, record.peer)
        addresses[record.peer] = wire.Address(record.peer, record.host, record.port)
        if (node := nodes.get(record.peer)) is not None:
            price, stake = Credits(node.unit_price), Credits(node.free)
            asks.append(Ask(record.peer, price, stake, advertisement.capabilities))
    return asks, addresses


async def hire(
    ledger: LedgerClient, terms: Terms, budget: Budget, asks: Sequence[Ask], dial: Dial, journal: Journal
) -> list[PeerId]:
    """The job's members: those of its leases, or the cheapest similar ones, leased now by one transaction."""
    leases = await ledger.leases(terms.id)
    if leases:
        unit_price, peers = Credits(leases[0].unit_price), [lease.node for lease in leases]
    else:
        count = terms.spec.network.providers
        request = market.Request(count, budget.unit_price, budget.memory_bytes, stake=budget.stake)
        found = market.match(request, asks)
        unit_price, peers = found.unit_price, list(found.peers)
    units = terms.spec.rounds * terms.spec.round_tokens
    proposal = wire.Proposal(
        ledger.chain, terms, budget.dataset_bytes, unit_price, budget.stake, units, budget.deadline
    )
    replies = await asyncio.gather(*(_propose(dial, p, proposal) for p in peers), return_exceptions=True)
    offers = {p: r for p, r in zip(peers, replies, strict=True) if isinstance(r, SignedOffer)}
    for peer, reply in zip(peers, replies, strict=True):
        if not isinstance(reply, SignedOffer):
            _note_absent(journal, peer, reply)
    if not offers:
        raise RunError(
            "FF-APP-061", "no provider took the job", cause=str(replies[0])[:300], hint="look at the asks"
        )
    if not leases:
        await ledger.submit(JobSchedule(terms.id, tuple(offers[p] for p in sorted(offers))))
    journal.emit(
        Matched(peers=tuple(p.hex() for p in sorted(offers)), offers=len(asks), unit_price=unit_price)
    )
    return sorted(offers)


def _note_absent(journal: Journal, peer: PeerId, reply: BaseException | SignedOffer) -> None:
    if not isinstance(reply, FarflungError):
        raise RunError("FF-APP-062", "a provider's answer is no offer", cause=str(reply)[:200])
    journal.emit(Left(peer=peer.hex(), reason=f"{reply.code} {reply.message}"))


async def _propose(dial: Dial, peer: PeerId, proposal: wire.Proposal) -> SignedOffer:
    connection = await dial(peer)
    data = await connection.call(wire.PROPOSE, encode(proposal))
    signed = decode(data, SignedOffer, limits.CONTROL_BYTES)
    money = (proposal.unit_price, proposal.stake, proposal.units_max, proposal.expires)
    asked = Offer(proposal.chain, proposal.terms.id, peer, *money)
    if signed.offer != asked or not is_signed(peer, signed.signature, NS_OFFER, encode(asked)):
        # one bad offer would make the ledger refuse them all
        raise VerificationError("FF-APP-063", "a provider signed another offer than the one proposed")
    return signed


def replay_plan(
    archive: Archive, records: Sequence[Record], start: int, end: int
) -> tuple[wire.PastRound, ...]:
    """The closed rounds `start` .. `end - 1` as a joining peer replays them."""
    accepted = accepted_by_round(records)
    return tuple(
        wire.PastRound(round, tuple(archive.share(c) for c in accepted[round])) for round in range(start, end)
    )


async def start_members(
    terms: Terms,
    supplies: Supplies,
    replay: tuple[wire.PastRound, ...],
    public: PublicState,
    seats: Sequence[PeerId],
    wanted: Sequence[PeerId],
    members: Sequence[wire.Address],
    dial: Dial,
    journal: Journal,
) -> list[PeerId]:
    """Brings the wanted peers to `public`; the ones that got there. `seats` fixes each peer's index in the job."""

    async def start(peer: PeerId) -> PeerId:
        began = asyncio.get_running_loop().time()
        request = wire.Start(
            terms.id,
            supplies.job_key,
            seats.index(peer),
            tuple(members),
            supplies.dataset,
            supplies.module,
            supplies.snapshot,
            supplies.snapshot_round,
            replay,
        )
        connection = await dial(peer)
        data = await connection.call(wire.START, encode(request), timeout=None)
        started = decode(data, wire.Started, limits.CONTROL_BYTES)
        if started.root != public.root(terms.layout) or started.round != public.round:
            raise VerificationError("FF-APP-064", "a provider holds another public state than the log")
        if started.warning:
            code, _, message = started.warning.partition(": ")
            has_code = code.startswith("FF-") and bool(message)
            told = (message if has_code else started.warning)[:WARNING_CHARACTERS]
            journal.emit(Warned(code=code[:16] if has_code else "FF-APP-065", message=told))
        seconds = asyncio.get_running_loop().time() - began
        journal.emit(Joined(peer=peer.hex(), round=started.round, replayed=started.replayed, seconds=seconds))
        return peer

    replies = await asyncio.gather(*(start(p) for p in wanted), return_exceptions=True)
    ready: list[PeerId] = []
    errors: list[FarflungError] = []
    for peer, reply in zip(wanted, replies, strict=True):
        if isinstance(reply, FarflungError):
            journal.emit(Left(peer=peer.hex(), reason=f"{reply.code} {reply.message}"))
            errors.append(reply)
        elif isinstance(reply, BaseException):
            raise reply
        else:
            ready.append(peer)
    if not ready and errors:
        raise as_failure(errors[0])
    return ready
