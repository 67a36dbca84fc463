"""Hires a funded job's providers and verifiers: collects their signed offers, and turns these into leases.

The market chooses from the asks that stand (market.match). Who is chosen and declines, or signs something else, counts
as if it had never asked: the rest is cleared anew, so that no decliner has set a price or kept a seat empty. The ledger
holds the price against the asks in its rows as they are in that block (ledger.rules.clearing); an ask that was changed
in between is left out, and the rest cleared once more.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from farflung.core import limits
from farflung.core.attestations import Attestation, is_of_lease
from farflung.core.codec import decode, encode
from farflung.core.crypto import NS_OFFER, is_signed
from farflung.core.errors import FarflungError, PolicyError, RunError, VerificationError
from farflung.core.events import ProcessExitEvent, ProviderMatchEvent, WarningEvent
from farflung.core.ids import Hash, PeerId, short
from farflung.core.money import Credits
from farflung.core.release import JOB_FORMAT, VERSION
from farflung.core.units import Seconds
from farflung.job.spec import JobTerms
from farflung.ledger.table_rows import LeaseRow, NodeRow
from farflung.ledger.transactions import ClearingPrice, JobSchedule, LeaseOffer, LeaseRole
from farflung.market import match as market
from farflung.market.provider_offer import OfferListing as Ask
from farflung.market.provider_offer import caps_hash, lasting
from farflung.net.io.connection import Connection
from farflung.peers.ledger_client.client import LedgerClient
from farflung.peers.protocol import messages
from farflung.peers.protocol.calls import Dial
from farflung.peers.protocol.directory import LIST, DirectoryListing, shown_version, sound, unread_versions
from farflung.peers.protocol.image_check import check_image
from farflung.peers.protocol.job_key import is_lease_key_signed
from farflung.peers.rundir.journal import EventEmitter

PROPOSALS: Final = 8  # times that those who declined are replaced: who lists many nodes that decline gains minutes
SHOWN: Final = 3  # refusals that an error names
SCHEDULES: Final = 3  # times that the ledger is asked, where asks were changed in between


class LeaseBudget(msgspec.Struct, frozen=True):
    """What the job may cost, and what it asks of those who work on it. Money in pico-credits."""

    unit_price: Credits
    escrow: Credits
    memory_bytes: int
    deadline: int  # ledger time, ms
    dataset_bytes: int
    answer: Seconds  # within which a verifier answers (plan.time)
    audit_units: int = 0  # tokens that each verifier may be paid for at most


class StandingAsks(msgspec.Struct, frozen=True):
    """Standing asks by role, and where everybody can be reached.

    `other_versions`: nodes that take no job of this format, by the farflung that each says it runs.
    """

    of: dict[LeaseRole, list[Ask]]
    addresses: dict[PeerId, messages.PeerAddress]
    other_versions: Mapping[str, int] = {}

    def with_named(self, names: Collection[PeerId]) -> StandingAsks:
        """The asks of a job that names its verifiers: nobody else checks, and no node of their owners trains. Of one
        owner all that are named are hired. None: all asks.
        """
        if not names:
            return self
        named = [ask for ask in self.of[LeaseRole.AUDIT] if ask.peer in names]
        apart = {*names, *(ask.whose for ask in named)}
        train = [ask for ask in self.of[LeaseRole.TRAIN] if ask.peer not in apart and ask.whose not in apart]
        audit = [msgspec.structs.replace(ask, owner=None) for ask in named]
        return msgspec.structs.replace(self, of={LeaseRole.TRAIN: train, LeaseRole.AUDIT: audit})

    @property
    def benchmarks(self) -> dict[PeerId, int]:
        """FLOP/s that each provider offers, all threads of its worker together."""
        return {a.peer: a.capabilities.flops * a.capabilities.threads for a in self.of[LeaseRole.TRAIN]}

    @property
    def versions_text(self) -> str:
        """`3 nodes run farflung 0.1.0, and this job needs 0.2.0`; empty where all nodes take its format."""
        return "; ".join(
            f"{count} {'node runs' if count == 1 else 'nodes run'} farflung {version},"
            f" and this job is of farflung {VERSION} (job format {JOB_FORMAT})"
            for version, count in sorted(self.other_versions.items())
        )


class LeaseHolders(msgspec.Struct, frozen=True):
    """Who signed, ascending, the keys that their leases' secrets are wrapped for, and what they say they run."""

    members: list[PeerId]
    verifiers: list[PeerId]
    keys: dict[PeerId, bytes]
    attested: dict[PeerId, Attestation] = {}


