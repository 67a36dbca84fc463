"""Drives a job's rounds: feeds `train.rounds` with what happens, writes its records, and starts what it asks for.

    event → rounds.step → records     written into the log, before anything else is done
                          effects     begun: each is a task of one member, or of nobody
    a task's own event  → rounds.step
    a task that fails   → its member is lost; the run ends where the task is nobody's, or the disk is full

What it knows beyond the log (what members stated, opened, and hold) it can ask for again: killed at any moment, the
next coordinator replays the log and asks the same questions, and the members answer with the same bits. The ledger is
told by peers.requester.ledger_recorder, from the log alone.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Coroutine
from typing import Any, Final, Protocol

from farflung.core.errors import FarflungError, ProtocolError, RunError, VerificationError, type_and_text
from farflung.core.ids import Hash, PeerId
from farflung.core.io.owned_tasks import OwnedTasks
from farflung.core.units import Seconds
from farflung.peers.protocol.calls import as_failure
from farflung.peers.rundir.archive import RunLog
from farflung.train import rounds
from farflung.train.public_state import PublicState
from farflung.train.run_log import Contribution, Record, RoundEndRecord, RunEndRecord

# Whoever trains on from there comes to no number: in the loss, in a gradient, in what would be sent.
LOST_NUMBERS: Final = ("FF-TRAIN-058", "FF-TRAIN-062", "FF-COMP-020")
# What a node says that obeys another process of this requester.
OTHER_COORDINATOR: Final = "FF-APP-604"
OWN_DISK: Final = ("FF-CORE-050", "FF-CORE-051")  # cannot be written: the same for whichever peer comes next

RoundTask = Coroutine[Any, Any, rounds.Event | None]  # its event goes to the rounds


class OpenRounds(Protocol):
    """The rounds as those see them who do their work."""

    @property
    def state(self) -> rounds.CoordinatorState:
        """As it is now."""

    def is_counted(self, peer: PeerId) -> bool:
        """Whether a peer is a member, or was passed over and will be again."""

    def is_aside(self, peer: PeerId) -> bool:
        """Whether a peer was passed over, and is not back yet."""

    def back(self, peer: PeerId) -> None:
        """A peer that was passed over is done with its round: it counts from the next one on."""


class RoundEffects(Protocol):
    """The verbs that `rounds.step` asks for (peers.requester.round_tasks does them over the network)."""

    def begin(self, coordinator: OpenRounds) -> None:
        """Whose work it is; before anything else."""

    def stepped(self) -> None:
        """The state is another one."""

    def written(self, record: Record) -> None:
        """A record is in the log."""

    def train(self, round: int, peer: PeerId) -> RoundTask:
        """Lets a member train."""

    def beacon(self, round: int) -> RoundTask:
        """Anchors a round's commitments; what the round is drawn from."""

    def reveal(self, round: int, peer: PeerId) -> RoundTask:
        """Lets a member show its payload, and checks it."""

    def merge(self, round: int, peer: PeerId, accepted: tuple[Contribution, ...]) -> RoundTask:
        """Lets a member merge."""

    def merge_own(self, round: int, accepted: tuple[Contribution, ...]) -> RoundTask:
        """Merges here."""

    def audit(self, round: int) -> RoundTask:
        """Audits a closed round."""

    def drop(self, round: int, peer: PeerId) -> RoundTask:
        """Lets a member drop its round."""

    def catch_up(self, peer: PeerId, round: int) -> RoundTask:
        """Lets a member merge what was closed before `round`."""

    async def rejoin(self, peer: PeerId, round: int) -> None:
        """A member that died is back with the public state of `round`; it opens what it owes."""

    def state_for(self, peer: PeerId) -> PublicState:
        """Where a member that died goes on."""

    def pace(self) -> rounds.Event | None:
        """What the next round assigns, where that follows what was measured."""

    def grace(self) -> Seconds:
        """How long a window is open."""

    def skipped(self, round: int, peer: PeerId, phase: rounds.RoundPhase) -> None:
        """A phase was closed without a member."""

    def closed(self, closed: RoundEndRecord, accepted: tuple[Contribution, ...]) -> None:
        """A round is over."""

    def excluded(self, peer: PeerId, round: int) -> None:
        """A member's work is false: it is out."""

    def lost(self, peer: PeerId, reason: str, *, may_return: bool) -> None:
        """A member is gone; who broke the rules does not come back."""

    def close(self) -> None:
        """The rounds end, or this session of them."""


