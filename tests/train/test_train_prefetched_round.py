"""Training ahead: nobody's bits depend on it, and what was guessed wrong is dropped."""

import asyncio
import itertools
import socket
import subprocess
import sys
import time

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from farflung.core.errors import RunError
from farflung.job.job_loader import load as load_job
from farflung.job.spec import AuditSpec, OptimizerSpec, SyncSpec
from farflung.train import public_state, worker_messages
from farflung.train.engine import WorkerEngine
from farflung.train.flat_model import FlatModel
from farflung.train.io.worker_pipe import WorkerPipe
from farflung.train.prefetched_round import PrefetchedRound
from farflung.train.worker_messages import (
    AcceptedPayload,
    EvaluateCommand,
    LoadCommand,
    MergeCommand,
    OpenSegmentCommand,
    RerunCommand,
    RewindCommand,
    TrainCommand,
)

STEPS, ROUNDS = 5, 3
DGC = load_job(None, flags={"sync.method": "dgc", "sync.chunk": "256"}).spec.sync
METHODS = [
    {"sync": SyncSpec("diloco", STEPS, value_bits=32, outer_momentum=0.9, delay=1)},
    {"sync": SyncSpec("sparse_loco", STEPS, "topk", topk=32, chunk=256, fragments=3, delay=1)},
    # No job has such rounds: DGC masks where a segment begins, and this is how a step inside one is told apart.
    {"sync": msgspec.structs.replace(DGC, steps=STEPS, delay=1), "optimizer": OptimizerSpec(name="gradient", lr=1e-2)},
    {"sync": SyncSpec("muloco", STEPS, delay=1), "optimizer": OptimizerSpec(name="muon", lr=1e-2)},
    {"sync": SyncSpec("muloco", STEPS)},
]
ME, OTHER = (bytes([member + 1]) * 32 for member in range(2))


@pytest.fixture
def job(tiny):
    """`job(**changes)`: the tiny job with a delay, rounds of 5 steps and segments of 2 and 3."""

    def make(**changes):
        changes = METHODS[0] | {"rounds": ROUNDS, "audit": AuditSpec(segments=2)} | changes
        return msgspec.structs.replace(tiny, **changes)

    return make


class Twins:
    """An engine that trains ahead when told to and one that never does, asked the same; and a neighbour of both."""

    def __init__(self, make, spec, module=b""):
        self.spec = spec
        self.eager, self.plain = make(spec, 0, module), make(spec, 0, module)
        self.neighbour = make(spec, 1, module)
        self.layout = self.plain._job.model.layout
        self.round, self.inner = 0, b""  # where all stand, and what the agent has kept from before the round
        self.steps = 0  # that the eager one made since a round was asked for
        self.eager._pulse = self.count

    def count(self):
        self.steps += 1

    def ask(self, request):
        self.steps = 0
        mine, right = self.eager.handle(request), self.plain.handle(request)
        assert mine == right
        return mine

    def prefetch(self, steps):
        """Steps that were made ahead, of so many that there was time for."""
        return sum(self.eager.prefetch() for _ in range(steps))

    @property
    def snapshot(self):
        return public_state.pack(self.plain._public, self.layout)

    def train(self, steps=0):
        self.trained = self.ask(TrainCommand(self.round, steps))
        return self.trained

    def merge(self, is_accepted=True):
        weight, right = self.spec.round_tokens, self.neighbour.handle(TrainCommand(self.round))
        parts = [AcceptedPayload(OTHER, weight, right.payload)]
        if is_accepted:
            parts.append(AcceptedPayload(ME, self.trained.trace.statistics.tokens, self.trained.payload))
            self.inner = self.trained.inner
        merge = MergeCommand(self.round, tuple(parts))
        self.neighbour.handle(merge)
        state = self.ask(merge)
        self.round += 1
        return state


@pytest.fixture
def twins(engine, job):
    return lambda module=b"", **changes: Twins(engine, job(**changes), module)


