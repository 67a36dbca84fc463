"""What the profile run measures, and that it leaves no trace."""

import math

import msgspec
import pytest
import torch

from farflung.core.errors import RunError
from farflung.job.spec import AuditSpec, OptimizerSpec, SyncSpec
from farflung.train import inner_steps, noise_profile, segments
from farflung.train.noise_profile import CLASSES
from farflung.train.worker_messages import LoadCommand, OpenSegmentCommand, ProfileCommand, TrainCommand


def measured(engine, spec, module=b""):
    one = engine(spec, 0, module)
    return one, one.handle(ProfileCommand(one.initialize().snapshot))


def test_it_measures_every_tensor_of_every_vector(engine, tiny):
    one, found = measured(engine, tiny)
    names = [t.name for t in one._job.model.layout.tensors]
    assert [name for name, _ in found.noise] == ["params", "mean", "square"]
    assert {len(row) for _, row in found.noise} == {len(names)}
    assert all(math.isfinite(d) and 0 <= d <= segments.UNBOUNDED for _, row in found.noise for d in row)
    # A tiny model has noise as well.
    assert sum(d > 0 for _, row in found.noise for d in row) > 2 * len(names)
    assert found.classes == tuple(CLASSES)
    assert len(found.classes) >= 3


def test_keys_stand_out_and_all_else_is_close(engine, tiny):
    wider = msgspec.structs.replace(tiny, model=msgspec.structs.replace(tiny.model, width=64, context=32), batch=8)
    one, found = measured(engine, wider)
    noise = dict(found.noise)
    apart = {t.name: d for t, d in zip(one._job.model.layout.tensors, noise["params"], strict=True)}
    assert apart.pop("blocks.0.qkv.bias") > 0.05
    assert 0 < max(apart.values()) < 1e-3
    assert 0 < max(noise["mean"]) < 1e-4
    assert max(noise["square"]) < 1e-4


def test_plain_descent_has_no_such_tensor(engine, tiny):
    spec = msgspec.structs.replace(tiny, optimizer=OptimizerSpec(name="sgd", lr=0.1))
    _, found = measured(engine, spec)
    assert [name for name, _ in found.noise] == ["params", "velocity"]
    assert max(d for _, row in found.noise for d in row) < 1e-4


def test_it_repeats_and_changes_nothing_that_a_worker_holds(engine, tiny):
    one, calm = engine(tiny), engine(tiny)
    state = calm.initialize().snapshot
    for each in (one, calm):
        each.handle(LoadCommand(0, state, b""))
    expected = calm.handle(TrainCommand(0))
    assert one.handle(TrainCommand(0)) == expected
    first, again = one.handle(ProfileCommand(state)), one.handle(ProfileCommand(state))
    assert first == again
    assert one.handle(OpenSegmentCommand(0, 1)) == calm.handle(OpenSegmentCommand(0, 1))
    assert one.handle(TrainCommand(0)) == expected


@pytest.mark.parametrize("fails", [False, True])
def test_it_sets_the_process_back(user_job, engine, tiny, fails):
    lines = "        return loss * (self.table.weight[0, 0] ** 4 + 1)" if fails else "        return loss"
    spec, source = user_job(lines)
    if fails:
        spec = msgspec.structs.replace(spec, optimizer=OptimizerSpec(name="sgd", lr=1e30, clip=0.0))
    one = engine(spec, 0, source)
    state = one.initialize().snapshot
    before = torch.get_num_threads(), torch.backends.mkldnn.enabled, one._job.spec
    if fails:
        with pytest.raises(RunError, match=r"FF-TRAIN-0(58|62)"):
            one.handle(ProfileCommand(state))
    else:
        one.handle(ProfileCommand(state))
    assert (torch.get_num_threads(), torch.backends.mkldnn.enabled, one._job.spec) == before


def test_each_class_is_really_entered(engine, tiny, monkeypatch):
    seen, original = [], inner_steps.run_steps

    def run_steps(model, spec, at, batches, member, steps, pulse):
        flags = (
            torch.get_num_threads(),
            torch.backends.mkldnn.enabled,
            isinstance(model, noise_profile.PerturbedWeightsModel),
        )
        seen.append((*flags, at.round, steps, at.step))
        return original(model, spec, at, batches, member, steps, pulse)

    monkeypatch.setattr(noise_profile.inner_steps, "run_steps", run_steps)
    monkeypatch.setattr(noise_profile, "MEASURED", {"float32": ()})
    measured(engine, tiny)
    places = [(0, range(1), 0), (2, range(1, 2), 1), (3, range(2, 3), 2)]
    assert seen == [(*kind, *place) for place in places for kind in CLASSES.values()]