async def read_asks(ledger: LedgerClient, directory: Connection) -> StandingAsks:
    """Standing asks: price and stake from the ledger, role, capabilities and address from the directory.

    Who advertises another kind of machine than its row names is left out, and who takes no job of this format.
    """
    listing = decode(await directory.call(LIST, b""), DirectoryListing, limits.CONTROL_BYTES)
    nodes = {node.node: node for node in await ledger.nodes()}
    of: dict[LeaseRole, list[Ask]] = {role: [] for role in LeaseRole}
    addresses = {}
    others = Counter(unread_versions(listing))
    for advertisement in sound(listing, time.time()):
        record, said = advertisement.endpoint, advertisement.capabilities
        if (node := nodes.get(record.peer)) is not None and node.caps != caps_hash(lasting(said)):
            continue
        addresses[record.peer] = messages.PeerAddress(record.peer, record.places)
        if JOB_FORMAT not in advertisement.formats:
            others[shown_version(advertisement.version)] += 1
        elif node is not None:
            price, stake = Credits(node.unit_price), Credits(node.free)
            owner = advertisement.owner.account if advertisement.owner is not None else None
            of[advertisement.role].append(Ask(record.peer, price, stake, said, owner=owner))
    return StandingAsks(of, addresses, others)


class RoleOffers(msgspec.Struct, frozen=True):
    """What one role's nodes signed: all at one price, which is the ask of `setter`."""

    offered: dict[PeerId, messages.LeaseOfferReply]
    price: Credits
    setter: PeerId


async def hire(
    ledger: LedgerClient, terms: JobTerms, budget: LeaseBudget, asks: StandingAsks, dial: Dial, journal: EventEmitter
) -> LeaseHolders:
    """Those of the job's leases, or the cheapest similar ones that sign, leased now by one transaction.

    Raises PolicyError FF-MARK-001 where too few ask, RunError FF-APP-061 where nobody signs.
    """
    asks = asks.with_named(terms.spec.named_verifiers)
    leases = [lease for lease in await ledger.leases(terms.id) if lease.is_open]
    negotiation = LeaseNegotiation(ledger.chain, terms, budget, dial, journal)
    negotiation.left_out = asks.versions_text
    taken = await (negotiation.renew(leases) if leases else _lease(ledger, negotiation, asks))
    train, audit = (taken.get(role) for role in (LeaseRole.TRAIN, LeaseRole.AUDIT))
    if train is None or not train.offered:
        raise negotiation.nobody()
    offered = train.offered | (audit.offered if audit else {})
    hired = LeaseHolders(
        sorted(train.offered),
        sorted(audit.offered if audit else ()),
        {peer: said.lease_key for peer, said in offered.items()},
        {peer: said.attestation for peer, said in offered.items()},
    )
    missing = negotiation.shortage(taken) if not leases else None
    if missing is not None:
        journal.emit(missing)
    count = len(asks.of[LeaseRole.TRAIN])
    journal.emit(ProviderMatchEvent(peers=tuple(p.hex() for p in hired.members), offers=count, unit_price=train.price))
    return hired


async def _lease(
    ledger: LedgerClient, negotiation: LeaseNegotiation, asks: StandingAsks
) -> dict[LeaseRole, RoleOffers]:
    """Has offers signed and leased; who changed what it asks before the block of the leases is left out."""
    known = market.one_role_each(
        {role: asks.of[role] for role in LeaseRole if negotiation.counts[role]}, negotiation.counts
    )
    for role, listings in known.items():
        try:
            market.match(negotiation.request(role), listings)
        except PolicyError as error:
            causes = "; ".join(filter(None, (error.cause, negotiation.left_out)))
            raise PolicyError(error.code, error.message, cause=causes, hint=error.hint) from error
    for left in reversed(range(SCHEDULES)):
        taken = {role: await negotiation.take(role, listings) for role, listings in known.items()}
        try:
            if not taken[LeaseRole.TRAIN].offered:
                raise negotiation.nobody()
            await ledger.submit(_schedule(negotiation.terms.id, taken))
        except RunError:
            still = _unchanged(known, await ledger.nodes(), negotiation.terms.stake)
            if not left or still == known:
                await negotiation.dismiss(())
                raise
            known = still
        else:
            await negotiation.dismiss([peer for offers in taken.values() for peer in offers.offered])
            break
    return taken


