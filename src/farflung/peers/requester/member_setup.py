"""Brings leased nodes to the job's current round, with its data and its public state."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import msgspec

from farflung.core import limits
from farflung.core.codec import decode, encode
from farflung.core.errors import FarflungError, VerificationError
from farflung.core.events import PeerJoinEvent, ProcessExitEvent, WarningEvent
from farflung.core.ids import Hash, PeerId
from farflung.core.relay_passes import SignedRelayPass
from farflung.peers.protocol import messages
from farflung.peers.protocol.calls import Dial
from farflung.peers.protocol.job_key import wrap
from farflung.peers.requester.job_context import JobContext
from farflung.peers.rundir.archive import Archive
from farflung.peers.rundir.journal import EventEmitter
from farflung.store.sealed_objects import ObjectManifest
from farflung.train.run_log import Record, accepted_by_round

Passes = Callable[[], tuple[SignedRelayPass, ...]]

WARNING_CHARACTERS = 300  # of what a provider says for people to read


class ProviderInputs(msgspec.Struct, frozen=True):
    """What a provider fetches from the requester before it can train."""

    dataset: ObjectManifest
    module: ObjectManifest
    graph: ObjectManifest
    snapshot: ObjectManifest
    snapshot_round: int


def replay_plan(archive: Archive, records: Sequence[Record], start: int, end: int) -> tuple[messages.PastRound, ...]:
    """The closed rounds `start` .. `end - 1` as a joining peer replays them."""
    accepted = accepted_by_round(records)
    return tuple(
        messages.PastRound(round, tuple(archive.share(c) for c in accepted[round])) for round in range(start, end)
    )


class MemberSetup:
    """Brings leased nodes to where the job stands."""

    def __init__(self, job: JobContext, seats: Sequence[PeerId], dial: Dial, passes: Passes = lambda: ()) -> None:
        """`seats` fixes each peer's index in the job; `passes`: what each node shows at relays."""
        self._job, self.seats, self._dial, self._passes = job, seats, dial, passes
        self.members: tuple[messages.PeerAddress, ...] = ()  # who may fetch and leave objects
        self.everybody: tuple[messages.PeerAddress, ...] = ()  # those that are out included: verifiers may need them
        self.verifiers: tuple[PeerId, ...] = ()
        self.lease_keys: dict[PeerId, bytes] = {}  # what secrets of each member's lease are wrapped for
        self.attested: dict[PeerId, Hash] = {}  # hash of what each node says it runs, as it last offered itself

    async def member(
        self,
        peer: PeerId,
        lease_key: bytes,
        supplies: ProviderInputs,
        replay: tuple[messages.PastRound, ...],
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
        told = PeerJoinEvent(peer=peer.hex(), round=started.round, replayed=started.replayed, seconds=seconds)
        self._job.journal.emit(told)

    async def verifier(self, peer: PeerId, lease_key: bytes, supplies: ProviderInputs) -> None:
        """Brings data to a verifier; public states come with the audits."""
        await self._start(peer, 0, lease_key, self.everybody, supplies, ())

    async def _start(
        self,
        peer: PeerId,
        seat: int,
        lease_key: bytes,
        members: tuple[messages.PeerAddress, ...],
        supplies: ProviderInputs,
        replay: tuple[messages.PastRound, ...],
    ) -> messages.LeaseStartReply:
        job = self._job.terms.id
        request = messages.LeaseStartRequest(
            job,
            wrap(lease_key, job, self._job.job_key),
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
            await connection.call(messages.PASSES, encode(messages.RelayPassesUpdate(job, passes)))
        data = await connection.call(messages.START, encode(request), timeout=None)
        return decode(data, messages.LeaseStartReply, limits.CONTROL_BYTES)

    def _warn(self, warning: str) -> None:
        if warning:
            code, _, message = warning.partition(": ")
            has_code = code.startswith("FF-") and bool(message)
            told = (message if has_code else warning)[:WARNING_CHARACTERS]
            named = code[:16] if has_code else "FF-APP-065"  # the peer joins anew
            self._job.journal.emit(WarningEvent(code=named, message=told))


async def all_ready(
    work: dict[PeerId, Coroutine[Any, Any, None]], journal: EventEmitter
) -> tuple[list[PeerId], FarflungError | None]:
    """Waits for all; those that are ready, in order, and what one of the others failed with."""
    replies = await asyncio.gather(*work.values(), return_exceptions=True)
    ready: list[PeerId] = []
    error: FarflungError | None = None
    for peer, reply in zip(work, replies, strict=True):
        if isinstance(reply, FarflungError):
            journal.emit(ProcessExitEvent(peer=peer.hex(), reason=f"{reply.code} {reply.message}"))
            error = error or reply
        elif isinstance(reply, BaseException):
            raise reply
        else:
            ready.append(peer)
    return ready, error
