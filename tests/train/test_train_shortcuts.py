"""Shortcuts: each claims an end of the right form, saves what it says, and lies apart from the work."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest
import torch

from farflung.job.spec import OptimizerSpec, SyncSpec
from farflung.train import segments
from farflung.train.cheating_models import frozen_elements
from farflung.train.flat_model import FlatModel
from farflung.train.segments import BorderState
from farflung.train.shortcuts import SHORTCUTS, SegmentTask, Shortcut, apart

COUNT = 4  # steps of the segment


@pytest.fixture
def segment(engine, tiny):
    """`segment(**changes)`: the segment of round 1 that goes on from an honest round 0, of COUNT steps."""

    def make(**changes):
        spec = msgspec.structs.replace(tiny, sync=SyncSpec(steps=2 * COUNT, topk=32, chunk=256), **changes)
        job = engine(spec)._job
        first = SegmentTask(job, spec, BorderState(0, 0, job.start), 0, range(COUNT))
        return replace(first, begin=replace(first.honest().end, round=1))

    return make


def worst(segment: SegmentTask, claimed: BorderState) -> float:
    found = apart(segment, segment.honest().end, claimed)
    return max(d for _, row in found for d in row)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", [OptimizerSpec(lr=1e-2), OptimizerSpec(name="sgd", lr=0.05)], ids=["muon", "sgd"])
def test_every_shortcut_claims_the_right_form_and_lies_far_from_the_work(segment, optimizer) -> None:
    one = segment(optimizer=optimizer)
    right = one.honest()
    for name, shortcut in SHORTCUTS.items():
        leg = shortcut.play(one)
        assert (leg.end.round, leg.end.step) == (right.end.round, right.end.step), name
        assert len(leg.losses) == COUNT, name
        assert all(np.isfinite(v).all() for v in (leg.end.params, *leg.end.vectors)), name
        assert len(leg.end.vectors) == len(right.end.vectors), name
        far = max(d for _, row in apart(one, right.end, leg.end) for d in row)
        assert far > 2e-3, name
        again = one.honest().end
        assert (again.params == right.end.params).all(), name  # nothing is left behind in the model or the process


@pytest.mark.parametrize(
    "name",
    [
        "skip-one",
        "skip",
        "drop-row",
        "half-batch",
        "half-context",
        "stale",
        "one-gradient",
        "momentum",
        "idle",
        "spacing",
    ],
)
def test_a_shortcut_saves_the_tokens_that_it_says(segment, monkeypatch, name) -> None:
    one, seen, original = segment(), [0], FlatModel.gradient

    def gradient(self, x_BT, y_BT):
        seen[0] += x_BT.numel()
        return original(self, x_BT, y_BT)

    monkeypatch.setattr(FlatModel, "gradient", gradient)
    SHORTCUTS[name].play(one)
    whole = COUNT * one.spec.step_tokens
    assert 1 - seen[0] / whole == pytest.approx(SHORTCUTS[name].saved(one.spec, COUNT))


def test_where_there_is_nothing_to_leave_out_nothing_is_saved(tiny) -> None:
    least = msgspec.structs.replace(tiny, batch=1)
    assert SHORTCUTS["drop-row"].saved(least, 1) == SHORTCUTS["half-batch"].saved(least, 1) == 0
    assert [SHORTCUTS[name].saved(least, 1) for name in ("skip", "stale", "one-gradient", "spacing")] == [0] * 4


def test_a_step_left_out_weighs_less_the_longer_a_segment_is(segment) -> None:
    one = segment()
    near, far = (replace(one, steps=range(count)) for count in (8, 2))
    short, long = (worst(each, SHORTCUTS["skip-one"].play(each).end) for each in (far, near))
    assert long < short
    assert {name for name, shortcut in SHORTCUTS.items() if shortcut.is_once} == {"skip-one"}


def test_the_first_layers_are_those_that_were_registered_first(segment) -> None:
    one = segment()
    layout = one.job.model.layout
    held = {tensor.name for tensor, place in layout.slices() if place in frozen_elements(one.job.model)}
    assert held == {"embed.weight"}  # more than a quarter by itself
    leg, right = (play(one).end for play in (SHORTCUTS["frozen"].play, SegmentTask.honest))
    places = {tensor.name: place for tensor, place in layout.slices()}
    assert (leg.params[places["embed.weight"]] != right.params[places["embed.weight"]]).any()


def test_a_fresh_optimizer_has_vectors_in_every_claim(engine, tiny) -> None:
    job = engine(tiny)._job
    one = SegmentTask(job, tiny, BorderState(0, 0, job.start), 0, range(1, 2))
    for name in ("idle", "skip", "interpolated"):
        end = SHORTCUTS[name].play(one).end
        assert segments.compared(end, tiny.optimizer).keys() == {"params", "mean", "square"}
        assert end.step == 1


def test_the_process_is_as_it_was_after_every_shortcut(segment) -> None:
    one = segment()
    before = torch.get_num_threads(), torch.is_autocast_enabled("cpu"), torch.backends.mkldnn.enabled
    for shortcut in SHORTCUTS.values():
        assert isinstance(shortcut, Shortcut)
        shortcut.play(one)
    assert (torch.get_num_threads(), torch.is_autocast_enabled("cpu"), torch.backends.mkldnn.enabled) == before
