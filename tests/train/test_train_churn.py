"""A peer in a network with churn: rounds that were not accepted, rounds of fewer steps, and newcomers."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from farflung.core.errors import RunError
from farflung.core.ids import ZERO_HASH
from farflung.job.spec import AuditSpec, OptimizerSpec, SyncSpec
from farflung.train import inner_state, inner_steps, public_state
from farflung.train.segments import PARAMS
from farflung.train.worker_messages import (
    AcceptedPayload,
    LoadCommand,
    MergeCommand,
    OpenSegmentCommand,
    ReencodeCommand,
    RerunCommand,
    TrainCommand,
)

STEPS, ROUNDS = 6, 4
SPARSE = SyncSpec(steps=STEPS, topk=32, chunk=256)
DENSE = SyncSpec(method="diloco", codec="dense", value_bits=4, steps=STEPS, outer_momentum=0.9)
KINDS = {
    "dense": {"sync": DENSE},
    "sparse": {"sync": SPARSE},
    "streaming": {"sync": msgspec.structs.replace(DENSE, fragments=2, delay=1)},
    "sgd": {"sync": DENSE, "optimizer": OptimizerSpec(name="sgd", lr=0.1)},
}


@pytest.fixture
def spec(tiny):
    return lambda kind="dense": msgspec.structs.replace(tiny, rounds=ROUNDS, audit=AuditSpec(segments=3), **KINDS[kind])


def part(engine, trained):
    setup = engine._job.setup
    return AcceptedPayload(setup.peer, len(trained.trace.statistics.losses) * setup.spec.step_tokens, trained.payload)


def held(engine):
    """Private state, as bytes."""
    job = engine._job
    return inner_state.pack(engine._inner, job.spec.optimizer, job.model.layout)


@pytest.mark.whole
@pytest.mark.parametrize("kind", KINDS)
def test_a_round_that_was_not_accepted_did_not_happen(engine, spec, kind):
    """Whether it was trained or not: private state and all that follows are the same bytes."""
    late, absent, other = engine(spec(kind), 0), engine(spec(kind), 0), engine(spec(kind), 1)
    for round in range(ROUNDS):
        is_out = round in (1, 2)
        before = held(late)
        trained, theirs = late.handle(TrainCommand(round)), other.handle(TrainCommand(round))
        parts = [part(other, theirs)] + ([] if is_out else [part(late, trained)])
        if not is_out:
            assert absent.handle(TrainCommand(round)) == trained
        roots = {one.handle(MergeCommand(round, tuple(parts))).root for one in (late, absent, other)}
        assert len(roots) == 1
        assert held(late) == held(absent)
        assert (held(late) == before) is is_out


@pytest.mark.whole
@pytest.mark.parametrize("accepted", ["1111", "1010", "0110", "0000"])
def test_what_was_accepted_and_what_is_unsent_is_all_that_the_accepted_rounds_changed(engine, spec, accepted):
    """Error feedback telescopes over the accepted rounds: with a decay of 1 nothing is lost, and nothing sent twice."""
    sync = msgspec.structs.replace(DENSE, error_decay=1.0)
    job = msgspec.structs.replace(spec(), sync=sync)
    one, other = engine(job, 0), engine(job, 1)
    changed = np.zeros(one._job.model.layout.size, np.float64)
    sent = changed.copy()
    for round, is_in in enumerate(mark == "1" for mark in accepted):
        trained, theirs = one.handle(TrainCommand(round)), other.handle(TrainCommand(round))
        if is_in:
            at, layout, sync = one._public, one._job.model.layout, one._job.sync
            end = one._pending.states[-1].named(job.optimizer)[PARAMS]
            changed += (end - at.params).astype(np.float64)
            about = sync.about(at, layout, one._job.setup.peer)
            sent += sync.spread(round, layout, sync.decode(about, layout, trained.payload))
        parts = (part(other, theirs), *([part(one, trained)] if is_in else []))
        for each in (one, other):
            each.handle(MergeCommand(round, parts))
    unsent = 0.0 if one._inner.residual is None else one._inner.residual.astype(np.float64)
    assert np.allclose(sent + unsent, changed, rtol=0, atol=1e-5)


# Fewer steps


@pytest.mark.parametrize("steps", [3, 4, 5])
def test_a_round_of_fewer_steps_is_the_beginning_of_a_whole_one(engine, spec, steps):
    """The same data and the same rates: and it says how much it is."""
    job = spec()
    whole, short = (engine(job).handle(TrainCommand(0, n)) for n in (0, steps))
    said = short.trace.statistics
    assert said.losses == whole.trace.statistics.losses[:steps]
    assert said.tokens == steps * job.step_tokens
    assert [b.steps for b in short.trace.borders] == list(job.borders_of(steps))
    assert engine(job).handle(TrainCommand(0, STEPS)).payload == whole.payload


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dense", "streaming"])
def test_a_verifier_repeats_a_short_round_to_the_bit(engine, spec, kind):
    job = spec(kind)
    one, verifier = engine(job, 1), engine(job, 7)
    for round, steps in enumerate((5, 3, 6)):
        trained = one.handle(TrainCommand(round, steps))
        packed = public_state.pack(one._public, one._job.model.layout)
        borders = trained.trace.borders
        for segment in range(3):
            opened = one.handle(OpenSegmentCommand(round, segment))
            again = verifier.handle(RerunCommand(packed, 1, segment, opened.start, steps))
            residual = ZERO_HASH if segment == 2 else borders[segment + 1].residual
            assert again.border == msgspec.structs.replace(borders[segment + 1], residual=residual)
            encoding = verifier.handle(ReencodeCommand(packed, one._job.setup.peer, opened.last))
            assert encoding.payload == trained.trace.payload
        one.handle(MergeCommand(round, (part(one, trained),)))


@pytest.mark.parametrize("steps", [-1, 1, 2, STEPS + 1])
def test_a_round_that_the_terms_do_not_allow_is_refused(engine, spec, steps):
    """Fewer steps than segments, or more than all."""
    one = engine(spec())
    with pytest.raises(RunError, match="FF-TRAIN-013"):
        one.handle(TrainCommand(0, steps))
    assert one.handle(TrainCommand(0)) == engine(spec()).handle(TrainCommand(0))


# Newcomers


@pytest.fixture
def rates(monkeypatch):
    """The steps of the schedule that were asked for."""
    asked, right = [], inner_steps.learning_rate

    def listening(step, *about):
        asked.append(step)
        return right(step, *about)

    monkeypatch.setattr(inner_steps, "learning_rate", listening)
    return asked


def test_the_schedule_follows_the_round_and_not_what_a_member_has_made(engine, spec, rates):
    """A member of few steps, one that was passed over, and a joiner all stand where the round stands."""
    job = spec()
    one = engine(job)
    for round, steps in enumerate((3, 6, 4)):
        rates.clear()
        trained = one.handle(TrainCommand(round, steps))
        assert rates == [round * STEPS + step for step in range(steps)]
        one.handle(MergeCommand(round, (part(one, trained),) if round != 1 else (other_part(engine, one, round),)))
    joiner = engine(job, 2)
    joiner.handle(LoadCommand(3, public_state.pack(one._public, one._job.model.layout), b""))
    rates.clear()
    trained = joiner.handle(TrainCommand(3))
    assert rates == [3 * STEPS + step for step in range(STEPS)]
    first = trained.trace.borders[0]
    assert (first.steps, first.optimizer, first.residual) == (0, ZERO_HASH, ZERO_HASH)
    assert first.params == one.handle(TrainCommand(3)).trace.borders[0].params


def other_part(engine, one, round):
    job = one._job
    other = engine(job.spec, 1)
    other.handle(LoadCommand(round, public_state.pack(one._public, job.model.layout), b""))
    return part(other, other.handle(TrainCommand(round)))
