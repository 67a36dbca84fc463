"""Exchanges every H steps, for every method and codec of the shelf, by what their codecs say."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farflung.advice.method_costs import sync_of
from farflung.advice.traffic import local_step_methods
from farflung.advice.traffic.collectives import RankSpan
from farflung.compress import registry
from farflung.compress.payload import ContributionKey
from farflung.core.crypto import digest
from farflung.core.errors import UsageError
from farflung.core.ids import PeerId
from farflung.core.tensor_layout import TensorLayout
from farflung.job.methods.registry import METHODS
from farflung.plan.state_vectors import codec_of

LAYOUT = TensorLayout.of({"a": (256, 192), "b": (192,), "c": (64, 256)})
ABOUT = ContributionKey(1, 0, digest("test"), PeerId(bytes(32)))


@given(st.integers(2, 64), st.integers(1, 500), st.sampled_from([8.0, 16.0, 32.0]))
def test_rarer_and_narrower_is_so_many_times_less(count: int, steps: int, bits: float) -> None:
    each = local_step_methods.averaged(1e9, RankSpan(count), 1).expected.sent
    rare = local_step_methods.averaged(1e9, RankSpan(count), steps, bits).expected.sent
    assert each / rare == pytest.approx(steps * 32 / bits)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_of_the_shelf_has_an_expected_exchange(method: str) -> None:
    sync = sync_of(method)
    codec = codec_of(sync)
    found = local_step_methods.coded(LAYOUT, codec, RankSpan(4), sync.steps)  # type: ignore[arg-type]  # it has a bound, too
    assert found.expected.sent == pytest.approx(3 * codec.expect(LAYOUT) / sync.steps)
    assert found.most.sent >= found.expected.sent * (1 - 1e-12)


@pytest.mark.parametrize(
    ("name", "bits", "transform"),
    [("dense", 2, "raw"), ("dense", 16, "raw"), ("dense", 32, "raw"), ("topk", 2, "raw"), ("topk", 32, "dct")],
)
def test_no_payload_is_longer_than_the_most_that_is_planned(name: str, bits: int, transform: str) -> None:
    codec = registry.make(name, value_bits=bits, topk=16, chunk=1024, transform=transform, rank=2, error_decay=0.9)
    change = np.random.default_rng(0).standard_normal(LAYOUT.size).astype(np.float32)
    _, payload = codec.encode(None, change, LAYOUT, ABOUT)
    found = local_step_methods.coded(LAYOUT, codec, RankSpan(8), 10)
    assert 7 * len(payload) / 10 <= found.most.sent
    assert found.expected.sent <= found.most.sent * (1 + 1e-12)
    fanned = local_step_methods.coded(LAYOUT, codec, RankSpan(8), 10, is_fanned=True)
    assert fanned.expected.sent == pytest.approx(found.expected.sent / 7)
    assert fanned.expected.received == pytest.approx(found.expected.received)


def test_what_is_hidden_costs_nothing_until_it_is_longer_than_the_work() -> None:
    assert local_step_methods.computing(10.0, 5.0) == pytest.approx(2 / 3)
    assert local_step_methods.computing(10.0, 5.0, is_hidden=True) == 1.0
    assert local_step_methods.computing(10.0, 20.0, is_hidden=True) == 0.5


def test_ratios_count_the_busier_way() -> None:
    straight, fanned = (local_step_methods.sent(1e6, RankSpan(8), is_fanned=flag) for flag in (False, True))
    assert straight.against_ring(1e9, 8) == fanned.against_ring(1e9, 8) == pytest.approx(2 * 7 / 8 * 2e9 / 7e6)


@pytest.mark.parametrize(
    ("code", "call"),
    [
        ("FF-PLAN-020", lambda: local_step_methods.averaged(1e9, RankSpan(8), 0)),
        ("FF-PLAN-020", lambda: local_step_methods.sent(1.0, RankSpan(8), -1)),
        ("FF-PLAN-020", lambda: local_step_methods.sent(1.0, RankSpan(8)).against_ring(1e9, 1)),
        ("FF-PLAN-020", lambda: local_step_methods.sent(1.0, RankSpan(8)).against_naive(1e9, 1)),
        ("FF-PLAN-021", lambda: local_step_methods.sent(0.0, RankSpan(8)).against_ring(1e9, 8)),
        ("FF-PLAN-021", lambda: local_step_methods.sent(1.0, RankSpan(1)).against_naive(1e9, 8)),
        ("FF-PLAN-021", lambda: local_step_methods.averaged(-1.0, RankSpan(8), 1)),
        ("FF-PLAN-021", lambda: local_step_methods.averaged(1e9, RankSpan(8), 1, 0.0)),
        ("FF-PLAN-021", lambda: local_step_methods.sent(float("nan"), RankSpan(8))),
    ],
)
def test_exchanges_that_make_no_sense_are_refused(code: str, call: object) -> None:
    with pytest.raises(UsageError) as error:
        call()  # type: ignore[operator]
    assert error.value.code == code
