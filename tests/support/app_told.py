"""Event logs of runs that never were, for what renders them: every number is made here, so that tests can name it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from farflung.core import events
from farflung.core.events import AnyEvent, SentBytesByKind, to_json
from farflung.core.money import MICRO
from farflung.peers.rundir.folder import RunFolder, RunIdentity

CREATED = 1_795_270_000.0  # 21 November 2026, 14:06:40 UTC
PEERS = tuple(f"{i:02x}" * 32 for i in (0x1A, 0x2B, 0x3C, 0x4D))
VERIFIERS = tuple(f"{i:02x}" * 32 for i in (0x5E, 0x6F))
CHEATER = PEERS[2]
ROUNDS = 8
STEPS = 20


def began(name: str = "tale") -> Iterator[AnyEvent]:
    yield events.RunStartEvent(at=0.1, run=name, name="local", seed=1, version="0.1.0", python="3.11.7", torch="2.13.0")
    yield events.PlanEvent(
        at=0.5,
        name="local",
        run=name,
        model="gpt 4x128, 4 heads, context 256",
        parameters=834_304,
        rounds=ROUNDS,
        steps=ROUNDS * STEPS,
        peers=len(PEERS),
        tokens=409_600,
        sync_bytes=22_700_000,
        ring_bytes=1_601_863_680,
        memory_bytes=554_256_227,
        seconds=64.0,
        price=431_360 * MICRO,
        escrow=634_880 * MICRO,
        data_bytes=10_011_809,
        sync="sparse_loco H=20 topk_2bit 768/4096",
        cores=2,
    )
    yield events.SandboxEvent(
        at=0.6, tier="bwrap", gaps=("A fault in the host's kernel: the worker still makes system calls.",)
    )


def network() -> Iterator[AnyEvent]:
    for number, peer in enumerate(PEERS):
        yield events.ProcessStartEvent(at=1.0, role="provider", name=f"provider-{number}", pid=100 + number, peer=peer)
    for number, peer in enumerate(VERIFIERS):
        yield events.ProcessStartEvent(at=1.1, role="verifier", name=f"verifier-{number}", pid=200 + number, peer=peer)
    yield events.EscrowEvent(at=2.0, job="77" * 32, escrow=634_880 * MICRO, stakes=1_024_000 * MICRO)
    yield events.ProviderMatchEvent(at=2.1, peers=PEERS, offers=4, unit_price=1 * MICRO)
    yield events.EvaluationEvent(at=2.5, round=0, loss=5.356, tokens=65_536)
    yield from (events.PeerJoinEvent(at=3.0, peer=peer, round=0, replayed=0, seconds=2.5) for peer in PEERS)


def rounds(first: int, last: int, members: Sequence[str] = PEERS) -> Iterator[AnyEvent]:
    """Each takes about 5 s; the last member is the slowest, and the second is in every third round."""
    for number in range(first, last):
        start = 4.0 + 5.0 * number
        yield events.RoundStartEvent(at=start, round=number, rounds=ROUNDS, peers=tuple(members), waited=0.25)
        slow = members[1] if number % 3 == 1 and len(members) > 1 else members[-1]
        for phase, base in (("train", 3.0), ("reveal", 3.9), ("merge", 4.4)):
            for place, peer in enumerate(members):
                seconds = base + 0.05 * place + (0.4 if phase == "train" and peer == slow else 0.0)
                yield events.ArrivalEvent(at=start + seconds, round=number, peer=peer, phase=phase, seconds=seconds)
        yield events.TrafficEvent(
            at=start + 4.7,
            session=1,
            process="provider-0",
            sync=2_500_000 * (number + 1),
            audit=9_000_000 * (number + 1),
            join=8_000_000,
            control=60_000 * (number + 1),
            relay=3_000_000 * (number + 1),
        )
        yield events.RoundEndEvent(
            at=start + 4.8,
            round=number,
            rounds=ROUNDS,
            peers=len(members),
            loss=2.1 + 2.0 / (number + 1),
            tokens=12_800 * len(members),
            root=f"{number:02x}" * 32,
            waited_for=slow,
            seconds=5.05,
            train_seconds=3.0,
            sync_bytes=2_500_000 * (number + 1),
            way="all-gather" if number == 0 else "fan-out",
            way_predicted=0.5 if number == 0 else 0.25,
            way_taken=0.75 if number == 0 else 0.2 + number / 100,
        )
        if number % 2:
            loss = 2.05 + 2.2 / (number + 1)
            yield events.EvaluationEvent(at=start + 4.9, round=number + 1, loss=loss, tokens=16_384)


def audit(
    round: int, peer: str, segment: int = 0, finding: str = "holds", excess: float = 0.02, verifiers: int = 1
) -> Iterator[AnyEvent]:
    yield events.AuditDrawEvent(at=5.0 * round + 8.0, round=round, peer=peer, segment=segment)
    yield events.AuditEndEvent(
        at=5.0 * round + 9.5,
        round=round,
        peer=peer,
        segment=segment,
        verifiers=VERIFIERS[:verifiers],
        finding=finding,
        excess=excess,
        tokens=5_120,
        seconds=3.25,
    )


def caught() -> Iterator[AnyEvent]:
    yield from audit(1, CHEATER, 2, "false", 4107.129, 2)
    yield events.ProcessExitEvent(at=14.0, peer=CHEATER, reason="excluded: its work in round 1 is false")
    yield events.SlashEvent(
        at=14.1,
        peer=CHEATER,
        round=1,
        segment=2,
        why="its work is false",
        slashed=204_800 * MICRO,
        bounty=102_400 * MICRO,
        burnt=102_400 * MICRO,
        evidence="3c" * 32,
    )


def settled(pays: Sequence[tuple[str, int]]) -> Iterator[AnyEvent]:
    yield from (
        events.LeasePaymentEvent(at=46.0, peer=peer, units=max(paid, 12_800), paid=paid * MICRO) for peer, paid in pays
    )


def ways() -> Iterator[AnyEvent]:
    """Of fifteen pairs, and what two relays got."""
    yield events.PathCountsEvent(at=46.1, lan=2, direct=9, opened=3, relay=1)
    yield events.ValidatorKillEvent(at=46.1, name="ledger-4", round=2)
    yield events.ChainComparisonEvent(at=46.1, validators=4, blocks=57, least=55)
    for peer, size in (("a1" * 32, 90_000_000), ("b2" * 32, 62_000_000)):
        yield events.RelayPaymentEvent(
            at=46.2, peer=peer, bytes=size, price=100_000 * MICRO, paid=size // 10_000 * MICRO
        )


def compared() -> Iterator[AnyEvent]:
    for name, unit, planned, measured in (
        ("sync", "B", 22_700_000.0, 20_000_000.0),
        ("audit", "B", 40_000_000.0, 72_000_000.0),
        ("worker memory", "B", 554_256_227.0, 496_000_000.0),
        ("time", "s", 64.0, 47.0),
        ("price", "pico-credits", 431_360.0 * MICRO, 322_560.0 * MICRO),
    ):
        yield events.PlanComparisonEvent(at=47.0, quantity=name, unit=unit, planned=planned, measured=measured)


def baseline() -> Iterator[AnyEvent]:
    for step, loss in ((160, 2.51), (320, 2.26), (480, 2.08)):
        yield events.BaselineProgressEvent(
            at=47.0 + step / 40, step=step, steps=640, tokens=step * 640, loss=loss, seconds=step / 40
        )
    yield events.BaselineEvent(at=63.0, loss=1.997, steps=640, seconds=16.0)


RESULT = events.RunResultEvent(
    at=64.0,
    loss=2.325,
    loss_start=5.356,
    loss_unigram=3.1754,
    loss_baseline=1.997,
    bytes_sent=124_480_000,
    bytes_by=SentBytesByKind(sync=20_000_000, audit=72_000_000, join=8_000_000, control=480_000, relay=24_000_000),
    bytes_ring_bf16=1_601_863_680,
    segments_audited=5,
    caught=(CHEATER,),
    paid=322_560 * MICRO,
    slashed=204_800 * MICRO,
    refunded=312_320 * MICRO,
    bounty=102_400 * MICRO,
    burnt=102_400 * MICRO,
    sum=0,
    model_hash="ab" * 32,
    ledger_root="cd" * 32,
    seconds=64.5,
    run="tale",
    rounds=ROUNDS,
    tokens=332_800,
    reexecuted=2,
)
PAYS = (*((peer, 102_400) for peer in PEERS if peer != CHEATER), (CHEATER, 0), (VERIFIERS[0], 15_360))


def whole() -> list[AnyEvent]:
    """A finished run: a cheater caught, a process that died, a warning, one machine to compare with."""
    others = [peer for peer in PEERS if peer != CHEATER]
    return [
        *began(),
        *network(),
        *rounds(0, 2),
        *(event for peer in PEERS[:2] for event in audit(0, peer)),
        *caught(),
        events.AuditDrawEvent(at=14.2, round=2, peer=CHEATER, segment=1),
        *rounds(2, 5, others),
        events.ProcessRestartEvent(at=25.0, name="provider-1", why="it ended with signal 9", seconds=1.5),
        events.ReexecutionEvent(at=26.0, peer=PEERS[1], round=4),
        events.WarningEvent(at=27.0, code="FF-APP-089", message="no verifier can be reached", hint="farflung resume"),
        *audit(3, PEERS[0], 1, "unpaid", 1.4, 2),
        *rounds(5, ROUNDS, others),
        *audit(6, PEERS[3]),
        *settled(PAYS),
        *ways(),
        *compared(),
        *baseline(),
        events.EvaluationEvent(at=63.5, round=ROUNDS, loss=2.325, tokens=65_536),
        RESULT,
        events.RepeatedRunEvent(at=64.1, run="tale-1", differs=()),
    ]


def honest() -> list[AnyEvent]:
    """Finished, audited, nobody caught, nothing to compare with."""
    result = msgspec.structs.replace(
        RESULT, caught=(), slashed=0, bounty=0, burnt=0, loss_baseline=None, reexecuted=0, segments_audited=2
    )
    audits = [event for peer in PEERS[:2] for event in audit(0, peer)]
    return [*began(), *network(), *rounds(0, ROUNDS), *audits, *settled(PAYS), result]


def unaudited() -> list[AnyEvent]:
    """Finished without audits."""
    return [event for event in honest() if not isinstance(event, events.AuditDrawEvent | events.AuditEndEvent)]


def stopped() -> list[AnyEvent]:
    """A person ended it after three rounds; it was settled."""
    warned = events.WarningEvent(
        at=18.0, code="FF-APP-131", message="the round that is open will be finished and settled"
    )
    result = msgspec.structs.replace(RESULT, rounds=3, caught=(), segments_audited=0, loss_baseline=None)
    return [*began(), *network(), *rounds(0, 3), warned, *settled(PAYS), result]


def failed() -> list[AnyEvent]:
    """It ended in an error that names folders and addresses."""
    said = events.RunFailureEvent(
        at=20.0,
        code="FF-CORE-050",
        message="cannot write ab.bin",
        cause="No space left on device: '/home/ada/runs/tale/store/ab.bin', and 192.168.7.9:4433 is away",
        hint="free some space on the disk of /home/ada/runs, then give the command again; `farflung resume` goes on",
    )
    return [*began(), *network(), *rounds(0, 2), said]


def early_failure() -> list[AnyEvent]:
    """It failed before anybody was hired, and without a hint."""
    return [*began(), events.RunFailureEvent(at=1.0, code="FF-APP-024", message="ledger cannot be started")]


def begun() -> list[AnyEvent]:
    """Nothing but the first event."""
    return list(began())[:1]


def planned() -> list[AnyEvent]:
    """The plan is made, and nobody is hired."""
    return list(began())


def running() -> list[AnyEvent]:
    """In the middle of its fourth round, with an audit under way."""
    drawn = events.AuditDrawEvent(at=19.0, round=2, peer=PEERS[0], segment=0)
    return [*began(), *network(), *rounds(0, 3), drawn]


def single() -> list[AnyEvent]:
    """One round by one provider."""
    result = msgspec.structs.replace(RESULT, rounds=1, caught=(), segments_audited=0, loss_baseline=None)
    plan = msgspec.structs.replace(list(began())[1], rounds=1, peers=1)
    last = events.EvaluationEvent(at=9.5, round=1, loss=4.2, tokens=65_536)
    return [plan, *network(), *rounds(0, 1, PEERS[:1]), last, *settled(PAYS[:1]), result]


STORIES = {
    "whole": whole,
    "honest": honest,
    "unaudited": unaudited,
    "stopped": stopped,
    "failed": failed,
    "early-failure": early_failure,
    "begun": begun,
    "planned": planned,
    "running": running,
    "single": single,
    "nothing": list,
}


def folder(root: Path, told: Sequence[AnyEvent]) -> RunFolder:
    """A run's folder with these events and nothing else."""
    root.mkdir(parents=True)
    identity = RunIdentity(1, CREATED, "", "/", "none", False)
    (root / "run.json").write_bytes(msgspec.json.encode(identity))
    (root / "events.jsonl").write_text("".join(to_json(event) + "\n" for event in told))
    return RunFolder(root)
