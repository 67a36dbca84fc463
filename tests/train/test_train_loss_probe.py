"""What a verifier's worker measures: one contribution alone, on windows that a seed names; it changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest

from farflung.core import limits
from farflung.core.errors import RunError
from farflung.core.tensor_layout import TensorLayout
from farflung.job.spec import JobSpec
from farflung.train import loss_probe, public_state, worker_messages
from farflung.train.engine import WorkerEngine
from farflung.train.sync_arithmetic import Sync

replace = msgspec.structs.replace
Asked = tuple[WorkerEngine, worker_messages.LossProbeCommand, Any]


def asked(engine: Callable[..., WorkerEngine], spec: JobSpec, members: int = 2, windows: int = 8) -> Asked:
    """An engine, a probe of these members' honest round 0, and public state before it."""
    engines = [engine(spec, member) for member in range(members)]
    packed = engines[0].handle(worker_messages.InitializeCommand()).snapshot
    for each in engines:
        each.handle(worker_messages.LoadCommand(0, packed, b""))
    made = [each.handle(worker_messages.TrainCommand(0)) for each in engines]
    parts = tuple(
        worker_messages.AcceptedPayload(e._job.setup.peer, spec.round_tokens, m.payload)  # type: ignore[union-attr]
        for e, m in zip(engines, made, strict=True)
    )
    return (engines[0], worker_messages.LossProbeCommand(packed, tuple(range(members)), parts, windows, 5), made)


def longer(spec: JobSpec) -> JobSpec:
    """Long enough to learn something."""
    return replace(spec, batch=8, sync=replace(spec.sync, steps=8))


def test_honest_work_gains_on_held_out_and_on_its_own_data_and_noise_loses(
    engine: Callable[..., WorkerEngine], tiny: JobSpec
) -> None:
    spec = longer(tiny)
    bench, request, _ = asked(engine, spec)
    found = bench.handle(request)
    assert isinstance(found, worker_messages.LossProbeResult)
    for score in found.each:
        held, own = score.gains(found.held_before)
        assert held > 0
        assert own > 0
    layout, sync, part = bench._job.model.layout, Sync.of(spec), request.parts[0]  # type: ignore[union-attr]
    about = sync.about(public_state.unpack(request.snapshot, layout), layout, part.peer)
    noise = np.random.default_rng(1).standard_normal(layout.size).astype(np.float32)
    _, worse = sync.codec(0).encode(None, noise, layout, about)
    (bad,) = bench.handle(replace(request, members=(0,), parts=(replace(part, payload=worse),))).each
    assert bad.held > found.held_before
    assert bad.own > bad.before


def test_what_one_contribution_does_depends_on_no_other_and_on_no_momentum(
    engine: Callable[..., WorkerEngine], tiny: JobSpec
) -> None:
    bench, request, _ = asked(engine, tiny)
    both = bench.handle(request)
    alone = bench.handle(replace(request, members=(1,), parts=request.parts[1:]))
    assert (both.held_before, both.each[1]) == (alone.held_before, alone.each[0])
    layout: TensorLayout = bench._job.model.layout  # type: ignore[union-attr]
    state = public_state.unpack(request.snapshot, layout)
    assert state.vectors
    heavy = {name: np.ones_like(vector) for name, vector in state.vectors.items()}
    sync, part = Sync.of(tiny), request.parts[0]
    values = sync.decode(sync.about(state, layout, part.peer), layout, part.payload)
    pushed = public_state.PublicState(0, state.params, heavy)
    _, payload = sync.codec(0).encode(None, values, layout, sync.about(pushed, layout, part.peer))
    after = sync.alone(pushed, layout, replace(part, payload=payload))
    fresh = sync.alone(state, layout, part)
    assert np.abs(after - fresh).max() < 0.1 * np.abs(fresh - state.params).max()


def test_a_delayed_contribution_is_measured_at_once(engine: Callable[..., WorkerEngine], tiny: JobSpec) -> None:
    spec = replace(tiny, sync=replace(tiny.sync, delay=1))
    bench, request, _ = asked(engine, spec)
    found = bench.handle(request)
    assert all(any(gains) for gains in by_peer_of(found).values())


def by_peer_of(found: worker_messages.LossProbeResult) -> dict[Any, tuple[int, int]]:
    return {score.peer: score.gains(found.held_before) for score in found.each}


def test_a_probe_changes_nothing_and_gives_the_same_again(engine: Callable[..., WorkerEngine], tiny: JobSpec) -> None:
    bench, request, made = asked(engine, tiny)
    first = bench.handle(request)
    assert bench.handle(request) == first
    other = bench.handle(replace(request, seed=6))
    assert other.each != first.each
    merged = bench.handle(worker_messages.MergeCommand(0, request.parts))
    untouched, _, _ = asked(engine, tiny)
    assert merged.root == untouched.handle(worker_messages.MergeCommand(0, request.parts)).root
    assert made


def test_own_windows_are_those_that_the_member_was_to_train_on(
    engine: Callable[..., WorkerEngine], tiny: JobSpec
) -> None:
    bench, request, _ = asked(engine, tiny, windows=6)
    job = bench._job
    assert job is not None
    inputs, targets = loss_probe.own_rows(job, 0, 1, tiny.round_tokens, request)
    assigned = [row.tobytes() for step in range(tiny.sync.steps) for row in job.batches(0, 1)(step)[0]]
    assert sorted(row.tobytes() for row in inputs) == sorted(assigned)  # 6 windows are all of 3 steps of 2 rows
    assert inputs.shape == targets.shape == (6, tiny.model.context)
    short, _ = loss_probe.own_rows(
        job, 0, 1, tiny.step_tokens, request
    )  # of a member with one step: its first rows alone
    assert {row.tobytes() for row in short} == set(assigned[:2])
    held, _ = loss_probe.held_rows(job, 5, 4)
    text = job.data.heldout
    assert all(any((text[s : s + 8] == row).all() for s in range(len(text) - 8)) for row in held)


def test_a_contribution_that_breaks_the_model_is_the_worst_and_keeps_no_other_from_being_scored(
    engine: Callable[..., WorkerEngine], tiny: JobSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, request, _ = asked(engine, tiny)
    honest, breaking, alone = bench.handle(request), request.parts[0], Sync.alone

    def broken(sync: Sync, state: Any, layout: TensorLayout, part: worker_messages.AcceptedPayload) -> Any:
        return alone(sync, state, layout, part) * (np.nan if part is breaking else 1.0)

    monkeypatch.setattr(Sync, "alone", broken)
    found = bench.handle(request)
    assert (found.each[0].held, found.each[0].own) == (limits.STATED, limits.STATED)
    assert (found.held_before, found.each[0].before) == (honest.held_before, honest.each[0].before)
    assert found.each[1] == honest.each[1]


@pytest.mark.parametrize("wrong", [{"windows": 0}, {"members": (0,)}])
def test_a_probe_of_nothing_is_refused(
    engine: Callable[..., WorkerEngine], tiny: JobSpec, wrong: dict[str, Any]
) -> None:
    bench, request, _ = asked(engine, tiny)
    with pytest.raises(RunError, match="FF-TRAIN-106"):
        bench.handle(replace(request, **wrong))
