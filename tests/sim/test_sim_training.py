"""Peers whose data differ, who come and go, and whose payloads arrive in any order: what they train stays one model."""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Iterator

import numpy as np
import pytest
import sim_training
from sim_training import Training, job

from farflung.compress import kernels

pytestmark = pytest.mark.whole

# A method's tests stay together: its undisturbed run is trained once for all of them.
METHODS = [
    pytest.param(method, marks=pytest.mark.xdist_group(f"{method} trained")) for method in ("sparse_loco", "muloco")
]
EVERYBODY = range(4)


@pytest.fixture(autouse=True)
def twins() -> Iterator[None]:
    """NumPy's form of the codecs: for a model this small, compiling the other one takes longer than the tests."""
    cache = kernels._settings.cache
    kernels.use("numpy")
    yield
    kernels.use("auto", cache)


@functools.cache
def trained(method: str, weights: tuple[int, ...] = (1, 1, 1, 1)) -> Training:
    """A whole run of four, to be looked at and not to be trained further."""
    training = Training(job(method))
    peers = training.peers(weights)
    for _ in range(training.spec.rounds):
        training.round(peers)
    return training


@functools.cache
def alone(method: str) -> tuple[np.ndarray, ...]:
    """The weights of each of four who train by themselves."""
    single = Training(job(method))
    return tuple(single.alone(peer) for peer in single.peers((1, 1, 1, 1)))


@pytest.mark.parametrize("method", METHODS)
def test_peers_with_different_data_make_a_model_that_is_better_on_all_of_it_than_any_peer_alone(method: str) -> None:
    training = trained(method)
    together = training.loss(training.state.params, EVERYBODY)
    on_union = [training.loss(params, EVERYBODY) for params in alone(method)]
    on_own = [training.loss(params, [i]) for i, params in enumerate(alone(method))]
    print(method, together, on_union, on_own)
    assert together < min(on_union) - 0.3
    assert all(own < whole - 0.5 for own, whole in zip(on_own, on_union, strict=True))  # the data do differ


@pytest.mark.xdist_group("muloco trained")
def test_a_peer_with_more_weight_has_more_say() -> None:
    equal, heavy = trained("muloco"), trained("muloco", (6, 1, 1, 1))
    assert heavy.loss(heavy.state.params, [0]) < equal.loss(equal.state.params, [0]) - 0.1
    assert heavy.loss(heavy.state.params, [1, 2, 3]) > equal.loss(equal.state.params, [1, 2, 3])


@pytest.mark.xdist_group("sparse_loco trained")
def test_the_order_of_arrival_changes_no_bit_of_any_round() -> None:
    """Of every order of one round: below."""
    one, other = (Training(sim_training.with_rounds(job("sparse_loco", sync__steps="2"), 4)) for _ in range(2))
    shuffle = random.Random(5)
    mine, theirs = one.peers((1, 2, 3, 4)), other.peers((1, 2, 3, 4))
    for _ in range(4):
        root = one.round(mine)
        parts = [other.contribute(peer) for peer in theirs]
        shuffle.shuffle(parts)
        assert other.merge(parts) == root


def test_every_order_of_one_round_gives_one_root() -> None:
    training = Training(job("muloco"))
    parts = [training.contribute(peer) for peer in training.peers((1, 2, 3, 4))]
    start, roots = training.state, set()
    for order in itertools.permutations(parts):
        training.state = start
        roots.add(training.merge(order))
    assert len(roots) == 1


@pytest.mark.parametrize("method", METHODS)
def test_a_run_goes_on_while_peers_leave_and_join(method: str) -> None:
    training = Training(job(method))
    peers = training.peers((1, 1, 1, 1))
    start = training.loss(training.state.params, EVERYBODY)
    there = [(0, 1, 2, 3)] * 3 + [(0, 1, 3)] * 2 + [(1, 3)] * 2 + [(0, 1, 2, 3)] * 5
    assert len(there) == training.spec.rounds
    for number, members in enumerate(there):
        if number == 7:  # two come back who kept nothing, as newcomers do
            for member in (0, 2):
                peers[member] = training.peers((1, 1, 1, 1))[member]
            training.state = sim_training.copied(training.state)
        training.round([peers[m] for m in members])
    whole = trained(method)
    ended, steady = (t.loss(t.state.params, EVERYBODY) for t in (training, whole))
    print(method, start, steady, ended)
    assert ended < steady + 0.5 * (start - steady)
    assert ended < min(training.loss(params, EVERYBODY) for params in alone(method))


@pytest.mark.parametrize("method", METHODS)
def test_a_peer_that_leaves_loses_its_own_error_feedback_and_nobody_elses(method: str) -> None:
    """Two runs: peer 3 is away for two rounds; in one it keeps its private state, in the other it loses it."""
    spec = sim_training.with_rounds(job(method, sync__steps="2"), 6)
    keeps, loses = Training(spec), Training(spec)
    runs = [(keeps, keeps.peers((1, 1, 1, 1))), (loses, loses.peers((1, 1, 1, 1)))]
    for members in ((0, 1, 2, 3), (0, 1, 2, 3), (0, 1, 2), (0, 1, 2)):
        assert len({training.round([peers[m] for m in members]) for training, peers in runs}) == 1
    gone = runs[1][1]
    gone[3] = loses.peers((1, 1, 1, 1))[3]
    parts = [[training.contribute(peer) for peer in peers] for training, peers in runs]
    same = [a.payload == b.payload for a, b in zip(*parts, strict=True)]
    assert same == [True, True, True, False]
    for kept, lost in zip(runs[0][1][:3], gone[:3], strict=True):
        assert kept.residual is not None
        assert np.array_equal(kept.residual, lost.residual)
    assert keeps.merge(parts[0]) != loses.merge(parts[1])
    for training, peers in runs:  # and both go on
        training.round(peers)
        assert np.isfinite(training.state.params).all()