def test_weights_that_are_off_give_another_gradient_and_stay(engine, tiny):
    one = engine(tiny)
    job = one._job
    off, again = (noise_profile.PerturbedWeightsModel(job.model, 7), noise_profile.PerturbedWeightsModel(job.model, 7))
    job.model.put(job.start)
    batch = inner_steps.tensors(job.batches(0, 0)(0))
    right = job.model.gradient(*batch), job.model.grads.clone()
    for model in (off, again):
        loss, grads = model.gradient(*batch), model.grads.clone()
        assert not torch.equal(grads, right[1])
        torch.testing.assert_close(grads, right[1], rtol=1e-3, atol=1e-5)
        assert loss == pytest.approx(right[0], rel=1e-5)
        assert (job.model.take() == job.start).all()
    other = noise_profile.PerturbedWeightsModel(job.model, 8)
    grads = [(model.gradient(*batch), model.grads.clone())[1] for model in (off, again, other)]
    assert torch.equal(grads[0], grads[1])
    assert not torch.equal(grads[0], grads[2])


def test_the_rates_of_the_whole_schedule_are_visited_and_long_segments_cut(tiny):
    spec = msgspec.structs.replace(tiny, rounds=9, sync=SyncSpec(steps=40), audit=AuditSpec(segments=4))
    assert noise_profile.stretches(spec) == ((0, range(3)), (4, range(20, 23)), (8, range(30, 33)))
    alone = msgspec.structs.replace(spec, rounds=1, audit=AuditSpec(segments=1))
    assert noise_profile.stretches(alone) == ((0, range(3)),) * 3


def test_a_class_that_moves_what_base_leaves_is_unbounded_and_finite(user_job, engine):
    lines = "        return loss + (getattr(torch, 'get_num' + '_threads')() - 1) * self.shift.sum()"
    spec, source = user_job(lines)
    source = source.replace(
        b"        self.register", b"        self.shift = nn.Parameter(torch.zeros(2))\n        self.register"
    )
    one, found = measured(engine, spec, source)
    names = [t.name for t in one._job.model.layout.tensors]
    apart = dict(found.noise)
    assert apart["params"][names.index("shift")] == segments.UNBOUNDED
    assert apart["mean"][names.index("shift")] == segments.UNBOUNDED


def test_shortcuts_that_save_something_are_played_and_lie_apart(engine, tiny):
    _, found = measured(engine, tiny)
    assert [each.name for each in found.shortcuts] == list(noise_profile.MEASURED["float32"])
    for each in found.shortcuts:
        assert each.saved > 0
        assert [name for name, _ in each.distances] == [name for name, _ in found.noise]
        assert max(d for _, row in each.distances for d in row) > 2e-3
    noise = max(d for _, row in found.noise[1:] for d in row)
    assert noise < 1e-3  # far below any of them


def test_what_saves_nothing_on_this_job_is_not_played(engine, tiny):
    _, found = measured(engine, msgspec.structs.replace(tiny, batch=1))
    assert [each.name for each in found.shortcuts] == ["skip-one", "bf16", "fp8"]


@pytest.mark.slow
def test_a_step_left_out_of_a_long_segment_is_a_small_part_of_it(engine, tiny):
    shares = {}
    for steps in (3, 30):
        spec = msgspec.structs.replace(tiny, sync=SyncSpec(steps=steps), audit=AuditSpec(segments=1))
        _, found = measured(engine, spec)
        one = found.shortcuts[0]
        shares[steps] = one.saved, max(d for _, row in one.distances for d in row)
    assert shares[3][0] == pytest.approx(10 * shares[30][0])
    assert 3 < shares[3][1] / shares[30][1] < 30


def test_a_model_that_does_not_bear_a_shortcut_is_profiled_without_it(user_job, engine):
    lines = """        if torch.is_autocast_enabled("cpu"):
            raise TypeError("float32 only")
        return loss"""
    _, found = measured(engine, *user_job(lines))
    assert [each.name for each in found.shortcuts] == ["skip-one", "drop-row", "fp8"]


def test_fewer_bits_of_products_are_no_way_around_a_model_that_has_none(engine, user_job):
    _, found = measured(engine, *user_job("        return loss\n"))
    assert [each.name for each in found.shortcuts] == ["skip-one", "drop-row", "fp8"]
