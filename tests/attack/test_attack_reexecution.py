"""A finished run trained again by a second reader (V4): who lied is not found true, whatever the log says of it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from cheat_play import SPEC, Worker, data

from farflung.core.crypto import NS_OBJECT, digest, local_key
from farflung.core.errors import RunError, VerificationError
from farflung.core.ids import ZERO_HASH, Hash, PeerId
from farflung.core.tensor_layout import TensorLayout
from farflung.job.spec import JobTerms
from farflung.local.verify_run.reexecute import RunReexecution, reexecute
from farflung.peers.rundir.folder import RunFolder
from farflung.train import worker_messages
from farflung.train.engine import WorkerEngine
from farflung.train.run_log import Contribution, payload_hash
from farflung.verify.export_reader import ExportedRun
from farflung.verify.reexecution import ChainRerun, condemned_places, retrial_reports
from farflung.verify.replay_report import ReplayReport
from farflung.verify.run_replay import ReplayResult

KEYS = [local_key(3, "peer", i) for i in range(2)]
ONE, TWO = (key.public for key in KEYS)
ROUNDS = SPEC.rounds


class Here:
    """A worker process that is none: its engine answers in this one."""

    def __init__(self) -> None:
        self.engine = WorkerEngine(lambda: 0.0)

    async def request(self, message: worker_messages.Request) -> worker_messages.Reply:
        """The engine's answer."""
        return self.engine.handle(message)

    async def abandon(self) -> None:
        """Nothing is under way."""


class Past:
    """What is public of a run of two peers: round 0's state, payloads, and who was accepted with which trace."""

    def __init__(self, cheat: str = "none", *, forgets: int = -1, away: int = -1, swaps: int = -1) -> None:
        """The second peer cheats, loses its state before round `forgets`, is not accepted in round `away`, and shows
        another payload than its trace names in round `swaps`.
        """
        workers = [Worker(SPEC, key, i, cheat if i else "none") for i, key in enumerate(KEYS)]
        first = workers[0].ask(worker_messages.InitializeCommand())
        self.layout, self.initial = TensorLayout.of(dict(first.shapes)), first.snapshot
        self.root = first.root
        self.payloads: dict[Hash, bytes] = {}
        self.accepted: dict[int, tuple[Contribution, ...]] = {}
        for worker in workers:
            worker.ask(worker_messages.LoadCommand(0, self.initial, b""))
        for round in range(ROUNDS):
            if round == forgets:
                workers[1].ask(worker_messages.RewindCommand(round, b""))
            made = [worker.ask(worker_messages.TrainCommand(round)) for worker in workers]
            shown = [each.payload for each in made]
            if round == swaps:
                shown[1] = _encoded(workers[1], shown[0])
            here = [i for i in range(2) if not (i and round == away)]
            parts = tuple(worker_messages.AcceptedPayload(KEYS[i].public, SPEC.round_tokens, shown[i]) for i in here)
            self.accepted[round] = tuple(self._contribution(i, made[i], shown[i]) for i in here)
            for worker in workers:
                worker.ask(worker_messages.MergeCommand(round, parts))

    def _contribution(self, i: int, made: worker_messages.TrainResult, shown: bytes) -> Contribution:
        name = payload_hash(shown)
        self.payloads[name] = shown
        about = (KEYS[i].public, SPEC.round_tokens, name, ZERO_HASH, ZERO_HASH)
        return Contribution(*about, made.trace.root, "limits")

    @property
    def terms(self) -> JobTerms:
        return JobTerms(SPEC, digest(NS_OBJECT, data()), ZERO_HASH, self.layout, ONE, self.root)

    @property
    def exported(self) -> ExportedRun:
        return ExportedRun(b"", b"", self.initial, (), 0, (), (), self.payloads.__getitem__, b"")

    def replay(self, peer: int, seat: int | None = None, packed: bytes | None = None) -> ChainRerun:
        """What a second reader sees of one peer's chain."""
        chains = RunReexecution(self.terms, self.exported, self.accepted, packed or data(), b"")
        return asyncio.run(chains.replay(Here(), KEYS[peer].public, peer if seat is None else seat, ROUNDS - 1))


