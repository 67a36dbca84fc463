"""Chooses before each round how its payloads reach all members, and compares predicted with measured seconds.

The coordinator's part. Members' lines are what they were seen to carry, before that what the network is said to have
(`NetworkAssumptions`). All here is told to people and enters no root: whichever way is chosen, the same payloads
are merged.

Taken are the slowest member's seconds from the order to reveal until its payload lies with a replica and here, and the
slowest member's seconds until it has all payloads of the others; training, checks and merging are not in it.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from farflung.core import limits
from farflung.core.codec import decode, encode
from farflung.core.crypto import NS_GROUP_KEY, SigningKey
from farflung.core.errors import FarflungError, NetworkError, VerificationError
from farflung.core.events import WarningEvent
from farflung.core.ids import PeerId
from farflung.core.units import Seconds
from farflung.net.certificates import Credential, credential_of
from farflung.net.endpoint_records import EndpointAddress
from farflung.net.io.multicast_member import GroupRendezvous
from farflung.net.messages import MessageKind
from farflung.net.multicast_groups import sign_roster
from farflung.peers.protocol import messages
from farflung.peers.protocol.calls import MemberCalls
from farflung.peers.requester.job_context import JobContext
from farflung.peers.transfer import objects
from farflung.peers.transfer.fanout import PayloadFanout, invitation
from farflung.plan import exchange_choice as plan
from farflung.plan.exchange_choice import ExchangeForecast, ExchangeMember, ExchangeWay
from farflung.plan.link_syntax import Link

HOME: Final = Link(20e6, 100e6, Seconds(0.04))  # of whom nobody says more
TRIPS: Final = 4  # what took less than so many round trips tells of them, not of the line
REMEMBERED: Final = 8  # transfers of which the fastest tells a line's rate
MOST_SECONDS: Final = 1e6
REST_SECONDS: Final = 60.0  # until all relays are asked again, when none had room for the whole group
# A member cannot join its group at the relay: refused, out of reach, or lost at once.
_NOT_THERE: Final = frozenset({"FF-NET-130", "FF-NET-131", "FF-NET-135"})


class NetworkAssumptions(NamedTuple):
    """What is said of the network before anything is measured. `places`: the relays that may serve the job's group."""

    member: Link = HOME
    requester: Link = HOME
    relay: Link | None = None
    places: tuple[EndpointAddress, ...] = ()
    is_relayed: bool = False


class ExchangeReport(NamedTuple):
    """One round's exchange, for people; no way: nothing is known of it. `payload`: bytes, the mean of its members'."""

    way: str = ""
    predicted: float = 0.0
    taken: float = 0.0
    payload: int = 0


class _RoundExchange:
    """One round's exchange."""

    def __init__(self, round: int, forecast: ExchangeForecast, via: PeerId | None, epoch: int) -> None:
        self.round, self.forecast, self.via, self.epoch = round, forecast, via, epoch
        self.revealed: dict[PeerId, float] = {}
        self.merged: dict[PeerId, float] = {}


