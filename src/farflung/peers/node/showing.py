"""Seals the worker's border states when one of its segments is sampled for audit.

They are sealed into the store, under the trace that was committed to (`open`), or under a false one of which the
requester can prove where it is false (`plant`, ledger.canaries). A worker that lost them goes its round again.
"""

from __future__ import annotations

from farflung.core.errors import PolicyError, RunError
from farflung.job.spec import JobTerms
from farflung.ledger.canaries import SEGMENTS_LEAST, source_of
from farflung.peers.node.private import PrivateRoundResult, PrivateStateStore
from farflung.peers.node.segment_openings import Retain, SampledSegments
from farflung.peers.node.workspace import JobWorkspace
from farflung.peers.protocol.messages import CanaryOpenReply, SegmentOpenReply
from farflung.train import segments, worker_messages
from farflung.train.contribution_trace import ContributionTrace

NOT_HELD = "FF-TRAIN-081"  # the worker's answer when it does not hold the states of a round


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
        false = worker_messages.OpenSegmentResult(
            states.start, self._planted(result, states, source), states.last
        )
        return self._openings.plant(result.round, segment, result.trace, self._before(result.round), false)

    def _planted(
        self,
        result: PrivateRoundResult,
        states: worker_messages.OpenSegmentResult,
        source: worker_messages.OpenSegmentResult,
    ) -> bytes:
        """The end that the false trace claims, as a verifier is to fetch it."""
        optimizer, layout = self._terms.spec.optimizer, self._terms.layout
        ends = [segments.unpack(each.end, optimizer, layout, result.round) for each in (states, source)]
        return segments.pack(segments.planted(*ends), optimizer, layout)

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
        await self._workplace.ask(
            worker_messages.RewindCommand(round, kept.inner if kept is not None else b""),
            worker_messages.StateResult,
        )
        await self._workplace.ask(
            worker_messages.TrainCommand(round, self._terms.spec.steps_of(tokens)),
            worker_messages.TrainResult,
        )
