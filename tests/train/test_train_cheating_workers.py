"""Cheats: each looks like work, and repeating a segment or the encoding shows that it is none."""

import dataclasses
import itertools

import msgspec
import numpy as np
import pytest

from farflung.core.errors import SpecError
from farflung.core.ids import ZERO_HASH
from farflung.job.cheat_names import KINDS
from farflung.job.spec import OptimizerSpec, SyncSpec
from farflung.train import cheating_workers, public_state, segments
from farflung.train.engine import WorkerEngine
from farflung.train.worker_messages import (
    AcceptedPayload,
    LoadCommand,
    MergeCommand,
    OpenSegmentCommand,
    ReencodeCommand,
    RerunCommand,
    TrainCommand,
)

DISHONEST = [kind for kind in KINDS if kind != "none"]
SPOILED = [kind for kind in DISHONEST if kind != "poison-encoding"]
METHODS = [
    {},
    {
        "optimizer": OptimizerSpec(name="sgd", lr=0.05),
        "sync": SyncSpec(method="diloco", codec="dense", value_bits=32, steps=4),
    },
]
EACH = [(kind, METHODS[n % 2]) for n, kind in enumerate(KINDS)]  # each kind with one of them
ME, OTHER, VERIFIER = (bytes([member + 1]) * 32 for member in range(3))


class Run:
    """A cheat (member 0), an honest neighbour, and a verifier, at the same public state."""

    def __init__(self, setup, spec, kind):
        self.spec = spec
        self.cheat, self.neighbour, self.verifier = (
            self.start(setup, spec, member, cheat) for member, cheat in enumerate((kind, "none", "none"))
        )
        self.layout = self.cheat._job.model.layout

    @staticmethod
    def start(setup, spec, member, cheat):
        engine = WorkerEngine(lambda: 0.0)
        engine.handle(msgspec.structs.replace(setup(spec, member), cheat=cheat))
        engine.handle(LoadCommand(0, engine.initialize().snapshot, b""))
        return engine

    def round(self, number):
        self.snapshot = public_state.pack(self.cheat._public, self.layout)
        self.start_params = self.cheat._public.params
        self.trained, self.right = (e.handle(TrainCommand(number)) for e in (self.cheat, self.neighbour))
        return self.trained

    def merge(self, number):
        weight = self.spec.round_tokens
        parts = (AcceptedPayload(OTHER, weight, self.right.payload), AcceptedPayload(ME, weight, self.trained.payload))
        for engine in (self.cheat, self.neighbour, self.verifier):
            engine.handle(MergeCommand(number, parts))

    def audit(self, number, segment):
        """Distances of what the cheat claims from what the segment gives."""
        opened = self.cheat.handle(OpenSegmentCommand(number, segment))
        again = self.verifier.handle(RerunCommand(self.snapshot, 0, segment, opened.start))
        optimizer = self.spec.optimizer
        start, mine, claimed = (
            segments.unpack(data, optimizer, self.layout, number) for data in (opened.start, again.end, opened.end)
        )
        self.assert_opened(segment, start, claimed)
        params = self.start_params if start.params is None else start.params
        return segments.distances(
            self.layout, params, segments.compared(mine, optimizer), segments.compared(claimed, optimizer)
        )

    def assert_opened(self, segment, start, claimed):
        """What was opened is what stands at the trace's borders."""
        borders, optimizer = self.trained.trace.borders, self.spec.optimizer
        if start.params is None:
            start = dataclasses.replace(start, params=self.start_params)
        assert segments.border(self.layout, optimizer, segment, start) == borders[segment]
        residual = borders[segment + 1].residual
        assert segments.border(self.layout, optimizer, segment + 1, claimed, residual) == borders[segment + 1]

    def encodes(self, number):
        last = self.cheat.handle(OpenSegmentCommand(number, 0)).last
        return self.verifier.handle(ReencodeCommand(self.snapshot, ME, last))


@pytest.fixture
def run(setup, tiny):
    return lambda kind, **changes: Run(setup, msgspec.structs.replace(tiny, **changes), kind)


@pytest.mark.whole
@pytest.mark.parametrize("kind", DISHONEST)
def test_a_cheat_is_honest_in_its_first_round(run, kind):
    assert run(kind).round(0) == run("none").round(0)


@pytest.mark.whole
@pytest.mark.parametrize(("kind", "changes"), [each for each in EACH if each[0] in SPOILED])
def test_every_segment_of_a_cheat_lies_far_from_the_work(run, kind, changes):
    one = run(kind, **changes)
    for number in range(3):
        one.round(number)
        if number >= cheating_workers.FIRST:
            for segment in range(one.spec.segments):
                apart = one.audit(number, segment)
                is_skipped = kind == "skip" and segment % 2 == 0  # one step a segment: the even ones are made
                worst = max(d for section in apart.values() for d in section)
                assert worst == 0.0 if is_skipped else worst > 0.1
            assert one.encodes(number).payload == one.trained.trace.payload
        one.merge(number)


def test_poison_is_found_by_its_encoding_only(run):
    one = run("poison-encoding")
    for number in range(2):
        one.round(number)
        for segment in range(3):
            assert all((d == 0.0).all() for d in one.audit(number, segment).values())
        found, claimed = one.encodes(number), one.trained.trace
        assert found.params == claimed.borders[-1].params
        is_honest = number < cheating_workers.FIRST
        assert (found.payload == claimed.payload) is is_honest
        assert (found.residual == claimed.borders[-1].residual) is is_honest
        one.merge(number)


