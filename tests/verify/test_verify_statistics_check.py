"""What peers state of their rounds: figures in the log, bound to the trace, and who lies apart from the others."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from verify_story import PEERS as KEYS
from verify_story import SPEC, Story

from farflung.core import limits
from farflung.core.codec import encode
from farflung.core.crypto import digest
from farflung.core.errors import VerificationError
from farflung.core.ids import ZERO_HASH, PeerId
from farflung.job.spec import AuditSpec
from farflung.train.contribution_trace import (
    BorderRoots,
    ContributionTrace,
    LoggedStatistics,
    TraceLeaf,
    TrainingStatistics,
    are_opened,
    statistics_index,
)
from farflung.train.run_log import Contribution
from farflung.verify import statistics_check
from farflung.verify.run_replay import verify_run
from farflung.verify.statistics_check import PEERS, odd_peers

UNIT = 1 << 20


def peer(index: int) -> PeerId:
    return PeerId(bytes([index]) * 32)


def said(losses: list[float], norms: list[float] | None = None) -> dict[PeerId, LoggedStatistics]:
    gradients = norms or [1.0] * len(losses)
    pairs = zip(losses, gradients, strict=True)
    return {peer(i): TrainingStatistics((loss,), norm, 1).stated for i, (loss, norm) in enumerate(pairs)}


# The figures


def test_figures_are_the_mean_loss_and_the_largest_norm_in_units_of_2_to_the_minus_20() -> None:
    assert TrainingStatistics((2.0, 1.0, 1.5), 0.75, 3).stated == LoggedStatistics(3 * UNIT // 2, 3 * UNIT // 4)
    assert TrainingStatistics((), 0.0, 0).stated == LoggedStatistics(0, 0)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e300, -1e300])
def test_what_is_no_number_is_the_limit(value: float) -> None:
    assert TrainingStatistics((value,), value, 1).stated == LoggedStatistics(limits.STATED, limits.STATED)


@given(st.lists(st.floats(), max_size=9), st.floats())
def test_whatever_is_stated_becomes_bounded_integers(losses: list[float], norm: float) -> None:
    stated = TrainingStatistics(tuple(losses), norm, 1).stated
    assert abs(stated.loss) <= limits.STATED >= abs(stated.norm)


def test_a_statement_stands_under_the_trace_and_another_does_not() -> None:
    border = BorderRoots(0, 0, 0, ZERO_HASH, ZERO_HASH, ZERO_HASH)
    trace = ContributionTrace((border,) * 5, TrainingStatistics((2.0,), 1.0, 8), digest("test/payload"))
    leaf = TraceLeaf(statistics_index(4), encode(trace.statistics), trace.statistics_path)
    assert are_opened(trace.root, 4, [leaf])
    other = replace(leaf, data=encode(replace(trace.statistics, losses=(1.9,))))
    assert not are_opened(trace.root, 4, [other])


# Who lies apart


def test_peers_that_state_about_the_same_are_not_odd() -> None:
    assert odd_peers(said([2.0 + i / 100 for i in range(PEERS)])) == ()


@pytest.mark.parametrize(("loss", "is_odd"), [(2.18, False), (2.2, True), (1.82, False), (1.8, True), (0, True)])
def test_a_loss_beyond_six_times_the_floor_is_odd_among_equal_ones(loss: float, is_odd: bool) -> None:
    """The floor: 1/64 of 2, so six are 0.1875."""
    assert odd_peers(said([2.0] * (PEERS - 1) + [loss])) == ((peer(PEERS - 1),) if is_odd else ())


@pytest.mark.parametrize(("off", "is_odd"), [(5.9, False), (6.1, True)])
def test_six_median_deviations_count_where_they_are_wider(off: float, is_odd: bool) -> None:
    losses = [2.0, 2.1, 1.9, 2.1, 1.9, 2.1, 1.9, 2.0 + off / 10]
    assert odd_peers(said(losses)) == ((peer(7),) if is_odd else ())


@pytest.mark.parametrize(("norm", "is_odd"), [(2.4, False), (2.6, True), (1e12, True), (math.nan, True)])
def test_a_gradient_norm_may_vary_more(norm: float, is_odd: bool) -> None:
    assert odd_peers(said([2.0] * 9, [1.0] * 8 + [norm])) == ((peer(8),) if is_odd else ())


def test_few_peers_have_no_deviation_worth_the_name() -> None:
    assert odd_peers(said([2.0] * (PEERS - 2) + [9.0])) == ()


def test_order_decides_nothing() -> None:
    stated = said([2.0, 2.1, 1.9, 7.0, 2.0, 2.0, 2.1, -5.0, 2.0])
    assert odd_peers(stated) == odd_peers(dict(reversed(stated.items()))) == (peer(3), peer(7))


def test_honest_peers_are_rarely_odd() -> None:
    """Losses of 20 steps on different batches (spread of 2 %), norms that vary by a fifth: 1,000 rounds of 16 peers."""
    random = np.random.default_rng(1)
    found = sum(
        len(odd_peers(said(random.normal(2.0, 0.04, 16).tolist(), random.lognormal(0.0, 0.2, 16).tolist())))
        for _ in range(1000)
    )
    assert found < 0.01 * 16_000


# The second reader


class Odd(Story):
    """The first peer states another loss than the others in the last round."""

    def contribution(self, key: Any, round: int) -> Contribution:
        is_odd = round == 2 and key is KEYS[0]
        return replace(super().contribution(key, round), stated=LoggedStatistics(9 * UNIT if is_odd else UNIT, UNIT))


def test_whoever_reads_the_log_draws_the_same_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics_check, "PEERS", 2)
    spec = replace(SPEC, audit=AuditSpec(rate=0.0, probation=1))
    with pytest.raises(VerificationError, match="FF-VERI-036"):
        verify_run(Odd(spec=spec).export())
    flagged = {"flagged": lambda truth, round: {KEYS[0].public: "statistics"} if round == 2 else truth}
    verify_run(Odd(flagged, spec=spec).export())
