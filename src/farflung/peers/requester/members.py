"""Tracks a job's members: the address of each, who is out, and who died and is being restarted."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final, Protocol
from weakref import WeakSet

from farflung.core.backoff import Backoff
from farflung.core.codec import encode
from farflung.core.errors import FarflungError, PolicyError
from farflung.core.events import WarningEvent
from farflung.core.ids import Hash, PeerId
from farflung.core.io.owned_tasks import OwnedTasks
from farflung.ledger.transactions import JobCoordinate
from farflung.net.endpoint_records import EndpointAddress
from farflung.net.io.connection import Connection
from farflung.net.io.path_manager import PathManager
from farflung.net.messages import RemoteError
from farflung.peers.ledger_client.client import LedgerClient
from farflung.peers.protocol import messages
from farflung.peers.protocol.calls import PATIENCE_SECONDS, is_lost_line, reach
from farflung.peers.requester.job_context import JobContext
from farflung.peers.requester.lease_negotiation import LeaseBudget, LeaseNegotiation, dismiss
from farflung.peers.requester.member_setup import MemberSetup, Passes, ProviderInputs
from farflung.train.public_state import PublicState

RETURN_SECONDS: Final = 0.25  # between tries to bring a member back
RETURN_TRIES: Final = 1200  # after which the pauses grow: a home that sleeps for a night is asked back, too
RETURN_LATER: Final = Backoff(RETURN_SECONDS, 5.0)
REFUSALS: Final = 5  # of a member that is there again: then it stays away
# Refusals that pass by themselves: leased to another job, unable to read the ledger, paused by its owner, a full disk,
# too far ahead of its pay.
NOT_NOW: Final = frozenset({"FF-APP-046", "FF-APP-571", "FF-APP-575", "FF-APP-576", "FF-APP-710"})
LEFT: Final = "FF-APP-091"  # its lease is over, or it gave notice: it never comes back
NOT_NOW_PAUSE: Final = 5.0  # seconds before a member that is there, and said so, is asked again
LOOK_TRIES: Final = 60  # tries without an answer, after which the directory is read: it may be elsewhere now
# Said by a node that was started again: it is there, and knows nothing of the lease.
NO_LEASE: Final = "FF-APP-041"
RELAY_SECONDS: Final = 8.0  # a member behind a relay that died is waited for so long

ReadAddresses = Callable[[], Awaitable[Mapping[PeerId, messages.PeerAddress]]]
Vouch = Callable[[PeerId], Awaitable[None]]  # lets a node that is back have its newest voucher
SuppliesOf = Callable[[int], tuple[ProviderInputs, tuple[messages.PastRound, ...]]]


class MembershipEvents(Protocol):
    """Who counts the members (peers.requester.coordinator): a peer that died is brought back to it."""

    def may_join(self, peer: PeerId) -> bool:
        """Whether a peer is missed."""

    def state_for(self, peer: PeerId) -> PublicState:
        """The public state with which a peer goes on."""

    async def join(self, peer: PeerId, round: int) -> None:
        """A peer holds the public state of `round`."""

    def lose(self, peer: PeerId, reason: str) -> None:
        """Evidence that a member is gone."""


async def _no_voucher(_peer: PeerId) -> None:
    """Nobody issues any."""


class Membership:
    """The nodes of one job, as its requester reaches them."""

    def __init__(self, job: JobContext, paths: PathManager, supplies: SuppliesOf, passes: Passes = lambda: ()) -> None:
        """`supplies`: what a node begins with at the start of a round; `passes`: what each node shows at relays."""
        self._job, self._me, self._terms, self._paths = job, job.key.public, job.terms, paths
        self._supplies, self._passes = supplies, passes
        self._addresses: dict[PeerId, messages.PeerAddress] = {}
        self._returning: dict[PeerId, asyncio.Task[None]] = {}
        self._tasks = OwnedTasks()
        self._coordinator: MembershipEvents | None = None
        self.term: JobCoordinate | None = None  # that the ledger knows; None: nobody took the job over
        self._introduced: WeakSet[Connection] = WeakSet()
        self.barred: set[PeerId] = set()  # broke the rules: they serve what they owe, and get nothing
        self.benchmarks: Mapping[PeerId, int] = {}  # FLOP/s of each node, as it offered itself
        self.setup = MemberSetup(job, (), self.dial, passes)
        self.vouch: Vouch = _no_voucher

    def hire(self, ledger: LedgerClient, budget: LeaseBudget, read_addresses: ReadAddresses) -> None:
        """With whom and for how much leases are renewed; `read_addresses`: where nodes are found now."""
        self._ledger, self._budget, self._read_addresses = ledger, budget, read_addresses

    def know(self, addresses: Iterable[messages.PeerAddress]) -> None:
        """Where nodes can be reached."""
        self._addresses.update({a.peer: a for a in addresses})

    def move(self, places: tuple[EndpointAddress, ...]) -> None:
        """The requester itself is reached elsewhere from now on; who joins later is told so."""
        self._addresses[self._me] = messages.PeerAddress(self._me, places)
        self._list_members()

    def gather(self, seats: Sequence[PeerId], verifiers: tuple[PeerId, ...]) -> None:
        """These work on the job, nobody else; `seats` fixes each provider's index in it."""
        known = {*seats, *verifiers, self._me}
        self._addresses = {p: a for p, a in self._addresses.items() if p in known}
        self.setup = MemberSetup(self._job, seats, self.dial, self._passes)
        self.setup.verifiers = verifiers
        self._list_members()

    @property
    def seats(self) -> Sequence[PeerId]:
        """The providers, each at its index in the job."""
        return self.setup.seats

    @property
    def verifiers(self) -> tuple[PeerId, ...]:
        """The verifiers, ascending."""
        return self.setup.verifiers

    @property
    def attested(self) -> Mapping[PeerId, Hash]:
        """Hash of what each node says it runs, as it last offered itself."""
        return self.setup.attested

    def follow(self, coordinator: MembershipEvents) -> None:
        """Members that return are counted by this coordinator from now on."""
        self._coordinator = coordinator

    def is_member(self, peer: PeerId) -> bool:
        """Whether a peer may fetch from the requester and leave objects with it."""
        return peer in self._addresses and peer not in self.barred

    async def dial(self, peer: PeerId) -> Connection:
        """A connection to a node of the job."""
        address = self._addresses.get(peer)
        if address is None:
            raise PolicyError("FF-APP-047", f"no address is known for {peer[:4].hex()}")
        connection = await reach(self._paths, address)
        if self.term is not None and connection not in self._introduced:
            await connection.call(messages.TERM, encode(self.term))
            self._introduced.add(connection)
        return connection

    def patience(self, peer: PeerId) -> float:
        """A relay that died is back within seconds; a peer that listens itself has no such excuse."""
        address = self._addresses.get(peer)
        return RELAY_SECONDS if address is not None and address.relays else PATIENCE_SECONDS

    def lost(self, peer: PeerId, may_return: bool) -> None:
        """A member is gone: who died is brought back; who broke the rules loses access to objects everywhere."""
        if may_return:
            self.bring_back(peer)
            return
        self.barred.add(peer)
        self._list_members()
        self._tasks.begin(self._tell_members())

    def _list_members(self) -> None:
        everybody = tuple(self._addresses.values())
        self.setup.everybody = everybody
        self.setup.members = tuple(a for a in everybody if a.peer not in self.barred)

    async def _tell_members(self) -> None:
        """Verifiers go on to know who is out: its earlier work may still be under audit."""
        for peer in [p for p in self._addresses if p != self._me]:
            is_verifier = peer in self.setup.verifiers
            known = self.setup.everybody if is_verifier else self.setup.members
            with contextlib.suppress(FarflungError):  # who is away is told when it is started again
                said = encode(messages.MembersUpdate(self._terms.id, known))
                await (await self.dial(peer)).call(messages.MEMBERS, said)

    async def look(self, peer: PeerId) -> None:
        """Notices a member that forgot its lease, as one does that was started again. Else it is asked in rounds
        alone, and a round that waits for audits of that member would wait for ever. Raises what its line says.
        """
        if peer in self.barred:
            return
        said = encode(messages.MembersUpdate(self._terms.id, self.setup.members))
        try:
            await (await self.dial(peer)).call(messages.MEMBERS, said)
        except RemoteError as error:
            if error.code == NO_LEASE and self._coordinator is not None:
                self._coordinator.lose(peer, f"{error.code} it was started again")

    async def hand_passes(self) -> None:
        """Every node shows the newest passes; one that is away gets them when it is started again."""
        said = encode(messages.RelayPassesUpdate(self._terms.id, self._passes()))
        for peer in [p for p in self._addresses if p != self._me]:
            with contextlib.suppress(FarflungError):
                await (await self.dial(peer)).call(messages.PASSES, said)

    def bring_back(self, peer: PeerId) -> None:
        """Lets a member that died take part again, as soon as it can."""
        task = self._returning.get(peer)
        if peer not in self.barred and (task is None or task.done()):
            self._returning[peer] = self._tasks.begin(self._until_back(peer))

    async def _until_back(self, peer: PeerId) -> None:
        """For as long as the job lives; who is there and refuses for good stays away."""
        refusals, not_now = 0, False
        for tries in itertools.count():
            await asyncio.sleep(NOT_NOW_PAUSE if not_now else RETURN_LATER.pause(max(0, tries - RETURN_TRIES)))
            if self._coordinator is None or not self._coordinator.may_join(peer):
                continue
            try:
                await self._bring_once(peer, self._coordinator)
                return
            except FarflungError as error:
                not_now = error.code in NOT_NOW
                if error.code == LEFT:
                    refusals = REFUSALS
                elif is_lost_line(error):
                    await self._look_up(peer, tries)
                elif not not_now:
                    refusals += 1
                if refusals >= REFUSALS:
                    told = f"{peer[:4].hex()} stays away: {error.code} {error.message}"
                    self._job.journal.emit(WarningEvent(code="FF-APP-095", message=told[:300]))
                    return

    async def _look_up(self, peer: PeerId, tries: int) -> None:
        """Now and then: a member that comes back after a night may be at another address, or at other relays."""
        if tries % LOOK_TRIES != LOOK_TRIES - 1:
            return
        with contextlib.suppress(FarflungError):
            found = (await self._read_addresses()).get(peer)
            if found is not None and found != self._addresses.get(peer):
                self._addresses[peer] = found
                self._list_members()

    async def look_up(self, peers: Iterable[PeerId]) -> None:
        """Finds in the directory those of these whose address is not known. Raises what reading it raises."""
        missing = [peer for peer in peers if peer not in self._addresses]
        found = await self._read_addresses() if missing else {}
        self.know(found[peer] for peer in missing if peer in found)

    async def _bring_once(self, peer: PeerId, coordinator: MembershipEvents) -> None:
        offered = await self._again(peer)
        self.setup.attested[peer] = offered.offer.offer.attests
        await self.vouch(peer)
        public = await asyncio.to_thread(coordinator.state_for, peer)
        supplies, replay = await asyncio.to_thread(self._supplies, public.round)
        await self.setup.member(peer, offered.lease_key, supplies, replay, public.root(self._terms.layout))
        await coordinator.join(peer, public.round)

    async def _again(self, peer: PeerId) -> messages.LeaseOfferReply:
        """Proposes an open lease of the job to its node once more, after it died.

        Raises NetworkError when it is not back yet, PolicyError FF-APP-091 when its lease is closed, or it leaves.
        """
        leases = await self._ledger.leases(self._terms.id)
        lease = next((x for x in leases if x.node == peer and x.is_open), None)
        if lease is None:
            raise PolicyError("FF-APP-091", "the peer holds no open lease in this job")
        if first := await self._ledger.notice(self._terms.id, peer):
            raise PolicyError("FF-APP-091", f"the peer gave notice: it takes no part in round {first} and later ones")
        negotiation = LeaseNegotiation(self._ledger.chain, self._terms, self._budget, self.dial, self._job.journal)
        return await negotiation.again(lease)

    async def rehire(self, verifier: PeerId) -> None:
        """Brings a verifier that died back into its lease."""
        offered = await self._again(verifier)
        await self.vouch(verifier)
        supplies, _ = await asyncio.to_thread(self._supplies, 0)
        await self.setup.verifier(verifier, offered.lease_key, supplies)

    async def dismiss(self) -> None:
        """Tells every node that the lease is over; one that is gone needs no telling."""
        await dismiss(self.dial, self._terms.id, [p for p in self._addresses if p != self._me])

    async def rest(self) -> None:
        """Gives up bringing anybody back, for now: members that are gathered anew rest first."""
        tasks, self._tasks = self._tasks, OwnedTasks()
        await tasks.close()