class PayloadExchange:
    """One job's, for as long as its coordinator runs."""

    def __init__(
        self,
        own: SigningKey | Credential,
        job: JobContext,
        fanout: PayloadFanout,
        lease_keys: Mapping[PeerId, bytes],
        assumptions: NetworkAssumptions,
    ) -> None:
        """`own` signs the group's roster; `lease_keys`: what secrets of each member's lease are wrapped for now."""
        self._own, self._context, self._fanout = credential_of(own), job, fanout
        self._job, self._me = job.terms.id, self._own.account
        self._lease_keys, self._assumptions = lease_keys, assumptions
        self._round: _RoundExchange | None = None
        self._sizes: dict[PeerId, int] = {}
        self._ups: dict[PeerId, deque[float]] = {}
        self._downs: dict[PeerId, deque[float]] = {}
        self._invited: dict[PeerId, int] = {}  # to the epoch that each has joined
        self._members: frozenset[PeerId] = frozenset()
        self._rendezvous: GroupRendezvous | None = None
        self._places = deque(assumptions.places)  # the first is where the group meets
        self._gathering: asyncio.Task[None] | None = None
        self._has_warned = False
        self._rests_until = float("-inf")

    # The group

    def prepare(self, members: Sequence[PeerId], calls: MemberCalls) -> None:
        """Lets these, and nobody else, be in the group: a newer epoch with another key when they are not the same."""
        wanted = frozenset(members)
        is_under_way = self._gathering is not None and not self._gathering.done()
        if not self._places or len(wanted) >= limits.FAN_MEMBERS:
            return
        if wanted != self._members or self._rendezvous is None:
            if self._gathering is not None:
                self._gathering.cancel()
            self._members, self._rendezvous = wanted, self._new_rendezvous(self._places[0], wanted)
        elif is_under_way or self._has_joined(wanted) or time.monotonic() < self._rests_until:
            return
        self._gathering = asyncio.create_task(self._gather(self._rendezvous, calls))

    def _new_rendezvous(self, place: EndpointAddress, members: frozenset[PeerId]) -> GroupRendezvous:
        """Epochs follow the clock, so that a coordinator that takes over makes a newer one without asking."""
        known = 0 if self._rendezvous is None else self._rendezvous.roster.roster.epoch
        epoch = max(known + 1, int(time.time() * 1000))
        roster = sign_roster(self._own, self._job, epoch, (*members, self._me))
        key = self._own.node.secret(NS_GROUP_KEY, encode(roster.roster))
        return GroupRendezvous(place.relay, place.host, place.port, roster, key)

    async def _gather(self, rendezvous: GroupRendezvous, calls: MemberCalls) -> None:
        """Meets at the first relay that takes the group and each of its members; warns once if none does."""
        refusal: FarflungError
        for tried in range(len(self._places)):
            if tried:
                self._places.rotate(-1)
                self._rendezvous = rendezvous = self._new_rendezvous(self._places[0], self._members)
            try:
                await self._fanout.enter(rendezvous)
            except NetworkError as error:
                refusal = error
                continue
            refusals = await asyncio.gather(*(self._invite(peer, rendezvous, calls) for peer in self._members))
            missed = [each for each in refusals if each is not None]
            if not missed:
                self._rests_until = float("-inf")
                return
            refusal = missed[0]
            self._rests_until = time.monotonic() + REST_SECONDS  # so that one member leads no group around
        if not self._has_warned:
            self._warn(refusal.code, refusal.message, refusal.hint)

    async def _invite(self, peer: PeerId, rendezvous: GroupRendezvous, calls: MemberCalls) -> FarflungError | None:
        """Asks a member to join; why it cannot at that relay, if it says so."""
        epoch = rendezvous.roster.roster.epoch
        lease_key = self._lease_keys.get(peer)
        if lease_key is None or self._invited.get(peer) == epoch:
            return None
        try:
            said = encode(invitation(self._job, rendezvous, lease_key))
            await (await calls.dial(peer)).call(messages.ENTER, said)
        except FarflungError as error:
            # It takes part in the ordinary way; the next round asks it again.
            return error if error.code in _NOT_THERE else None
        self._invited[peer] = epoch
        return None

    def _has_joined(self, members: frozenset[PeerId]) -> bool:
        epoch = self._fanout.epoch
        return bool(epoch) and all(self._invited.get(peer) == epoch for peer in members)

    def _is_spoilt(self) -> bool:
        """Whether somebody between us and the others alters what they send: then that way is not taken any more."""
        if self._fanout.refusals and not self._has_warned:
            self._warn("FF-NET-133", "a group's frame is refused", "use another relay")
        return self._fanout.refusals > 0

    def _warn(self, code: str, message: str, hint: str) -> None:
        self._has_warned = True
        self._context.journal.emit(WarningEvent(code=code, message=message, hint=hint))

    def close(self) -> None:
        """The coordinator ends."""
        if self._gathering is not None:
            self._gathering.cancel()

    # The choice

    def _choose(self, round: int, in_round: Sequence[PeerId]) -> _RoundExchange:
        members = sorted(in_round)
        is_fan = self._has_joined(frozenset(members)) and not self._is_spoilt()
        known = plan.ExchangeRound(
            [ExchangeMember(self._link(peer), self._sizes.get(peer, self._context.payload_bytes)) for peer in members],
            self._assumptions.requester,
            self._assumptions.relay,
            self._assumptions.is_relayed,
        )
        forecast = plan.choose(known, may_fan=is_fan)
        via = None
        if forecast.way is ExchangeWay.PEER:
            via = self._me if forecast.via < 0 else members[forecast.via]
        return _RoundExchange(round, forecast, via, self._fanout.epoch if forecast.way is ExchangeWay.FAN else 0)

    def _link(self, peer: PeerId) -> Link:
        said = self._assumptions.member
        up, down = (max(found.get(peer, ()), default=0.0) for found in (self._ups, self._downs))
        return Link(up or said.up, down or said.down, said.round_trip)

    def _weigh(self, found: dict[PeerId, deque[float]], peer: PeerId, moved: messages.TransferMeasurement) -> float:
        """Takes a member's word for what its line carried; its seconds, 0 if they are none."""
        if not 0 <= moved.seconds < MOST_SECONDS or not 0 <= moved.bytes <= limits.DATA_BYTES:
            return 0.0
        if moved.bytes and moved.seconds > TRIPS * self._assumptions.member.round_trip:
            rates = found.setdefault(peer, deque(maxlen=REMEMBERED))
            rates.append(8 * moved.bytes / moved.seconds)
        return moved.seconds

    # A round

    async def reveal(
        self, round: int, peer: PeerId, in_round: Sequence[PeerId], calls: MemberCalls
    ) -> messages.StoredContribution:
        """The peer's opened payload, replicated as the way wants it, or here when that replica is away."""
        if self._round is None or self._round.round != round:
            self._round = self._choose(round, in_round)
        exchange = self._round
        try:
            return await self._ask(exchange, peer, self._replica(exchange, peer, in_round), calls)
        except NetworkError as error:
            if error.code != objects.REPLICA_AWAY:
                raise
            return await self._ask(exchange, peer, self._me, calls)

    def _replica(self, exchange: _RoundExchange, peer: PeerId, in_round: Sequence[PeerId]) -> PeerId:
        if exchange.via is not None and exchange.via != peer:
            return exchange.via
        ring = sorted(in_round)
        following = ring[(ring.index(peer) + 1) % len(ring)] if peer in ring else peer
        return following if following != peer else self._me

    async def _ask(
        self, exchange: _RoundExchange, peer: PeerId, replica: PeerId, calls: MemberCalls
    ) -> messages.StoredContribution:
        request = messages.RevealRequest(self._job, exchange.round, replica, exchange.epoch)
        data = await calls.ask(peer, messages.REVEAL, encode(request))
        shown = decode(data, messages.RevealReply, limits.CONTROL_BYTES)
        if shown.share.replica != replica:  # it goes on to all members
            raise VerificationError("FF-APP-054", "a payload is not the one that was committed")
        exchange.revealed[peer] = self._weigh(self._ups, peer, shown.moved)
        return shown.share

    async def bring(self, share: messages.StoredContribution, calls: MemberCalls) -> None:
        """An accepted payload into the own store: by the group, or from its maker and its replica."""
        peer, exchange, began = share.contribution.peer, self._round, time.monotonic()
        if exchange is not None and exchange.epoch:
            await self._fanout.held(share.manifest.id)
        sources = (share.replica, peer) if exchange is not None and exchange.via else (peer, share.replica)
        others = tuple(p for p in sources if p != self._me)

        async def fetch() -> None:
            await objects.fetch(
                self._context.archive.disk, share.manifest, others, calls.dial, MessageKind.SYNC, patience=0.0
            )

        await calls.patiently(peer, fetch)
        self._sizes[peer] = share.manifest.size
        if exchange is not None:
            exchange.revealed[peer] = exchange.revealed.get(peer, 0.0) + time.monotonic() - began

    def order(self, round: int, shares: tuple[messages.StoredContribution, ...]) -> messages.MergeRequest:
        """What a member is told to merge, and how it gets it."""
        exchange = self._round if self._round is not None and self._round.round == round else None
        is_fan = exchange is not None and bool(exchange.epoch)
        return messages.MergeRequest(
            self._job, round, shares, is_fan, exchange is not None and exchange.via is not None
        )

    def merged(self, round: int, peer: PeerId, merged: messages.MergeReply) -> None:
        """A member has all payloads; and it is in the group, or else asked anew: its relay hung, or went away."""
        if self._invited.get(peer, merged.fan) != merged.fan:
            del self._invited[peer]
        seconds = self._weigh(self._downs, peer, merged.moved)
        if self._round is not None and self._round.round == round:
            self._round.merged[peer] = seconds

    def told(self, round: int) -> ExchangeReport:
        """What the exchange of a round was predicted to take, and took."""
        exchange = self._round
        if exchange is None or exchange.round != round or not exchange.revealed:
            return ExchangeReport()
        taken = max(exchange.revealed.values()) + max(exchange.merged.values(), default=0.0)
        sizes = [self._sizes[peer] for peer in exchange.revealed]
        return ExchangeReport(exchange.forecast.way.value, exchange.forecast.seconds, taken, sum(sizes) // len(sizes))
