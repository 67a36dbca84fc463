"""The one merge that everybody runs."""

import itertools

import numpy as np
import pytest

from farflung.core.errors import ProtocolError
from farflung.core.layout import Layout
from farflung.job.spec import SyncSpec
from farflung.train.messages import Part
from farflung.train.sync import Sync

LAYOUT = Layout.of({"a": (40, 30), "b": (50,)})
SPECS = [
    SyncSpec(topk=16, chunk=256),
    SyncSpec(method="diloco", codec="dense_2bit", outer_lr=0.7, outer_momentum=0.9),
    SyncSpec(method="diloco", codec="dense_fp32", outer_lr=0.7, outer_momentum=0.6, nesterov=False),
]


def start(sync):
    return sync.initial(np.random.default_rng(0).standard_normal(LAYOUT.size).astype(np.float32))


def make_parts(sync, state, count=4):
    parts = []
    for i in range(count):
        peer = bytes([i + 1]) * 32
        delta = np.random.default_rng(i + 1).standard_normal(LAYOUT.size).astype(np.float32) * 0.01
        _, payload = sync.encode(None, delta, LAYOUT, sync.about(state, LAYOUT, peer))
        parts.append(Part(peer, 100 + i, payload))
    return parts


@pytest.mark.parametrize("spec", SPECS)
def test_merge_is_the_same_for_every_order_of_parts(spec):
    sync = Sync.of(spec)
    state = start(sync)
    parts = make_parts(sync, state)
    roots = {sync.apply(state, LAYOUT, order).root(LAYOUT) for order in itertools.permutations(parts)}
    assert len(roots) == 1
    assert sync.apply(state, LAYOUT, parts[:3]).root(LAYOUT) not in roots


@pytest.mark.parametrize("spec", SPECS)
def test_apply_moves_to_the_next_round_and_leaves_its_input(spec):
    sync = Sync.of(spec)
    state = start(sync)
    before = state.root(LAYOUT)
    after = sync.apply(state, LAYOUT, make_parts(sync, state))
    assert after.round == 1
    assert (after.momentum is not None) == bool(spec.outer_momentum)
    assert sync.initial(state.params).root(LAYOUT) == before
    assert after.root(LAYOUT) != before


def test_dense_fp32_is_the_weighted_mean():
    sync = Sync.of(SyncSpec(method="diloco", codec="dense_fp32"))
    state = sync.initial(np.zeros(LAYOUT.size, np.float32))
    same = np.full(LAYOUT.size, 0.25, np.float32)
    parts = []
    for i, (value, weight) in enumerate([(same, 1), (-same, 3), (same, 2)]):
        peer = bytes([i]) * 32
        payload = sync.encode(None, value, LAYOUT, sync.about(state, LAYOUT, peer))[1]
        parts.append(Part(peer, weight, payload))
    assert np.allclose(sync.apply(state, LAYOUT, parts).params, 0.0, atol=1e-6)


def test_a_round_without_parts_changes_only_its_number():
    sync = Sync.of(SPECS[1])
    state = start(sync)
    assert sync.apply(state, LAYOUT, []).root(LAYOUT) == state.root(LAYOUT)


def test_a_payload_of_another_round_state_or_peer_is_refused():
    sync = Sync.of(SPECS[0])
    state = start(sync)
    parts = make_parts(sync, state)
    later = sync.apply(state, LAYOUT, parts)
    with pytest.raises(ProtocolError, match="FF-COMP-007"):
        sync.apply(later, LAYOUT, parts)
    other = sync.initial(state.params + np.float32(1))
    with pytest.raises(ProtocolError, match="FF-COMP-008"):
        sync.apply(other, LAYOUT, parts)
    with pytest.raises(ProtocolError, match="FF-COMP-009"):
        sync.apply(state, LAYOUT, [Part(parts[1].peer, 100, parts[0].payload)])
