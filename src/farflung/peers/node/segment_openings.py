"""Opens sampled segments of a provider's work for audits: sealed states and Merkle paths, durable before shown.

The states at the borders of a segment lie in the worker's memory until its round is merged. A drawn segment is sealed
into the store at once, and what it opens to is kept with it, so that a provider that crashes afterwards opens
the same. A worker that lost them goes its round again. What the segment ended with is shown only to a verifier that
has committed to a result of its own (V2).

A planted segment is one whose trace its maker has falsified, because the requester asked it to (ledger.canaries). It is
kept beside the true one, and who asks is answered under the trace that it names: a verifier cannot tell which it was
ordered to audit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from farflung.core import limits, merkle
from farflung.core.codec import Wire
from farflung.core.commitments import leaf_count
from farflung.core.crypto import SigningKey
from farflung.core.errors import PolicyError, RunError
from farflung.core.ids import Hash, PeerId
from farflung.job.spec import JobTerms
from farflung.ledger.canaries import SEGMENTS_LEAST, source_of
from farflung.ledger.transactions import PlantedTrace
from farflung.peers.node.sealed_files import UNUSABLE, PrivateRoundResult, PrivateStateStore, SealedFileStore
from farflung.peers.node.workspace import JobWorkspace
from farflung.peers.protocol.messages import (
    CanaryOpenReply,
    SegmentOpenReply,
    SegmentOpenRequest,
    SegmentRevealReply,
    SegmentRevealRequest,
)
from farflung.store.io.disk_store import DiskObjectStore
from farflung.store.sealed_objects import ObjectManifest
from farflung.train import segments, worker_messages
from farflung.train.blobs import Blob, parts_of
from farflung.train.contribution_trace import ContributionTrace
from farflung.verify.blind_commitment import is_blind
from farflung.verify.commitment_check import plant
from farflung.verify.segment_opening import needed

NOT_HELD: Final = "FF-TRAIN-081"  # the worker's answer when it does not hold the states of a round
_TRUE: Final = "-audit-"  # in the name of a file
_PLANTED: Final = "-planted-"

# Of a place (round, segment) and the round's trace, what the worker gave: before it is opened to anybody.
Retain = Callable[[tuple[int, int], ContributionTrace, worker_messages.OpenSegmentResult], None]


class SealedOpening(Wire, frozen=True):
    """One drawn segment, sealed: what is shown first, and what is shown to a verifier that has committed.

    `plant`: what was falsified of the trace under which it is opened, where that was asked for.
    """

    round: int
    segment: int
    opened: SegmentOpenReply
    revealed: SegmentRevealReply
    plant: PlantedTrace | None = None

    def trace(self, segments: int) -> Hash | None:
        """The root under which it is opened."""
        start = self.opened.start
        return merkle.root_over(leaf_count(segments), start.index, start.data, start.path)


class SampledSegments:
    """The drawn segments of one lease."""

    def __init__(
        self, key: SigningKey, job: Hash, segments: int, disk: DiskObjectStore, vault: SealedFileStore, job_key: bytes
    ) -> None:
        self._key, self._job, self._segments = key, job, segments
        self._disk, self._vault, self._job_key = disk, vault, job_key
        self._known: dict[str, SealedOpening] = {}

    def find(self, round: int, segment: int, *, is_planted: bool = False) -> SealedOpening | None:
        """An opening that was made before, if it is still kept. Raises PolicyError FF-APP-084: no such segment."""
        if not (0 <= segment < self._segments and 0 <= round < limits.ROUNDS):
            raise _not_open(round, segment)
        name = self._name(round, segment, is_planted)
        known = self._known.get(name)
        if known is None:
            try:
                known = self._vault.load(name, SealedOpening)
            except UNUSABLE:
                return None
        if known is not None:
            self._known[name] = known
        return known

    def make(
        self,
        round: int,
        segment: int,
        trace: ContributionTrace,
        before: ContributionTrace | None,
        states: worker_messages.OpenSegmentResult,
    ) -> SegmentOpenReply:
        """Seals the segment's states and keeps what they open to; durable on return. `before`: of the round before."""
        return self._keep(SealedOpening(round, segment, *self._shown(segment, trace, before, states)))

    def plant(
        self,
        round: int,
        segment: int,
        trace: ContributionTrace,
        before: ContributionTrace | None,
        states: worker_messages.OpenSegmentResult,
    ) -> CanaryOpenReply:
        """The same under the trace with a false end; `states` has that end."""
        shown = self._shown(segment, trace.planted(segment), before, states)
        made = plant(self._key, self._job, round, trace, segment)
        return CanaryOpenReply(made, self._keep(SealedOpening(round, segment, *shown, made)))

    def _shown(
        self,
        segment: int,
        trace: ContributionTrace,
        before: ContributionTrace | None,
        states: worker_messages.OpenSegmentResult,
    ) -> tuple[SegmentOpenReply, SegmentRevealReply]:
        (start,) = trace.opened(segment)
        chained = before.opened(self._segments) if before is not None and segment == 0 else ()
        ends = trace.opened(*needed(segment, self._segments))
        opened = SegmentOpenReply(start, self._seal(states.start), chained)
        return opened, SegmentRevealReply(ends, self._seal(states.end), self._seal(states.last))

    def _keep(self, opening: SealedOpening) -> SegmentOpenReply:
        name = self._name(opening.round, opening.segment, opening.plant is not None)
        self._vault.save(name, opening)
        self._known[name] = opening
        return opening.opened

    def repeat(self, request: SegmentOpenRequest) -> SegmentOpenReply:
        """What was opened already, for a verifier: were it to choose, its audit would not be blind for long."""
        return self._known_of(request).opened

    def _known_of(self, request: SegmentOpenRequest | SegmentRevealRequest) -> SealedOpening:
        """What was opened under the trace that is asked about: there may be another, and nobody is told whether."""
        for is_planted in (False, True):
            opening = self.find(request.round, request.segment, is_planted=is_planted)
            if opening is not None and opening.trace(self._segments) == request.trace:
                return opening
        raise _not_open(request.round, request.segment)

    def reveal(self, request: SegmentRevealRequest, verifiers: frozenset[PeerId]) -> SegmentRevealReply:
        """What came out of a segment, for a verifier of the job that has committed to its own result."""
        said, node = request.blind, self._key.public
        opening = self._known_of(request)
        is_due = said.verifier in verifiers and is_blind(said, self._job, request.round, node, request.segment)
        if not is_due:
            raise PolicyError(
                "FF-APP-083",
                "no verifier of this job has committed to a result of this segment",
                cause="an audit is blind: the end of a segment is shown to who has trained it again",
                hint="send the verifier's signed commitment",
            )
        return opening.revealed

    def forget(self, keep_from: int) -> None:
        """Deletes what belongs to rounds before `keep_from`."""
        for name in self._vault.names():
            prefix, kind, rest = _parted(name)
            if prefix != self._prefix or not rest or int(rest.split("-")[0]) >= keep_from:
                continue
            opening = self.find(*(int(part) for part in rest.split("-")), is_planted=kind == _PLANTED)
            if opening is not None:
                self._drop(opening)
            self._vault.drop(name)
        self._known = {name: o for name, o in self._known.items() if o.round >= keep_from}

    def _drop(self, opening: SealedOpening) -> None:
        for manifest in (opening.opened.state, opening.revealed.end, opening.revealed.last):
            self._disk.delete(manifest.id)

    @property
    def _prefix(self) -> str:
        return self._job[:8].hex()

    def _name(self, round: int, segment: int, is_planted: bool) -> str:
        return f"{self._prefix}{_PLANTED if is_planted else _TRUE}{round:06d}-{segment:03d}"

    def _seal(self, state: Blob) -> ObjectManifest:
        return self._disk.seal(self._job_key, *parts_of(state))


