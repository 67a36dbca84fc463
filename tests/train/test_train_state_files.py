"""Snapshots and checkpoints: one form, bounded, total."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.core.errors import RunError, VerificationError
from farflung.core.ids import ZERO_HASH
from farflung.core.tensor_layout import TensorLayout
from farflung.job.spec import OptimizerSpec
from farflung.train import inner_state, public_state
from farflung.train.inner_state import InnerState
from farflung.train.public_state import PublicState

LAYOUT = TensorLayout.of({"a": (3, 4), "b": (5,)})
OTHER = TensorLayout.of({"a": (3, 4), "c": (5,)})
ADAMW = OptimizerSpec()


def vector(seed):
    return np.random.default_rng(seed).standard_normal(LAYOUT.size).astype(np.float32)


def make_state(momentum=True):
    return PublicState(6, vector(1), {"momentum": vector(2)} if momentum else {})


def make_inner():
    return InnerState(7, 105, (vector(3), vector(4)), vector(5))


@pytest.mark.parametrize("momentum", [True, False])
def test_a_snapshot_comes_back_bit_for_bit(momentum):
    state = make_state(momentum)
    packed = public_state.pack(state, LAYOUT)
    back = public_state.unpack(packed, LAYOUT)
    assert back.round == 6
    assert back.root(LAYOUT) == state.root(LAYOUT)
    assert ("momentum" in back.vectors) is momentum
    assert public_state.pack(back, LAYOUT) == packed


STATES = [make_inner(), InnerState(), InnerState(2, 30, (), vector(1)), InnerState(2, 30, (), vector(1), vector(2))]


@pytest.mark.parametrize("held", STATES)
def test_inner_state_comes_back_bit_for_bit(held):
    packed = inner_state.pack(held, ADAMW, LAYOUT)
    back = inner_state.unpack(packed, ADAMW, LAYOUT)
    assert (back.round, back.step, len(back.vectors)) == (held.round, held.step, len(held.vectors))
    assert all(np.array_equal(a, b) for a, b in zip(back.vectors, held.vectors, strict=True))
    assert inner_state.pack(back, ADAMW, LAYOUT) == packed


@settings(max_examples=60)
@given(st.data())
def test_a_flipped_bit_anywhere_is_found(data):
    packed = bytearray(inner_state.pack(make_inner(), ADAMW, LAYOUT))
    place = data.draw(st.integers(0, 8 * len(packed) - 1))
    packed[place // 8] ^= 1 << place % 8
    with pytest.raises(RunError, match=r"FF-TRAIN-07[01]|FF-CORE-095"):
        inner_state.unpack(bytes(packed), ADAMW, LAYOUT)


@settings(max_examples=60)
@given(st.binary(max_size=300), st.integers(0, 240))
def test_any_bytes_are_read_or_refused(noise, cut):
    packed = public_state.pack(make_state(), LAYOUT)
    for bad in (noise, packed[:cut], packed[:57] + noise, packed + noise + b"x"):
        with pytest.raises(RunError, match=r"FF-TRAIN-07[01]|FF-CORE-095"):
            public_state.unpack(bad, LAYOUT)


def test_bytes_of_one_kind_are_not_read_as_the_other():
    with pytest.raises(RunError, match="FF-TRAIN-070"):
        public_state.unpack(inner_state.pack(make_inner(), ADAMW, LAYOUT), LAYOUT)


def test_another_model_is_named():
    with pytest.raises(RunError, match="FF-TRAIN-071"):
        public_state.unpack(public_state.pack(make_state(), LAYOUT), OTHER)


def test_another_optimizer_is_named():
    with pytest.raises(RunError, match=r"FF-TRAIN-071.*sgd has velocity"):
        inner_state.unpack(inner_state.pack(make_inner(), ADAMW, LAYOUT), OptimizerSpec(name="sgd"), LAYOUT)


def test_nan_in_a_snapshot_is_refused():
    state = make_state()
    bad = state.params.copy()
    bad[3] = np.nan
    with pytest.raises(RunError, match=r"FF-TRAIN-070.*NaN"):
        public_state.unpack(public_state.pack(PublicState(6, bad), LAYOUT), LAYOUT)


def test_a_stale_snapshot_and_a_wrong_root_are_refused():
    state = make_state()
    assert public_state.check(state, LAYOUT, 6, state.root(LAYOUT)) is state
    with pytest.raises(RunError, match=r"FF-TRAIN-072.*round 6"):
        public_state.check(state, LAYOUT, 7)
    with pytest.raises(VerificationError, match="FF-TRAIN-073"):
        public_state.check(state, LAYOUT, 6, ZERO_HASH)


def test_public_state_cannot_be_changed_under_its_root():
    state = make_state()
    with pytest.raises(ValueError, match="read-only"):
        state.params[0] = 1.0
