"""Emits the events of rounds: when each opened, when each member's part came, and how it closed."""

from __future__ import annotations

import time
from collections.abc import Mapping

from farflung.core.events import ArrivalEvent, RoundEndEvent, RoundStartEvent, SkippedMemberEvent
from farflung.core.ids import PeerId
from farflung.peers.protocol import messages
from farflung.peers.requester.payload_exchange import ExchangeReport
from farflung.peers.rundir.journal import EventEmitter
from farflung.train import rounds
from farflung.train.run_log import Contribution, RoundEndRecord


class RoundEventEmitter:
    """Emits the events of rounds, with seconds since each was opened."""

    def __init__(self, journal: EventEmitter, total: int) -> None:
        self._journal, self._total = journal, total
        self._closed_at = self._opened_at = time.monotonic()
        self._opened = -1
        self._last_in = ""

    def see(self, state: rounds.CoordinatorState) -> None:
        """Tells once of each round whose members are asked to train."""
        if state.phase is not rounds.RoundPhase.TRAIN or state.round == self._opened or not state.in_round:
            return
        self._opened, self._opened_at = state.round, time.monotonic()
        peers = tuple(peer.hex() for peer in sorted(state.in_round))
        waited = self._opened_at - self._closed_at
        self._journal.emit(RoundStartEvent(round=state.round, rounds=self._total, peers=peers, waited=waited))

    def arrived(self, round: int, peer: PeerId, phase: str) -> None:
        """A member's part of one phase is here."""
        if phase == "train":
            self._last_in = peer.hex()
        seconds = time.monotonic() - self._opened_at
        self._journal.emit(ArrivalEvent(round=round, peer=peer.hex(), phase=phase, seconds=seconds))

    def passed_over(self, round: int, peer: PeerId, phase: str) -> None:
        """A phase was closed without a member that was too slow."""
        seconds = time.monotonic() - self._opened_at
        self._journal.emit(SkippedMemberEvent(round=round, peer=peer.hex(), phase=phase, seconds=seconds))

    def closed(
        self,
        closed: RoundEndRecord,
        accepted: tuple[Contribution, ...],
        promises: Mapping[PeerId, messages.TrainReply],
        exchange: ExchangeReport,
    ) -> None:
        """The round is over. Losses and training times are what the members state."""
        now = time.monotonic()
        said = [promises[c.peer] for c in accepted if c.peer in promises]
        losses = [x for p in said for x in p.statistics.losses]
        self._journal.emit(
            RoundEndEvent(
                round=closed.round,
                rounds=self._total,
                peers=len(accepted),
                loss=sum(losses) / len(losses) if losses else 0.0,
                tokens=sum(c.weight for c in accepted),
                root=closed.root.hex(),
                waited_for=self._last_in,
                seconds=now - self._closed_at,
                train_seconds=max((p.seconds for p in said), default=0.0),
                sync_bytes=0,  # the supervisor knows what all processes have sent
                way=exchange.way,
                way_predicted=exchange.predicted,
                way_taken=exchange.taken,
                payload_bytes=exchange.payload,
            )
        )
        self._closed_at = now
