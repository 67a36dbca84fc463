"""The one merge that everybody runs, for every method."""

import itertools

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from farflung.core.errors import ProtocolError
from farflung.core.tensor_layout import TensorLayout
from farflung.job.job_loader import load
from farflung.job.methods.outer_steps import FIRST, MOMENTUM, SECOND
from farflung.job.spec import JobSpec
from farflung.train.public_state import PENDING
from farflung.train.schedule import learning_rate
from farflung.train.sync_arithmetic import SCALE, Sync
from farflung.train.worker_messages import AcceptedPayload

LAYOUT = TensorLayout.of({"a": (40, 30), "b": (50,), "c": (30, 30), "d": (17,)})
SINGLE = ("dense", "local_sgd", "diloco", "muloco", "sparse_loco", "demo", "dgc")


def job(method: str, **flags: str) -> JobSpec:
    named = {key.replace("__", "."): value for key, value in flags.items()}
    return load(None, flags={"sync.method": method, "sync.chunk": "256", "sync.topk": "8", **named}).spec


KERNELS = [job(method) for method in SINGLE]
STREAMING = [job("muloco", sync__fragments="3"), job("sparse_loco", sync__delay="1"),
             job("diloco", sync__fragments="2", sync__delay="1")]  # fmt: skip


def name(spec):
    return f"{spec.sync.method}-{spec.sync.fragments}-{spec.sync.delay}"


def normal(seed, scale=1.0):
    return (np.random.default_rng(seed).standard_normal(LAYOUT.size) * scale).astype(np.float32)


def start(sync):
    return sync.initial(normal(0))


def peer(i):
    return bytes([i + 1]) * 32


def make_parts(sync, state, count=4):
    parts = []
    for i in range(count):
        end = state.params + normal(i + 1, 0.01)
        parts.append(AcceptedPayload(peer(i), 100 + i, sync.encode(state, None, None, end, LAYOUT, peer(i)).payload))
    return parts


@pytest.mark.guarantee
def test_merge_is_the_same_for_every_order_of_parts(subtests):
    for spec in KERNELS + STREAMING:
        with subtests.test(spec=spec):
            sync = Sync.of(spec)
            state = start(sync)
            parts = make_parts(sync, state)
            roots = {sync.apply(state, LAYOUT, order).root(LAYOUT) for order in itertools.permutations(parts)}
            assert len(roots) == 1
            assert sync.apply(state, LAYOUT, parts[:3]).root(LAYOUT) not in roots


def test_apply_moves_to_the_next_round_and_leaves_its_input(subtests):
    for spec in KERNELS + STREAMING:
        with subtests.test(spec=spec):
            sync = Sync.of(spec)
            state = start(sync)
            before = state.root(LAYOUT)
            after = sync.apply(state, LAYOUT, make_parts(sync, state))
            assert after.round == 1
            assert after.sections.keys() == sync.public_names(1)
            assert sync.initial(state.params).root(LAYOUT) == before
            assert after.root(LAYOUT) != before


def test_what_public_state_may_hold_is_named_for_every_round(subtests):
    """Also where nobody takes part: a snapshot of any round is as long as its names say, or shorter."""
    for spec in [*KERNELS, *STREAMING, job("powersgd")]:
        with subtests.test(spec=spec):
            sync = Sync.of(spec)
            full = quiet = start(sync)
            for round in range(5):
                assert full.sections.keys() == sync.public_names(round)
                assert quiet.sections.keys() <= sync.public_names(round)
                full = sync.apply(full, LAYOUT, make_parts(sync, full))
                quiet = sync.apply(quiet, LAYOUT, [])


def test_a_payload_is_never_longer_than_its_bound(subtests):
    for spec in KERNELS + STREAMING:
        with subtests.test(spec=spec):
            sync = Sync.of(spec)
            state = start(sync)
            for _ in range(4):
                parts = make_parts(sync, state)
                assert max(len(p.payload) for p in parts) <= sync.bound(LAYOUT)
                state = sync.apply(state, LAYOUT, parts)


def test_exact_values_give_the_weighted_mean():
    sync = Sync.of(job("local_sgd"))
    state = sync.initial(np.zeros(LAYOUT.size, np.float32))
    same = np.full(LAYOUT.size, 0.25, np.float32)
    parts = [
        AcceptedPayload(peer(i), weight, sync.encode(state, None, None, value, LAYOUT, peer(i)).payload)
        for i, (value, weight) in enumerate([(same, 1), (-same, 3), (same, 2)])
    ]
    assert np.allclose(sync.apply(state, LAYOUT, parts).params, 0.0, atol=1e-6)


@pytest.mark.parametrize("spec", KERNELS, ids=name)
def test_a_round_without_parts_changes_only_its_number(spec):
    sync = Sync.of(spec)
    state = start(sync)
    assert sync.apply(state, LAYOUT, []).root(LAYOUT) == state.root(LAYOUT)


def test_a_payload_of_another_round_state_or_peer_is_refused():
    sync = Sync.of(KERNELS[4])
    state = start(sync)
    parts = make_parts(sync, state)
    later = sync.apply(state, LAYOUT, parts)
    with pytest.raises(ProtocolError, match="FF-COMP-007"):
        sync.apply(later, LAYOUT, parts)
    other = sync.initial(state.params + np.float32(1))
    with pytest.raises(ProtocolError, match="FF-COMP-008"):
        sync.apply(other, LAYOUT, parts)
    with pytest.raises(ProtocolError, match="FF-COMP-009"):
        sync.apply(state, LAYOUT, [AcceptedPayload(parts[1].peer, 100, parts[0].payload)])


