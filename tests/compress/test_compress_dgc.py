"""Deep Gradient Compression: density by round, clipping, masking, and the whole against the paper's algorithm 4."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.compress import registry
from farflung.compress.dgc import kept, local_limit
from farflung.compress.merge import WeightedUpdate, mean, merge
from farflung.compress.payload import ContributionKey
from farflung.core.ids import Hash, PeerId
from farflung.core.tensor_layout import TensorLayout
from farflung.job.methods.dgc import DGC

CASES = settings(max_examples=100)
SETTINGS = st.integers(1, 1 << 20).flatmap(
    lambda chunk: st.tuples(st.integers(1, chunk), st.just(chunk), st.integers(0, 1 << 20))
)


def masked(velocity, residual):
    """What the inner optimizer does at a round's start (train.inner_steps)."""
    if residual is None:
        return velocity
    return DGC.begun(torch.from_numpy(velocity), torch.from_numpy(residual)).numpy()


def test_warm_up_over_four_epochs_is_the_papers():
    """Section 3.3: sparsity 75, 93.75, 98.4375, 99.6, 99.9 %."""
    chunk = 1 << 20
    found = [100 - 100 * kept(round, 4, chunk // 1000, chunk) / chunk for round in range(6)]
    assert found == pytest.approx([75, 93.75, 98.4375, 99.6, 99.9, 99.9], abs=0.05)


@CASES
@given(SETTINGS)
def test_density_falls_from_a_quarter_to_the_settings_own(case):
    topk, chunk, warmup = case
    rounds = sorted({0, 1, warmup // 3, warmup // 2, max(0, warmup - 1), warmup, warmup + 1, 2 * warmup + 9})
    found = [kept(round, warmup, topk, chunk) for round in rounds]
    assert all(a >= b for a, b in itertools.pairwise(found))
    assert all(topk <= k <= chunk for k in found)
    assert kept(warmup, warmup, topk, chunk) == topk
    assert kept(0, warmup, topk, chunk) == (max(topk, -(-chunk // 4)) if warmup else topk)


@CASES
@given(SETTINGS, st.floats(0, 1))
def test_density_is_the_geometric_mean_of_its_ends(case, part):
    topk, chunk, warmup = case
    round = int(part * warmup)
    if round >= warmup or 4 * topk >= chunk:
        return
    stages = min(warmup, 64)
    done = round * stages // warmup / stages
    exact = chunk * 0.25 ** (1 - done) * (topk / chunk) ** done
    assert exact * (1 - 1e-9) <= kept(round, warmup, topk, chunk) <= exact * (1 + 1e-9) + 1


def test_clipping_each_peer_leaves_the_norm_of_the_mean_of_independent_gradients():
    """With gradients of independent directions at the local limit, their mean lies at the limit."""
    peers, limit, size = 16, 0.5, 200_000
    random = np.random.default_rng(0)
    gradients = random.standard_normal((peers, size))
    gradients *= local_limit(limit, peers) / np.linalg.norm(gradients, axis=1, keepdims=True)
    assert np.linalg.norm(gradients.mean(0)) == pytest.approx(limit, rel=0.01)
    assert local_limit(limit, 1) == limit
    assert local_limit(0.0, 9) == 0.0


def test_mask_keeps_velocity_where_something_is_unsent():
    velocity = np.array([1, 2, 3, 4], np.float32)
    assert masked(velocity, None) is velocity
    residual = np.array([0.0, 1e-45, -0.0, -2.0], np.float32)
    assert masked(velocity, residual).tolist() == [0, 2, 0, 4]
    assert velocity.tolist() == [1, 2, 3, 4]


class Oracle:
    """Algorithm 4 (appendix B) for one node: momentum correction and factor masking. U and V are its two vectors."""

    def __init__(self, size, momentum):
        self.momentum, self.u, self.v = (np.float32(momentum), np.zeros(size, np.float32), np.zeros(size, np.float32))

    def step(self, gradient, chunk, count):
        """The sparse gradient of this step: of each layer (here a chunk) the values above the threshold."""
        self.u = self.momentum * self.u + gradient
        self.v = self.v + self.u
        mask = np.zeros(self.v.size, bool)
        for start in range(0, self.v.size, chunk):
            layer = np.abs(self.v[start : start + chunk])
            keep = min(count, layer.size)
            threshold = np.sort(layer)[::-1][keep] if keep < layer.size else -1.0
            mask[start : start + chunk] = layer > threshold
        sent = np.where(mask, self.v, np.float32(0))
        self.v = np.where(mask, np.float32(0), self.v)
        self.u = np.where(mask, np.float32(0), self.u)
        return sent


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("warmup", [0, 6])
def test_velocity_mask_and_error_feedback_are_algorithm_4_step_by_step(momentum, warmup):
    layout, chunk, topk, steps, rate = TensorLayout.of({"w": (20, 32)}), 64, 2, 20, np.float32(0.125)
    peers = [PeerId(bytes([i]) * 32) for i in (1, 2, 3)]
    oracles = [Oracle(layout.size, momentum) for _ in peers]
    velocities = [np.zeros(layout.size, np.float32) for _ in peers]
    residuals = [None] * len(peers)
    weights, expected = np.zeros(layout.size, np.float32), np.zeros(layout.size, np.float64)
    for round in range(steps):
        count = kept(round, warmup, topk, chunk)
        codec = registry.make("topk", value_bits=32, topk=count, chunk=chunk, transform="raw", rank=1, error_decay=1.0)
        parts, sparse = [], []
        for i, peer in enumerate(peers):
            random = np.random.default_rng((round, i))
            gradient = random.standard_normal(layout.size).astype(np.float32)  # ties have probability zero
            gradient /= np.float32(math.sqrt(layout.size))
            velocities[i] = np.float32(momentum) * masked(velocities[i], residuals[i]) + gradient
            about = ContributionKey(round, 0, Hash(b"\1" * 32), peer)
            residuals[i], payload = codec.encode(residuals[i], -velocities[i], layout, about)
            sent = codec.decode(payload, layout, about)
            parts.append(WeightedUpdate(peer, 1, sent))
            sparse.append(oracles[i].step(gradient, chunk, count))
            assert np.array_equal(-sent, sparse[-1])
            assert np.array_equal(-residuals[i], oracles[i].v)
            assert np.array_equal(masked(velocities[i], residuals[i]), oracles[i].u)
        weights = weights + rate * mean(merge(layout, parts))
        expected = expected - float(rate) * clipped_mean(sparse)
        assert np.abs(weights - expected).max() < 1e-6


def clipped_mean(sparse):
    """The merge of compress.merge, in float64: to the median norm."""
    norms = [np.linalg.norm(s.astype(np.float64)) for s in sparse]
    limit = sorted(norms)[(len(norms) - 1) // 2]
    return np.mean([s * min(1.0, limit / n) for s, n in zip(sparse, norms, strict=True)], axis=0)
