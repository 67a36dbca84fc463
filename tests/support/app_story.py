"""A small run with a caught peer, as its event log would tell it; `kept` lays it into a folder of runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from farflung.core import events
from farflung.core.events import AnyEvent, SentBytesByKind, to_json
from farflung.core.money import MICRO

PEERS = tuple(f"{i:02x}" * 32 for i in range(1, 5))
ROUNDS = 3


def round_events(number: int, start: float) -> Iterator[AnyEvent]:
    members = PEERS if number == 0 else PEERS[:3]
    yield events.RoundStartEvent(at=start, round=number, rounds=ROUNDS, peers=members, waited=0.0)
    for place, phase in enumerate(("train", "reveal", "merge")):
        for peer in members:
            seconds = 1.0 + place + 0.1 * PEERS.index(peer)
            yield events.ArrivalEvent(at=start + seconds, round=number, peer=peer, phase=phase, seconds=seconds)
    for peer in members[:2] if number else members[2:]:
        yield events.AuditDrawEvent(at=start + 1.5, round=number, peer=peer, segment=1)
        is_false = peer == PEERS[3]
        yield events.AuditEndEvent(
            at=start + 3.5, round=number, peer=peer, segment=1, verifiers=PEERS[:2] if is_false else PEERS[:1],
            finding="false" if is_false else "holds", excess=900.0 if is_false else 0.0, tokens=10, seconds=0.5,
        )  # fmt: skip
    yield events.RoundEndEvent(
        at=start + 4.0, round=number, rounds=ROUNDS, peers=len(members), loss=5.0 - number, tokens=300, root="ab" * 32,
        waited_for=members[-1], seconds=4.0, train_seconds=1.2, sync_bytes=1000 * (number + 1),
    )  # fmt: skip
    if number == 0:
        why = "its work is false"
        yield events.ProcessExitEvent(at=start + 4.0, peer=PEERS[3], reason=f"excluded: {why}")
        yield events.SlashEvent(
            at=start + 4.0, peer=PEERS[3], round=0, segment=1, why=why, slashed=20 * MICRO,
            bounty=10 * MICRO, burnt=10 * MICRO,
            evidence="0f" * 32,
        )  # fmt: skip


def story(name: str = "old", model: str = "gpt 1x32") -> list[AnyEvent]:
    """A run of three rounds with a caught peer."""
    told: list[AnyEvent] = [
        events.RunStartEvent(at=0.1, run=name, name="tiny", seed=1, version="0.1.0", python="3.12", torch="2.9"),
        events.PlanEvent(
            at=0.2, name="tiny", run=name, model=model, parameters=22_000, rounds=ROUNDS, steps=9, peers=4, tokens=900,
            sync_bytes=9000, ring_bytes=90_000, memory_bytes=10**8, seconds=10.0,
            price=100 * MICRO, escrow=120 * MICRO, data_bytes=400,
            sync="sparse_loco H=3", cores=2,
        ),
        events.SandboxEvent(at=0.3, tier="bwrap", gaps=()),
        *[
            events.ProcessStartEvent(at=0.5, role="provider", name=f"provider-{i}", pid=100 + i, peer=peer)
            for i, peer in enumerate(PEERS)
        ],
        events.EscrowEvent(at=0.6, job="ee" * 32, escrow=120 * MICRO, stakes=80 * MICRO),
        events.ProviderMatchEvent(at=0.7, peers=PEERS, offers=4, unit_price=1 * MICRO),
    ]  # fmt: skip
    for number in range(ROUNDS):
        told += round_events(number, 1.0 + 5.0 * number)
    told += [
        events.LeasePaymentEvent(at=17.0, peer=peer, units=30, paid=0 if peer == PEERS[3] else 30 * MICRO)
        for peer in PEERS
    ]
    told.append(
        events.RunResultEvent(
            at=18.0, loss=3.125, loss_start=5.5, loss_unigram=3.3, bytes_sent=9999, bytes_ring_bf16=90_000,
            bytes_by=SentBytesByKind(3000, 5000, 999, 1000), segments_audited=6,
            caught=(PEERS[3],), paid=90 * MICRO, slashed=20 * MICRO, refunded=30 * MICRO, sum=0,
            model_hash="cd" * 32, ledger_root="ef" * 32, seconds=18.0, run=name, rounds=ROUNDS, tokens=900,
            reexecuted=0,
        )
    )  # fmt: skip
    return told


def kept(runs: Path, told: list[AnyEvent], name: str = "old") -> Path:
    root = runs / name
    root.mkdir(parents=True)
    (root / "run.json").write_text("{}")
    (root / "events.jsonl").write_text("".join(to_json(event) + "\n" for event in told))
    return root