def gradients(sync, state, grads):
    """Parts in which each peer sends a gradient, as the inner optimizer `gradient` hands it over."""
    ends = [state.params - np.float32(SCALE) * g for g in grads]
    return [
        AcceptedPayload(peer(i), 1, sync.encode(state, None, None, end, LAYOUT, peer(i)).payload)
        for i, end in enumerate(ends)
    ]


def test_dense_is_adamw_on_the_mean_gradient():
    spec = job("dense", rounds="50", schedule__warmup="5")
    sync = Sync.of(spec)
    state, o = start(sync), spec.optimizer
    mask = torch.tensor(np.concatenate([np.full(t.size, float(len(t.shape) >= 2)) for t in LAYOUT.tensors]))
    decayed = torch.nn.Parameter(torch.from_numpy(state.params.copy()))
    theirs = torch.optim.AdamW([decayed], lr=1.0, betas=(o.beta1, o.beta2), eps=o.eps, weight_decay=0.0)
    for round in range(8):
        grads = [normal(10 * round, 0.05)] * 3  # alike: nobody is clipped
        rate = learning_rate(round, 50, o.lr, spec.schedule)
        with torch.no_grad():
            decayed -= decayed * mask * rate * o.weight_decay
        decayed.grad = torch.from_numpy(np.mean(grads, axis=0))
        theirs.param_groups[0]["lr"] = rate
        theirs.step()
        state = sync.apply(state, LAYOUT, gradients(sync, state, grads))
    moved = float(np.abs(decayed.detach().numpy() - start(sync).params).max())
    assert np.abs(decayed.detach().numpy() - state.params).max() < 1e-3 * moved


def test_demo_moves_every_weight_by_its_sign():
    spec = job("demo", rounds="50", schedule__warmup="0", optimizer__weight_decay="0")
    sync = Sync.of(spec)
    state = start(sync)
    after = sync.apply(state, LAYOUT, gradients(sync, state, [normal(1, 0.05)] * 2))
    steps = np.unique(np.round(np.abs(after.params - state.params) / spec.optimizer.lr, 3))
    assert set(steps) <= {0.0, 1.0}
    assert 1.0 in steps


def test_the_learning_rate_of_stepwise_methods_follows_the_round():
    spec = job("dgc", rounds="100", schedule__warmup="10", optimizer__weight_decay="0", sync__topk="256")
    sync = Sync.of(spec)
    early, late = start(sync), replaced_round(start(sync), 9)
    grads = [normal(1, 0.01)]
    first = sync.apply(early, LAYOUT, gradients(sync, early, grads)).params - early.params
    tenth = sync.apply(late, LAYOUT, gradients(sync, late, grads)).params - late.params
    assert np.allclose(tenth, 10 * first, rtol=1e-2, atol=1e-6)


def replaced_round(state, round):
    return type(state)(round, state.params, state.vectors)


def test_streaming_sends_each_tensor_once_in_a_cycle_and_keeps_what_was_not_sent():
    spec = job("local_sgd", sync__fragments="3", rounds="9")
    sync = Sync.of(spec)
    state, offset, step = sync.initial(np.zeros(LAYOUT.size, np.float32)), None, normal(3, 0.01)
    for _ in range(3):
        end = sync.start(state, offset) + step
        sent = sync.encode(state, None, offset, end, LAYOUT, peer(0))
        state, offset = sync.apply(state, LAYOUT, [AcceptedPayload(peer(0), 1, sent.payload)]), sent.offset
    # Fragment f was sent after f + 1 rounds; the rest of its three steps is still in the offset.
    assert np.allclose(state.params + offset, 3 * step, atol=1e-6)
    parts = [sync.fragment(round, LAYOUT).place for round in range(3)]
    for rounds, place in enumerate(parts, start=1):
        assert np.allclose(state.params[place], rounds * step[place], atol=1e-6)


def test_with_a_delay_the_change_of_a_round_is_applied_one_round_later():
    spec = job("local_sgd", sync__delay="1", rounds="3")
    sync = Sync.of(spec)
    state, offset, step = sync.initial(np.zeros(LAYOUT.size, np.float32)), None, normal(3, 0.01)
    for round in range(3):
        begun = sync.start(state, offset)
        assert np.allclose(begun, round * step, atol=1e-6)  # a peer trains on from where it was
        sent = sync.encode(state, None, offset, begun + step, LAYOUT, peer(0))
        state, offset = sync.apply(state, LAYOUT, [AcceptedPayload(peer(0), 1, sent.payload)]), sent.offset
        public = round if round < 2 else 3  # the last round applies its own as well
        assert np.allclose(state.params, public * step, atol=1e-6)
    assert not state.vectors[PENDING].any()


def test_error_feedback_of_a_fragment_leaves_the_others_alone():
    sync = Sync.of(job("muloco", sync__fragments="3"))
    state = start(sync)
    before = normal(9, 0.01)
    sent = sync.encode(state, before, normal(8, 0.01), state.params + normal(1, 0.01), LAYOUT, peer(0))
    place = sync.fragment(0, LAYOUT).place
    outside = np.ones(LAYOUT.size, bool)
    outside[place] = False
    assert np.array_equal(sent.residual[outside], before[outside])
    assert not np.array_equal(sent.residual[place], before[place])
    assert not sent.offset[place].any()
    assert sent.offset[outside].any()


def test_what_the_outer_optimizer_keeps_is_public_state():
    assert set(start(Sync.of(job("dense"))).vectors) == {FIRST, SECOND}
    assert set(start(Sync.of(job("diloco"))).vectors) == {MOMENTUM}
    assert set(start(Sync.of(STREAMING[2])).vectors) == {MOMENTUM, PENDING}


def test_every_method_names_its_own_parts():
    for spec in KERNELS:
        assert replace(spec.sync, steps=1) == replace(job(spec.sync.method).sync, steps=1)