@pytest.mark.whole
@pytest.mark.parametrize(("kind", "changes"), EACH)
def test_a_cheat_states_a_whole_plausible_trace(run, kind, changes):
    one, honest, before = run(kind, **changes), run("none", **changes), None
    for number in range(3):
        trace, model = one.round(number).trace, honest.round(number).trace
        steps = [(b.round, b.index, b.steps) for b in trace.borders]
        assert steps == [(b.round, b.index, b.steps) for b in model.borders]
        assert trace.borders[0].params == segments.params_root(one.layout, one.start_params)
        if before is not None:
            for part in ("optimizer", "steps", "residual"):
                assert getattr(trace.borders[0], part) == getattr(before, part)
        assert trace.borders[-1].optimizer != ZERO_HASH
        seen, right = trace.statistics, model.statistics
        assert len(seen.losses) == len(right.losses)
        assert np.allclose(seen.losses, right.losses, rtol=0.5)
        assert seen.tokens == right.tokens
        assert 0 < seen.grad_norm < 10 * right.grad_norm
        before = trace.borders[-1]
        one.merge(number)
        honest.merge(number)


@pytest.mark.whole
@pytest.mark.parametrize("kind", DISHONEST)
def test_a_cheat_repeats_itself(run, kind):
    one, other = run(kind), run(kind)
    for number in range(3):
        assert one.round(number) == one.round(number) == other.round(number)
        one.merge(number)
        other.merge(number)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["stale", "noise", "copy"])
def test_a_cheat_without_a_past_is_honest_and_repeats_that_too(run, kind):
    one, honest = run(kind), run("none")
    for engine in (one, honest):
        engine.round(0)
        engine.merge(0)
    first = public_state.pack(honest.cheat._public, honest.layout)
    for engine in (one.cheat, honest.cheat):
        engine.handle(engine._job.setup)  # as after a crash
        engine.handle(LoadCommand(1, first, b""))
    expected = honest.cheat.handle(TrainCommand(1))
    assert one.cheat.handle(TrainCommand(1)) == expected
    assert one.cheat.handle(TrainCommand(1)) == expected


def test_stale_sends_its_last_change_and_trains_nothing(run):
    one = run("stale", sync=SyncSpec(method="diloco", codec="dense", value_bits=32, steps=3))
    first, calls = one.round(0), []
    one.merge(0)
    one.cheat._pulse = lambda: calls.append(1)
    change = np.frombuffer(first.payload[-4 * one.layout.size :], "<f4")
    again = np.frombuffer(one.round(1).payload[-4 * one.layout.size :], "<f4")
    np.testing.assert_allclose(again, change, atol=1e-6)
    assert not calls


def test_copy_sends_what_a_neighbour_sent(run):
    one = run("copy", sync=SyncSpec(method="diloco", codec="dense", value_bits=32, steps=3))
    one.round(0)
    theirs = np.frombuffer(one.right.payload[-4 * one.layout.size :], "<f4")
    one.merge(0)
    mine = np.frombuffer(one.round(1).payload[-4 * one.layout.size :], "<f4")
    np.testing.assert_allclose(mine, theirs, atol=1e-6)


def test_noise_has_the_length_of_honest_work_in_every_tensor(run):
    one = run("noise", sync=SyncSpec(method="diloco", codec="dense", value_bits=32, steps=3))
    changes = []
    for number in range(3):
        changes.append(np.frombuffer(one.round(number).payload[-4 * one.layout.size :], "<f4"))
        one.merge(number)
    for _, place in one.layout.slices():
        lengths = [np.linalg.norm(change[place]) for change in changes]
        np.testing.assert_allclose(lengths, lengths[0], rtol=1e-2)
    cosine = [abs(a @ b) / np.linalg.norm(a) / np.linalg.norm(b) for a, b in itertools.combinations(changes, 2)]
    assert max(cosine) < 0.1


@pytest.mark.parametrize(("kind", "share"), [("skip", 2 / 3), ("half-batch", 1 / 2), ("wrong-data", 1)])
def test_a_cheat_computes_as_little_as_it_says(run, monkeypatch, kind, share):
    from farflung.train import inner_steps

    one = run(kind)
    one.round(0)
    one.merge(0)
    rows, original = [], inner_steps._step
    monkeypatch.setattr(inner_steps, "_step", lambda *a: rows.append(len(a[2][0])) or original(*a))
    one.cheat.handle(TrainCommand(1))
    assert sum(rows) == share * one.spec.batch * one.spec.sync.steps


def test_an_unknown_cheat_is_refused(setup, tiny):
    engine = WorkerEngine(lambda: 0.0)
    with pytest.raises(SpecError, match=r"FF-TRAIN-064.*'skipp'"):
        engine.handle(msgspec.structs.replace(setup(tiny), cheat="skipp"))
    assert engine._job is None


def test_honest_workers_run_no_cheats_code(setup, tiny):
    from farflung.train.round_work import RoundWorker

    assert type(Run.start(setup, tiny, 0, "none")._round_worker) is RoundWorker