def _parted(name: str) -> tuple[str, str, str]:
    """What a vault's name is made of: whose, which kind, which place; the last two are empty for another file's."""
    kind = _PLANTED if _PLANTED in name else _TRUE
    return name.partition(kind)


def _not_open(round: int, segment: int) -> PolicyError:
    return PolicyError("FF-APP-084", f"segment {segment} of round {round} is not open")


class SegmentSealer:
    """The states of one lease's newest round."""

    def __init__(
        self,
        terms: JobTerms,
        workplace: JobWorkspace,
        private: PrivateStateStore,
        openings: SampledSegments,
        retain: Retain,
    ) -> None:
        self._terms, self._workplace, self._private = terms, workplace, private
        self._openings, self._retain = openings, retain

    async def open(self, result: PrivateRoundResult, segment: int) -> SegmentOpenReply:
        """The state before a segment, and what is shown of it later; durable on return."""
        states = await self._states(result, segment)
        self._retain((result.round, segment), result.trace, states)
        return self._openings.make(result.round, segment, result.trace, self._before(result.round), states)

    async def plant(self, result: PrivateRoundResult, segment: int) -> CanaryOpenReply:
        """The same under a false trace. Raises PolicyError FF-APP-395: a round has too few borders for one."""
        count = self._terms.spec.segments
        if count < SEGMENTS_LEAST:
            raise PolicyError(
                "FF-APP-395",
                "no false end can be planted in this job",
                cause=f"a round has {count} segments, and {SEGMENTS_LEAST} are needed",
                hint="set audit.segments higher, or audit.canaries = 0",
            )
        states = await self._states(result, segment)
        source = await self._states(result, source_of(segment, count) - 1)
        false = worker_messages.OpenSegmentResult(states.start, self._planted(result, states, source), states.last)
        return self._openings.plant(result.round, segment, result.trace, self._before(result.round), false)

    def _planted(
        self,
        result: PrivateRoundResult,
        states: worker_messages.OpenSegmentResult,
        source: worker_messages.OpenSegmentResult,
    ) -> Blob:
        """The end that the false trace claims, as a verifier is to fetch it."""
        optimizer, layout = self._terms.spec.optimizer, self._terms.layout
        ends = [segments.unpack(each.end, optimizer, layout, result.round) for each in (states, source)]
        return segments.pieces(segments.planted(*ends), optimizer, layout)

    def _before(self, round: int) -> ContributionTrace | None:
        kept = self._private.before(round)
        return kept.result.trace if kept is not None and kept.result is not None else None

    async def _states(self, result: PrivateRoundResult, segment: int) -> worker_messages.OpenSegmentResult:
        ask = worker_messages.OpenSegmentCommand(result.round, segment)
        try:
            return await self._workplace.ask(ask, worker_messages.OpenSegmentResult)
        except RunError as error:
            if error.code != NOT_HELD:
                raise
        await self._train_again(result.round, result.trace.statistics.tokens)
        return await self._workplace.ask(ask, worker_messages.OpenSegmentResult)

    async def _train_again(self, round: int, tokens: int) -> None:
        """After a crash the worker holds the round's result but not its way: it goes it again, to the same bits."""
        kept = self._private.before(round)
        await self._workplace.supply(round)
        await self._workplace.ask(
            worker_messages.RewindCommand(round, kept.inner if kept is not None else b""), worker_messages.StateResult
        )
        await self._workplace.ask(
            worker_messages.TrainCommand(round, self._terms.spec.steps_of(tokens)), worker_messages.TrainResult
        )