class Coordinator:
    """Runs rounds from `state` until the run ends."""

    def __init__(self, state: rounds.CoordinatorState, log: RunLog, effects: RoundEffects) -> None:
        self._state, self._log, self._effects = state, log, effects
        self._aside: set[PeerId] = set()  # passed over, and not back yet
        self._at_work = defaultdict[PeerId | None, OwnedTasks](OwnedTasks)  # for each peer; None: for nobody
        self._events: asyncio.Queue[rounds.Event] = asyncio.Queue()
        self._last_error: FarflungError | None = None
        self._failure: FarflungError | None = None
        self._finished: RunEndRecord | None = None
        effects.begin(self)

    @property
    def state(self) -> rounds.CoordinatorState:
        """As it is now."""
        return self._state

    def lose(self, peer: PeerId, reason: str, *, may_return: bool = True, has_diverged: bool = False) -> None:
        """Evidence that a member is gone, from whoever noticed it first."""
        if self.is_counted(peer):
            self._aside.discard(peer)
            self.post(rounds.MemberLossInput(peer, has_diverged))
            self._effects.lost(peer, reason, may_return=may_return)

    def is_counted(self, peer: PeerId) -> bool:
        """Whether a peer is a member, or was passed over and will be again."""
        return peer in self._state.members or peer in self._aside

    def is_aside(self, peer: PeerId) -> bool:
        """Whether a peer was passed over, and is not back yet."""
        return peer in self._aside

    def may_join(self, peer: PeerId) -> bool:
        """Whether a peer is missed."""
        return not self.is_counted(peer) and peer not in self._state.excluded

    def state_for(self, peer: PeerId) -> PublicState:
        """Where a peer that was lost goes on: with the open round, or with one of which it owes an opening."""
        return self._effects.state_for(peer)

    async def join(self, peer: PeerId, round: int) -> None:
        """A peer holds the public state of `round`; it opens what it owes of it, then counts from the next round on."""
        await self._effects.rejoin(peer, round)
        self.post(rounds.MemberJoinInput(peer))

    def back(self, peer: PeerId) -> None:
        """A peer that was passed over is done with its round: it counts from the next one on."""
        if peer in self._aside:
            self._aside.discard(peer)
            self.post(rounds.MemberJoinInput(peer))
            self._spawn(peer, self._effects.catch_up(peer, max(self._log.accepted, default=-1) + 1))

    @property
    def last_error(self) -> FarflungError | None:
        """What the member said that was lost last; None: its process ended."""
        return self._last_error

    def fail(self, error: FarflungError) -> None:
        """The run cannot go on in this session."""
        self._failure = error
        self.post(rounds.StopInput())  # wakes the loop, which raises

    def post(self, event: rounds.Event) -> None:
        """Lets an event reach the rounds: a stop, a lost process."""
        self._events.put_nowait(event)

    async def run(self) -> RunEndRecord:
        """From where the log ends to the end of the run, or until no member is left (REASON_ALONE)."""
        self.post(rounds.BeginInput())
        try:
            while self._finished is None:
                event = await self._events.get()
                if self._failure is not None:
                    raise as_failure(self._failure)
                self._state, effects = rounds.step(self._state, event)
                for effect in effects:
                    self._carry_out(effect)
                self._effects.stepped()
        finally:
            self._effects.close()
            await asyncio.gather(*(each.close() for each in self._at_work.values()))
        return self._finished

    def _carry_out(self, effect: rounds.Effect) -> None:
        do = self._effects
        match effect:
            case rounds.WriteRecord(record):
                self._log.write(record)
                do.written(record)
            case rounds.RequestTraining(round, peer):
                self._spawn(peer, do.train(round, peer))
            case rounds.RequestBeacon(round):
                self._spawn(None, do.beacon(round))
            case rounds.RequestReveal(round, peer):
                self._spawn(peer, do.reveal(round, peer))
            case rounds.RequestMerge(round, peer, accepted):
                self._spawn(peer, do.merge(round, peer, accepted))
            case rounds.OpenWindow(round, phase):
                over = rounds.WindowEndInput(round, phase)
                asyncio.get_running_loop().call_later(do.grace(), self.post, over)
            case rounds.SkipMember(round, peer, phase):
                self._pass_over(round, peer, phase)
            case rounds.MergeLocally(round, accepted):
                if (paced := do.pace()) is not None:
                    self.post(paced)  # before anything that opens the next round
                self._spawn(None, do.merge_own(round, accepted))
                for peer in set(self._state.members) - self._state.in_round:
                    # Who waits for the next round has time now.
                    self._spawn(peer, do.catch_up(peer, round + 1))
            case rounds.ReportRound(closed, accepted):
                do.closed(closed, accepted)
            case rounds.AuditRound(round):
                self._spawn(None, do.audit(round))
            case rounds.ExcludeMember(peer, round):
                do.excluded(peer, round)
            case rounds.ExpelMember(peer, round, root):
                why = f"its public state after round {round} is {root[:4].hex()}, not everybody's"
                do.lost(peer, why, may_return=False)
            case rounds.HaltRun(round, root):
                self.fail(_outvoted(round, root))
            case rounds.EndRun(finished):
                self._finished = finished

    def _spawn(self, peer: PeerId | None, work: RoundTask) -> None:
        self._at_work[peer].begin(self._guard(peer, work))

    async def _guard(self, peer: PeerId | None, work: RoundTask) -> None:
        try:
            if (event := await work) is not None:
                self.post(event)
        except FarflungError as error:
            self._failed(peer, error)
        except Exception as error:  # the task's boundary: the rounds wait for this task
            self._failed(peer, RunError("FF-APP-099", f"unexpected error: {type_and_text(error)}"[:300]))

    def _failed(self, peer: PeerId | None, error: FarflungError) -> None:
        self._last_error = error
        if peer is None or error.code in OWN_DISK or error.code == OTHER_COORDINATOR:
            self.fail(error)  # not the peer's fault
        else:
            broke_rules = isinstance(error, VerificationError | ProtocolError)
            has_diverged = error.code in LOST_NUMBERS
            said = f"{error.code} {error.message}"
            self.lose(peer, said, may_return=not broke_rules, has_diverged=has_diverged)

    def _pass_over(self, round: int, peer: PeerId, phase: rounds.RoundPhase) -> None:
        """The round goes on without a member. In MERGE its work counts already, and its answer brings it back."""
        self._aside.add(peer)
        self._effects.skipped(round, peer, phase)
        if phase is not rounds.RoundPhase.MERGE:
            self._at_work[peer].cancel()
            self._spawn(peer, self._effects.drop(round, peer))


def _outvoted(round: int, root: Hash) -> VerificationError:
    return VerificationError(
        "FF-APP-074",
        f"all members agree on another public state after round {round} than this coordinator",
        cause=f"theirs is {root[:4].hex()}; the mistake is here, not with them",
        hint="`farflung resume` merges the round again; if it stays so, check this machine's memory",
    )
