from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from farflung.core.errors import UsageError
from farflung.train.token_sampler import SamplingOptions, draw, stream

SCORES = torch.tensor([0.0, 2.0, 1.0, -1.0, 2.0], dtype=torch.float64)


def generator(seed=1):
    return torch.Generator().manual_seed(seed)


def drawn(options, count=4000, scores=SCORES, seed=1):
    random = generator(seed)
    return Counter(draw(scores, options, random) for _ in range(count))


def successor(x_BT: Tensor) -> Tensor:
    """A model that is sure: after token n comes n + 1."""
    return 50.0 * torch.nn.functional.one_hot((x_BT + 1) % 7, 7).float()


def test_temperature_zero_takes_the_first_of_the_likeliest_and_draws_nothing():
    random = generator()
    before = random.get_state()
    assert {draw(SCORES, SamplingOptions(temperature=0), random) for _ in range(10)} == {1}
    assert torch.equal(random.get_state(), before)


def test_top_1_is_greedy_whatever_the_temperature():
    assert set(drawn(SamplingOptions(temperature=5, top_k=1, top_p=1))) == {1}


def test_top_k_draws_from_the_k_likeliest():
    assert set(drawn(SamplingOptions(temperature=3, top_k=3, top_p=1))) == {1, 2, 4}


def test_top_p_keeps_the_fewest_that_hold_the_share():
    shares = torch.softmax(SCORES, 0)
    two = float(shares[1] + shares[4])
    assert set(drawn(SamplingOptions(temperature=1, top_p=two - 0.01))) == {1, 4}
    assert set(drawn(SamplingOptions(temperature=1, top_p=two + 0.01))) == {1, 2, 4}
    assert set(drawn(SamplingOptions(temperature=1, top_p=0.001))) == {1}


@pytest.mark.slow
def test_tokens_come_as_often_as_softmax_says():
    count = 20_000
    seen = drawn(SamplingOptions(temperature=1.5, top_p=1), count)
    shares = torch.softmax(SCORES / 1.5, 0)
    for token, share in enumerate(shares.tolist()):
        assert abs(seen[token] / count - share) < 4 * (share * (1 - share) / count) ** 0.5


def test_the_same_seed_gives_the_same_tokens_and_another_one_others():
    options = SamplingOptions(temperature=1, top_p=1)

    def text(seed):
        random = generator(seed)
        flat = lambda x: torch.zeros(1, x.shape[1], 256)  # noqa: E731
        return list(stream(flat, [1], 40, 8, options, random))

    assert text(3) == text(3) != text(4)


@settings(max_examples=60)
@given(
    st.lists(st.floats(-30, 30), min_size=1, max_size=40),
    st.floats(0.05, 10),
    st.integers(0, 50),
    st.floats(0.001, 1),
    st.integers(0, 99),
)
def test_a_drawn_token_is_always_among_those_that_the_options_leave(scores, temperature, top_k, top_p, seed):
    logits = torch.tensor(scores, dtype=torch.float64)
    token = draw(logits, SamplingOptions(temperature, top_k, top_p), generator(seed))
    shifted = logits - logits.max()  # what is drawn from: two that differ by less than it can tell are alike
    better = shifted > shifted[token]
    assert int(better.sum()) < (top_k or len(scores))
    shares = torch.softmax(shifted / temperature, 0)
    assert float(shares[better].sum()) < top_p + 1e-9


def test_the_model_sees_the_last_tokens_of_its_context():
    seen = []

    def watching(x_BT):
        seen.append(x_BT[0].tolist())
        return successor(x_BT)

    options = SamplingOptions(temperature=0)
    assert list(stream(watching, [4, 5, 6, 0, 1], 5, 3, options, generator())) == [2, 3, 4, 5, 6]
    assert seen[0] == [6, 0, 1]
    assert all(len(tokens) == 3 for tokens in seen)


def test_tokens_that_are_no_bytes_are_never_drawn():
    sure = lambda x: torch.arange(300.0).expand(1, x.shape[1], 300)  # noqa: E731
    assert list(stream(sure, [1], 3, 8, SamplingOptions(temperature=0), generator())) == [255] * 3


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (SamplingOptions(temperature=-1), "temperature"),
        (SamplingOptions(temperature=float("nan")), "temperature"),
        (SamplingOptions(temperature=11), "temperature"),
        (SamplingOptions(top_k=-1), "top-k"),
        (SamplingOptions(top_p=0), "top-p"),
        (SamplingOptions(top_p=1.1), "top-p"),
    ],
)
def test_an_option_without_a_meaning_is_refused(options, named):
    with pytest.raises(UsageError) as caught:
        next(stream(successor, [1], 1, 8, options, generator()))
    assert caught.value.code == "FF-TRAIN-103"
    assert named in caught.value.message


@pytest.mark.parametrize("answer", [None, torch.zeros(3), torch.zeros(2, 1, 5), torch.full((1, 1, 5), float("nan"))])
def test_logits_that_cannot_be_used_are_refused(answer):
    with pytest.raises(UsageError) as caught:
        next(stream(lambda x: answer, [1], 1, 8, SamplingOptions(), generator()))
    assert caught.value.code == "FF-TRAIN-104"
