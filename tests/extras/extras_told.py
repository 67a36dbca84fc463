"""A short run as its events, for callbacks that write files: two rounds, two measurements, one caught peer."""

from __future__ import annotations

from pathlib import Path

from farflung.app.api.callbacks import Callback, Callbacks
from farflung.core import events
from farflung.core.events import AnyEvent, SentBytesByKind
from farflung.watch.fold import RunTimeline, fold

PEER = "a1" * 32


def closed(round: int) -> events.RoundEndEvent:
    return events.RoundEndEvent(
        at=3.0 + round,
        round=round,
        rounds=2,
        peers=2,
        loss=4.5 - round,
        tokens=100,
        root="00" * 32,
        waited_for=PEER,
        seconds=1.5,
        train_seconds=0.5,
        sync_bytes=640 * (round + 1),
    )


TOLD: tuple[AnyEvent, ...] = (
    events.PlanEvent(
        name="n", run="day-n", model="gpt 1x32", parameters=9, rounds=2, steps=4, peers=2, tokens=200,
        sync_bytes=1, ring_bytes=2, memory_bytes=3, seconds=4.0, price=5, escrow=6, data_bytes=7, sync="s",
    ),
    events.TrafficEvent(session=1, process="provider-0", sync=600, audit=0, join=300, control=40),
    events.EvaluationEvent(round=0, loss=5.5, tokens=64),
    closed(0),
    events.SlashEvent(peer=PEER, round=0, segment=1, why="false", slashed=2, bounty=1, burnt=1, evidence=""),
    closed(1),
    events.EvaluationEvent(at=5.0, round=2, loss=3.25, tokens=64),
    events.RunResultEvent(
        loss=3.25, loss_start=5.5, loss_unigram=3.0, bytes_sent=940, bytes_by=SentBytesByKind(), bytes_ring_bf16=2,
        segments_audited=1, caught=(PEER,), paid=1, slashed=2, refunded=3, sum=0, model_hash="ab" * 32,
        ledger_root="", seconds=9.0, run="day-n", rounds=2, tokens=200, reexecuted=0,
    ),
)  # fmt: skip


def tell(folder: Path, callback: Callback) -> None:
    """Hands the run to one callback, to its end."""
    hooks, timeline = Callbacks(folder, [callback]), RunTimeline()
    for event in TOLD:
        timeline = fold(timeline, event)
        hooks(event, timeline)
    hooks.close()