def _schedule(job: Hash, taken: dict[LeaseRole, RoleOffers]) -> JobSchedule:
    offered = {peer: said for offers in taken.values() for peer, said in offers.offered.items()}
    clearings = tuple(ClearingPrice(role, offers.setter) for role, offers in sorted(taken.items()) if offers.offered)
    return JobSchedule(job, tuple(offered[peer].offer for peer in sorted(offered)), clearings)


def _unchanged(known: dict[LeaseRole, list[Ask]], rows: Iterable[NodeRow], stake: int) -> dict[LeaseRole, list[Ask]]:
    """The asks that are in the rows as they were read, with stake enough."""
    now = {row.node: row for row in rows}
    return {
        role: [
            ask
            for ask in listings
            if (row := now.get(ask.peer)) and (row.unit_price, row.free >= stake) == (ask.unit_price, True)
        ]
        for role, listings in known.items()
    }


class LeaseNegotiation:
    """Proposes the leases of one job, and remembers who signed what."""

    def __init__(self, chain: Hash, terms: JobTerms, budget: LeaseBudget, dial: Dial, journal: EventEmitter) -> None:
        self._chain, self.terms, self._budget, self._dial, self._journal = chain, terms, budget, dial, journal
        self._signed: dict[PeerId, messages.LeaseOfferReply] = {}
        self._refusals: dict[PeerId, str] = {}
        self.left_out = ""  # why nodes were not asked
        network = terms.spec.network
        self.counts = {
            LeaseRole.TRAIN: network.providers,
            LeaseRole.AUDIT: network.verifiers if terms.spec.is_audited else 0,
        }

    def request(self, role: LeaseRole) -> market.MatchRequest:
        """What the market is asked for."""
        members, budget, stake = self.counts[role], self._budget, Credits(self.terms.stake)
        return market.MatchRequest(self.terms.id, members, budget.unit_price, budget.memory_bytes, stake=stake)

    async def take(self, role: LeaseRole, listings: Sequence[Ask]) -> RoleOffers:
        """Offers of the cheapest similar nodes that sign, at the price that the rest of the asks sets.

        Fewer than are asked for where no more sign; none: nobody did.
        """
        left = list(listings)
        found = _fewer(self.request(role), left)
        taken = RoleOffers({}, Credits(0), self.terms.requester)
        for _ in range(PROPOSALS):
            if found is None:
                break
            await self._agree(role, found)
            offered = {peer: self._signed[peer] for peer in found.peers if peer in self._signed}
            taken = RoleOffers(offered, found.unit_price, found.setter)
            if len(offered) == len(found.peers):
                break
            left = [ask for ask in left if ask.peer not in found.peers or ask.peer in offered]
            found = _fewer(self.request(role), left)
        return taken

    async def _agree(self, role: LeaseRole, found: market.Match) -> None:
        """Asks those that were found, and have not signed at this price."""
        price, units = found.unit_price, self._units(role)
        asked = {
            peer: self._proposal(role, price, units)
            for peer in found.peers
            if peer not in self._signed or self._signed[peer].offer.offer.unit_price != price
        }
        for peer in asked:
            self._signed.pop(peer, None)
        self._signed |= await self._propose_all(asked)

    async def renew(self, leases: Sequence[LeaseRow]) -> dict[LeaseRole, RoleOffers]:
        """The nodes of open leases, at what these say."""
        asked = {x.node: self._proposal(x.role, x.unit_price, x.units_max) for x in leases}
        offered = await self._propose_all(asked)
        taken = {}
        for role in LeaseRole:
            mine = {p: said for p, said in offered.items() if asked[p].role is role}
            price = next((x.unit_price for x in leases if x.role is role), 0)
            taken[role] = RoleOffers(mine, Credits(price), self.terms.requester)
        return taken

    async def again(self, lease: LeaseRow) -> messages.LeaseOfferReply:
        """One node of an open lease."""
        asked = self._proposal(lease.role, lease.unit_price, lease.units_max)
        return await self._propose(lease.node, asked)

    async def dismiss(self, kept: Iterable[PeerId]) -> None:
        """Tells those who signed and are not among `kept` that their slots are free."""
        await dismiss(self._dial, self.terms.id, self._signed.keys() - set(kept))

    def nobody(self) -> RunError:
        """Nobody signed: what those who were asked answered."""
        refusals = [*self._refusals.values()]
        more = f"; and {len(refusals) - SHOWN} more" if len(refusals) > SHOWN else ""
        return RunError(
            "FF-APP-061",
            "no provider took the job",
            cause=("; ".join(refusals[:SHOWN]) + more)[:400] or self.left_out or "no ask fits the job",
            hint="wait for other providers, or change what their answers name: price, stake, memory or module",
        )

    def shortage(self, taken: Mapping[LeaseRole, RoleOffers]) -> WarningEvent | None:
        """What to say where fewer signed than the job asks for; None: all are there."""
        words = {LeaseRole.TRAIN: "providers", LeaseRole.AUDIT: "verifiers"}
        have = {role: len(taken[role].offered) if role in taken else 0 for role in self.counts}
        short_of = [
            f"{have[role]} of {count} {words[role]}" for role, count in self.counts.items() if have[role] < count
        ]
        if not short_of:
            return None
        why = "; ".join([*self._refusals.values()][:SHOWN]) or self.left_out or "no more are online and alike"
        return WarningEvent(
            code="FF-APP-561",
            message=f"the job begins with {' and '.join(short_of)}: {why}"[:400],
            hint="stop it and run again when more are online, or let it go on with these",
        )

    def _units(self, role: LeaseRole) -> int:
        spec = self.terms.spec
        return spec.rounds * spec.round_tokens if role is LeaseRole.TRAIN else self._budget.audit_units

    def _proposal(self, role: LeaseRole, price: int, units: int) -> messages.LeaseOfferRequest:
        money = (price, self.terms.stake, units, self._budget.deadline)
        sizes = self._budget.dataset_bytes, self._budget.memory_bytes
        return messages.LeaseOfferRequest(JOB_FORMAT, self._chain, self.terms, *sizes, *money, role)

    async def _propose_all(
        self, proposals: dict[PeerId, messages.LeaseOfferRequest]
    ) -> dict[PeerId, messages.LeaseOfferReply]:
        replies = await asyncio.gather(
            *(self._propose(p, proposal) for p, proposal in proposals.items()), return_exceptions=True
        )
        offered: dict[PeerId, messages.LeaseOfferReply] = {}
        for peer, reply in zip(proposals, replies, strict=True):
            if isinstance(reply, messages.LeaseOfferReply):
                offered[peer] = reply
            elif isinstance(reply, FarflungError):
                self._refusals[peer] = f"{short(peer)}: {reply.code} {reply.message}"
                self._journal.emit(ProcessExitEvent(peer=peer.hex(), reason=f"{reply.code} {reply.message}"))
            else:
                raise RunError("FF-APP-062", "a provider's answer is no offer", cause=str(reply)[:200])
        return offered

    async def _propose(self, peer: PeerId, proposal: messages.LeaseOfferRequest) -> messages.LeaseOfferReply:
        connection = await self._dial(peer)
        data = await connection.call(messages.PROPOSE, encode(proposal))
        offered = decode(data, messages.LeaseOfferReply, limits.CONTROL_BYTES)
        signed, job = offered.offer, proposal.terms.id
        money = (proposal.unit_price, proposal.stake, proposal.units_max, proposal.expires)
        asked = LeaseOffer(proposal.chain, job, peer, *money, proposal.role, signed.offer.attests)
        if signed.offer != asked or not is_signed(peer, signed.signature, NS_OFFER, encode(asked)):
            # one bad offer would make the ledger refuse them all
            raise VerificationError("FF-APP-063", "a provider signed another offer than the one proposed")
        if not is_lease_key_signed(peer, offered.signature, job, offered.lease_key):
            raise VerificationError("FF-APP-063", "a lease key is not signed by its node")
        if not is_of_lease(offered.attestation, proposal.chain, job, peer, asked.attests):
            raise VerificationError("FF-APP-370", "a provider attests something else than its offer names")
        check_image(proposal.terms, lambda: offered.attestation.image)
        return offered


def _fewer(request: market.MatchRequest, listings: Sequence[Ask]) -> market.Match | None:
    """As many as are asked for, or as there are; None: nobody."""
    for members in range(min(request.members, len(listings)), 0, -1):
        with contextlib.suppress(PolicyError):
            return market.match(msgspec.structs.replace(request, members=members), listings)
    return None


async def dismiss(dial: Dial, job: Hash, peers: Iterable[PeerId]) -> None:
    """Tells nodes that the lease is over; one that is gone needs no telling."""
    for peer in sorted(peers):
        with contextlib.suppress(FarflungError):
            connection = await dial(peer)
            await connection.call(messages.END, encode(messages.LeaseEndRequest(job)))