def _encoded(worker: Worker, other: bytes) -> bytes:
    """A payload that can be merged and is not what the peer's work encodes to: a later training of the same round."""
    engine = worker.engine
    assert engine._round_worker is not None
    job, state = engine._at(engine._public.round)  # type: ignore[union-attr]
    change = state.params + 0.01
    return job.sync.encode(state, None, None, change, job.model.layout, worker.key.public).payload


@pytest.fixture(scope="module")
def honest() -> Past:
    return Past()


@pytest.mark.parametrize("peer", [0, 1])
def test_honest_work_comes_to_the_same_bits_in_every_round(honest: Past, peer: int) -> None:
    assert honest.replay(peer) == ChainRerun(KEYS[peer].public, frozenset(range(ROUNDS)), None)


@pytest.mark.parametrize("past", [{"forgets": 1}, {"away": 1}])
def test_a_peer_that_lost_its_state_or_was_away_is_found_true(past: dict[str, int]) -> None:
    accepted = set(range(ROUNDS)) - {past.get("away", -1)}
    assert Past(**past).replay(1) == ChainRerun(TWO, frozenset(accepted), None)


@pytest.mark.slow
@pytest.mark.parametrize("cheat", ["skip", "half-batch", "poison-encoding"])
def test_a_cheat_that_no_audit_drew_is_not_found_true(cheat: str) -> None:
    lied = Past(cheat)
    assert lied.replay(1) == ChainRerun(TWO, frozenset({0}), 1)
    assert lied.replay(0).broken is None  # and nobody else is doubted for it


CONDEMNED = frozenset({(1, TWO)})


def _retried(past: Past, condemned: frozenset[tuple[int, PeerId]] = CONDEMNED) -> list[str]:
    sample = condemned_places(past.accepted, condemned)
    assert [(place.round, place.peer) for place in sample] == sorted(condemned)
    return [each.came for each in retrial_reports(sample, [past.replay(1)])]


def test_who_was_condemned_wrongly_is_acquitted_by_the_same_bits(honest: Past) -> None:
    """Two verifiers may lie together: whoever trains the segment again finds what its node had committed to."""
    assert _retried(honest) == ["same"]
    assert _retried(Past(forgets=1)) == ["same"]


def test_who_cheated_is_not_acquitted() -> None:
    assert _retried(Past("skip")) == ["other"]
    assert _retried(Past("skip"), frozenset({(1, TWO), (2, TWO)})) == ["other", "untold"]


def test_only_what_its_round_went_on_with_is_trained_again(honest: Past) -> None:
    assert condemned_places(honest.accepted, frozenset({(1, local_key(3, "peer", 9).public)})) == ()


def test_work_on_the_data_of_another_seat_is_not_found_true(honest: Past) -> None:
    assert honest.replay(1, seat=0) == ChainRerun(TWO, frozenset(), 0)


def test_a_payload_that_is_not_that_of_its_own_trace_is_false_on_any_machine() -> None:
    with pytest.raises(VerificationError, match="FF-APP-353"):
        Past(swaps=1).replay(1)


def _again(past: Past, folder: Path, data_set: bytes | None) -> Any:
    """The whole command on a folder that holds this data set, with nothing of a ledger."""
    if data_set is not None:
        RunFolder(folder).dataset_file.write_bytes(data_set)
    records: Sequence[Any] = ()
    proven = ReplayResult(ReplayReport(), past.terms, records, None, True, (ONE, TWO), frozenset())  # type: ignore[arg-type]
    work = reexecute(RunFolder(folder), past.exported, proven, 1.0, 1, lambda _: None)
    return asyncio.run(work)


@pytest.mark.parametrize("data_set", [None, b"another data set"])
def test_data_that_the_terms_do_not_name_train_nothing(honest: Past, tmp_path: Path, data_set: bytes | None) -> None:
    """Whoever swaps what a run was trained on would have honest peers seem to lie."""
    with pytest.raises(RunError, match="FF-APP-354"):
        _again(honest, tmp_path, data_set)