def between(twins, kind):
    """What may come between a round and the next: none of it changes what either makes."""
    match kind:
        case "open":
            for segment in range(2):
                twins.ask(OpenSegmentCommand(twins.round, segment))
        case "evaluate":
            twins.ask(EvaluateCommand(twins.snapshot, 64))
        case "rerun":
            twins.ask(RerunCommand(twins.snapshot, 1, 0, b""))
        case "again":
            twins.ask(TrainCommand(twins.round))
        case "rewind":
            twins.ask(RewindCommand(twins.round, twins.inner))
            twins.train()
        case "rest":
            twins.eager.rest()


KINDS = ("open", "evaluate", "rerun", "again", "rewind", "rest")
ROUND = st.fixed_dictionaries(
    {
        "steps": st.sampled_from([0, 0, 0, 2, 4]),
        "between": st.lists(st.tuples(st.integers(0, 7), st.sampled_from(KINDS)), max_size=2),
        "before": st.integers(0, 7),
        "accepted": st.sampled_from([True, True, True, False]),
        "after": st.integers(0, 7),
        "load": st.sampled_from([False, False, False, True]),
    }
)


@pytest.mark.whole
@pytest.mark.parametrize("changes", METHODS[:3])
@given(rounds=st.lists(ROUND, min_size=ROUNDS, max_size=ROUNDS))
@settings(max_examples=4, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_is_made_ahead_changes_no_bit_of_any_reply(twins, changes, rounds):
    twins = twins(**changes)
    for script in rounds:
        twins.train(script["steps"])
        for steps, kind in script["between"]:
            twins.prefetch(steps)
            between(twins, kind)
        twins.train(script["steps"])  # a round of other steps may have come between
        twins.prefetch(script["before"])
        twins.merge(script["accepted"])
        twins.prefetch(script["after"])
        if script["load"]:
            twins.ask(LoadCommand(twins.round, twins.snapshot, twins.inner))
            twins.prefetch(1)


@pytest.mark.whole
@pytest.mark.parametrize("changes", METHODS[:-1])
def test_a_round_that_was_made_ahead_is_answered_without_a_step(twins, changes):
    twins = twins(**changes)
    for round in range(ROUNDS):
        twins.train()
        assert twins.steps == (STEPS if round == 0 else 0)
        assert twins.prefetch(99) == (STEPS if round + 1 < ROUNDS else 0)
        twins.merge()


@pytest.mark.whole
@pytest.mark.parametrize("made", range(STEPS + 1))
@pytest.mark.parametrize("late", range(2))
def test_a_round_goes_on_from_the_step_that_was_made_last(twins, made, late):
    twins = twins()
    twins.train()
    assert twins.prefetch(made) == made
    twins.merge()
    assert twins.prefetch(late) == (late if 0 < made < STEPS else 0)
    twins.train()
    assert twins.steps == STEPS - made - (late if 0 < made < STEPS else 0)


def test_without_a_delay_and_before_the_first_round_nothing_is_made_ahead(twins):
    at_once = twins(**METHODS[-1])
    assert at_once.prefetch(1) == twins().prefetch(1) == WorkerEngine(lambda: 0.0).prefetch() == 0
    at_once.train()
    assert at_once.prefetch(1) == 0


def test_a_round_that_was_not_accepted_drops_what_followed_from_it(twins):
    twins = twins()
    twins.train()
    assert twins.prefetch(STEPS) == STEPS
    twins.merge(is_accepted=False)
    assert twins.prefetch(1) == 0
    twins.train()
    assert twins.steps == STEPS


@pytest.mark.parametrize("kind", ["rest", "rewind", "again"])
def test_a_round_that_is_given_up_or_trained_again_drops_what_followed_from_it(twins, kind):
    twins = twins()
    twins.train()
    twins.prefetch(STEPS)
    between(twins, kind)
    twins.merge()
    assert twins.prefetch(1) == 0
    twins.train()
    assert twins.steps == STEPS


def test_a_state_that_is_loaded_drops_what_was_made_from_another(twins):
    twins = twins()
    twins.train()
    twins.prefetch(STEPS)
    twins.merge()
    twins.ask(LoadCommand(1, twins.snapshot, twins.inner))
    twins.train()
    assert twins.steps == STEPS


@pytest.mark.parametrize(("made", "used"), [(1, 1), (2, 0), (5, 0)])
def test_fewer_steps_keep_what_was_made_before_the_borders_part(twins, made, used):
    """Segments of 2 and 3 steps, then of 1 and 1: after one step border 1 was passed and its state is not there."""
    twins = twins(audit=AuditSpec(segments=1)) if used else twins()
    twins.train()
    assert twins.prefetch(made) == made
    twins.merge()
    twins.train(2)
    assert twins.steps == 2 - used


def test_the_steps_of_the_round_before_are_what_is_guessed(twins):
    twins = twins()
    twins.train(4)
    assert twins.prefetch(99) == 4
    twins.merge()
    twins.train(4)
    assert twins.steps == 0


def guess(engine):
    """What an engine has made ahead after its first round, and what it would have to begin with."""
    engine.handle(TrainCommand(0))
    before, held = engine._public, engine._pending.after
    prefetched = PrefetchedRound(engine._round_worker, before, held)
    assert prefetched.step(lambda: 0.0)
    return prefetched, engine._job.sync.moved(before, engine._job.model.layout, None), held


def test_a_guess_holds_for_the_same_bits_alone(engine, job):
    prefetched, state, held = guess(engine(job()))
    assert prefetched.fits(state, held)
    off = state.params.copy()
    off.view(np.uint32)[7] ^= 1
    assert not prefetched.fits(public_state.PublicState(1, off, {}), held)


def test_a_guess_holds_for_its_round_and_its_private_state_alone(engine, job):
    one = engine(job())
    prefetched, state, held = guess(one)
    assert not prefetched.fits(public_state.PublicState(2, state.params, {}), held)
    assert not prefetched.fits(state, one._inner)
    assert prefetched.take(state, held, (0, 2, STEPS)) is not None
    assert prefetched.take(state, one._inner, (0, 2, STEPS)) is None


def test_a_round_given_up_is_trained_from_its_start_when_asked_again(twins):
    twins = twins()
    twins.train()
    assert twins.prefetch(1) == 1
    twins.merge()

    def give_up():
        raise RunError("FF-TRAIN-012", "the round was given up")

    twins.eager._pulse = give_up
    with pytest.raises(RunError, match="FF-TRAIN-012"):
        twins.eager.handle(TrainCommand(1))
    twins.eager._pulse = twins.count
    assert twins.prefetch(1) == 0
    twins.train()
    assert twins.steps == STEPS


@pytest.mark.parametrize("more", [0, 2])
def test_a_step_that_fails_ahead_is_not_lost_and_stops_nothing_else(user_job, engine, job, more, monkeypatch):
    spec, source = user_job("        return loss")
    one = engine(job(model=spec.model), 0, source)
    passes, scalar = itertools.count(1), FlatModel.scalar

    def failing(self, *batch):
        if next(passes) > STEPS + more:
            raise RunError("FF-TRAIN-055", "the model's forward pass failed")
        return scalar(self, *batch)

    monkeypatch.setattr(FlatModel, "scalar", failing)
    trained = one.handle(TrainCommand(0))
    assert sum(one.prefetch() for _ in range(99)) == more + 1
    one.handle(OpenSegmentCommand(0, 1))
    one.handle(MergeCommand(0, (AcceptedPayload(ME, trained.trace.statistics.tokens, trained.payload),)))
    assert not one.prefetch()
    with pytest.raises(RunError, match="FF-TRAIN-055"):
        one.handle(TrainCommand(1))


def test_steps_made_ahead_leave_torchs_draws_and_threads_alone(user_job, engine, job):
    spec, source = user_job("        return loss * (1 + torch.rand(()))")
    one = engine(job(model=spec.model), 0, source)
    one.handle(TrainCommand(0))
    drawn, threads = torch.get_rng_state(), torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    assert one.prefetch()
    assert torch.equal(torch.get_rng_state(), drawn)
    assert torch.get_num_threads() == threads


def test_the_seconds_of_a_round_count_what_was_made_ahead(setup, job):
    ticks = iter(range(10_000))
    one = WorkerEngine(lambda: float(next(ticks)))
    one.handle(setup(job()))
    one.handle(LoadCommand(0, one.handle(worker_messages.InitializeCommand()).snapshot, b""))
    trained = one.handle(TrainCommand(0))
    assert trained.seconds == 1.0  # the clock is looked at before and after
    assert sum(one.prefetch() for _ in range(99)) == STEPS
    one.handle(MergeCommand(0, (AcceptedPayload(ME, trained.trace.statistics.tokens, trained.payload),)))
    assert one.handle(TrainCommand(1)).seconds == 1.0 + STEPS


def test_a_cheat_makes_nothing_ahead_and_cheats_as_before(setup, job):
    def run(is_eager):
        one = WorkerEngine(lambda: 0.0)
        one.handle(msgspec.structs.replace(setup(job()), cheat="stale"))
        one.handle(LoadCommand(0, one.handle(worker_messages.InitializeCommand()).snapshot, b""))
        for round in range(ROUNDS):
            trained = one.handle(TrainCommand(round))
            while is_eager and one.prefetch():
                pass
            one.handle(MergeCommand(round, (AcceptedPayload(ME, trained.trace.statistics.tokens, trained.payload),)))
            yield trained

    assert list(run(is_eager=True)) == list(run(is_eager=False))


COUNTS = """        print("x", end="", flush=True)
        return loss"""
PROBES = 2  # passes that judge a model


@pytest.mark.whole
def test_a_worker_process_trains_ahead_while_nothing_is_asked_of_it(user_job, setup, engine, job, tmp_path):
    """Its model counts its forward passes: one that judges it, those of round 0, and those of round 1 unasked."""
    counted = tmp_path / "forwards"
    spec, source = user_job(COUNTS)
    spec = job(model=spec.model, rounds=2)

    async def talk(ours):
        pipe = WorkerPipe(ours)
        await pipe.request(setup(spec, 0, source))
        began = await pipe.request(worker_messages.InitializeCommand())
        await pipe.request(LoadCommand(0, began.snapshot, b""))
        replies = [await pipe.request(TrainCommand(0))]
        until = time.monotonic() + 300
        while counted.stat().st_size < PROBES + 2 * STEPS and time.monotonic() < until:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert counted.stat().st_size == PROBES + 2 * STEPS
        said = replies[0]
        replies.append(
            await pipe.request(MergeCommand(0, (AcceptedPayload(ME, said.trace.statistics.tokens, said.payload),)))
        )
        replies.append(await pipe.request(TrainCommand(1)))
        pipe.close()
        return replies

    ours, theirs = socket.socketpair()
    with theirs, counted.open("w") as printed:
        process = subprocess.Popen(
            [sys.executable, "-I", "-m", "farflung.train.io.worker", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdout=printed,
        )
    there = asyncio.run(talk(ours))
    assert process.wait(timeout=60) == 0
    assert counted.stat().st_size == PROBES + 2 * STEPS
    here = engine(spec, 0, source)
    said = here.handle(TrainCommand(0))
    merged = here.handle(MergeCommand(0, (AcceptedPayload(ME, said.trace.statistics.tokens, said.payload),)))
    for mine, other in zip((said, here.handle(TrainCommand(1))), (there[0], there[2]), strict=True):
        assert (mine.payload, mine.inner, mine.trace) == (other.payload, other.inner, other.trace)
    assert merged == there[1]
