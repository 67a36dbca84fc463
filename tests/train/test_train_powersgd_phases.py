"""PowerSGD in a job: two rounds an outer step, bit-equal for everybody, resumed and left between the phases."""

import itertools

import msgspec
import numpy as np
import pytest
from in_process import InProcessRun

from farflung.core.errors import FarflungError, ProtocolError
from farflung.core.ids import PeerId
from farflung.job.methods.powersgd import BASIS, QUERY
from farflung.job.spec import OptimizerSpec, ScheduleSpec, SyncSpec
from farflung.train import public_state, worker_messages
from farflung.train.optim import SCALE
from farflung.train.worker_messages import AcceptedPayload, LoadCommand, MergeCommand, TrainCommand

POWERSGD = {
    "optimizer": OptimizerSpec(name="gradient", lr=1e-2, momentum=0.0),
    "sync": SyncSpec(
        method="powersgd", codec="low_rank", value_bits=32, steps=1, rank=2, error_decay=1.0, outer="adamw"
    ),
}
ORDERS = list(itertools.permutations(range(3)))


@pytest.fixture
def spec(tiny):
    return msgspec.structs.replace(tiny, **POWERSGD)


class Trio:
    """Three engines in step; keeps what agents keep."""

    def __init__(self, make, spec):
        self.spec, self.engines, self.inner = spec, [make(spec, m) for m in range(3)], [b""] * 3
        self.trained = []

    def round(self, number, order=(0, 1, 2), accepted=(0, 1, 2)):
        self.trained = [engine.handle(TrainCommand(number)) for engine in self.engines]
        self.inner = [t.inner for t in self.trained]
        parts = [part(self.spec, m, t.payload) for m, t in enumerate(self.trained)]
        chosen = tuple(parts[m] for m in order if m in accepted)
        roots = {engine.handle(MergeCommand(number, chosen)).root for engine in self.engines}
        assert len(roots) == 1
        return roots.pop()

    @property
    def public(self):
        return self.engines[0]._public

    @property
    def layout(self):
        return self.engines[0]._job.model.layout


def part(spec, member, payload):
    return AcceptedPayload(PeerId(bytes([member + 1]) * 32), spec.round_tokens, payload)


@pytest.fixture
def trio(engine, spec):
    return lambda: Trio(engine, spec)


@pytest.mark.slow
@pytest.mark.parametrize("order", ORDERS[1:])
def test_rounds_have_the_same_bits_whatever_the_order_of_arrival(trio, order):
    one, other = trio(), trio()
    for number in range(4):
        assert one.round(number) == other.round(number, order)
    assert one.inner == other.inner


def test_phase_0_gives_a_basis_and_phase_1_moves_the_weights(trio):
    net = trio()
    start = net.public.params
    net.round(0)
    assert np.array_equal(net.public.params, start)
    assert set(net.public.vectors) == {"first", "second", BASIS}
    assert net.public.vectors[BASIS].any()
    net.round(1)
    assert not np.array_equal(net.public.params, start)
    assert set(net.public.vectors) == {"first", "second", QUERY}
    before = net.public.vectors[QUERY].copy()
    net.round(2)
    assert np.array_equal(net.public.vectors[QUERY], before)
    net.round(3)
    assert not np.array_equal(net.public.vectors[QUERY], before)


def test_the_first_outer_step_is_the_first_one_that_adam_counts(trio):
    """Bias correction makes it lr in every weight; a count of rounds would make it 0.74 lr (betas 0.9 and 0.99)."""
    net = trio()
    start = net.public.params
    net.round(0)
    net.round(1)
    moved = np.abs(net.public.params - start)
    biases = np.concatenate([moved[place] for t, place in net.layout.slices() if len(t.shape) == 1])
    assert np.median(biases) == pytest.approx(net.spec.sync.outer_lr * net.spec.optimizer.lr, rel=1e-3)


@pytest.mark.parametrize("stop", [1, 2, 3])
def test_resume_from_disk_equals_an_undisturbed_run_also_between_the_phases(trio, stop):
    undisturbed, first, second = trio(), trio(), trio()
    roots = [undisturbed.round(number) for number in range(4)]
    for number in range(stop):
        first.round(number)
    base = public_state.pack(first.public, first.layout)
    for engine, held in zip(second.engines, first.inner, strict=True):
        engine.handle(LoadCommand(stop, base, held))
    assert [second.round(number) for number in range(stop, 4)] == roots[stop:]
    assert second.inner == undisturbed.inner


def test_a_crash_after_training_in_phase_1_repeats_the_same_bytes(trio):
    net = trio()
    net.round(0)
    first = [engine.handle(TrainCommand(1)) for engine in net.engines]
    again = [engine.handle(TrainCommand(1)) for engine in net.engines]
    assert [t.payload for t in first] == [t.payload for t in again]
    assert [t.inner for t in first] == [t.inner for t in again]


def test_a_peer_that_leaves_between_the_phases_changes_nothing_but_its_own_part(trio):
    """Its phase 0 stays in the basis; the others' phase 1 is what it would have been, and is all that is applied."""
    whole, left = trio(), trio()
    assert whole.round(0) == left.round(0)
    base = left.public
    whole.round(1)
    left.round(1, accepted=(0, 2))
    assert [t.payload for t in whole.trained] == [t.payload for t in left.trained]
    sync = left.engines[0]._job.sync
    parts = [part(left.spec, m, left.trained[m].payload) for m in (0, 2)]
    assert sync.apply(base, left.layout, parts).root(left.layout) == left.public.root(left.layout)
    assert whole.public.root(whole.layout) != left.public.root(left.layout)


def test_a_peer_that_comes_between_the_phases_takes_part_in_the_second(trio, engine, spec):
    net, late = trio(), engine(spec, 3)
    net.round(0)
    late.handle(LoadCommand(1, public_state.pack(net.public, net.layout), b""))
    trained = [e.handle(TrainCommand(1)) for e in (*net.engines, late)]
    parts = tuple(part(spec, m, t.payload) for m, t in enumerate(trained))
    roots = {e.handle(MergeCommand(1, parts)).root for e in (*net.engines, late)}
    assert len(roots) == 1


def test_rounds_without_contributions_are_no_obstacle(trio):
    net = trio()
    for number, accepted in enumerate([(), (0, 1), (0, 1, 2), ()]):
        net.round(number, accepted=accepted)
    assert np.isfinite(net.public.params).all()
    start = net.public.params
    for number in (4, 5):
        net.round(number)
    assert not np.array_equal(net.public.params, start)


def test_payload_of_phase_1_is_bound_to_the_basis_that_it_was_made_for(trio):
    """Another accept set of phase 0 is another public state: what was made for the one is refused after the other."""
    one, other = trio(), trio()
    one.round(0)
    other.round(0, accepted=(0, 1))
    stray = part(one.spec, 0, one.engines[0].handle(TrainCommand(1)).payload)
    with pytest.raises(ProtocolError, match="FF-COMP-008"):
        other.engines[1].handle(MergeCommand(1, (stray,)))


def test_an_audit_makes_the_same_payloads_from_opened_states_in_both_phases(trio):
    net = trio()
    for number in range(4):
        base = public_state.pack(net.public, net.layout)
        trained = [engine.handle(TrainCommand(number)) for engine in net.engines]
        opened = net.engines[0].handle(worker_messages.OpenSegmentCommand(number, 0))
        peer = PeerId(bytes([1]) * 32)
        again = net.engines[2].handle(worker_messages.ReencodeCommand(base, peer, opened.last))
        assert again.payload == trained[0].trace.payload
        assert again.residual == trained[0].trace.borders[-1].residual
        net.round(number)


def test_residuals_and_payloads_add_up_to_all_gradients(trio):
    """Velocity is the gradient here: -SCALE times its sum is what was sent and what is unsent, in either phase."""
    net = trio()
    job, peer = net.engines[1]._job, PeerId(bytes([2]) * 32)
    wanted, said = np.zeros(net.layout.size), np.zeros(net.layout.size)
    for number in range(5):
        state = net.public
        net.round(number)
        payload, held = net.trained[1].payload, net.engines[1]._inner
        values = job.sync.decode(job.sync.about(state, net.layout, peer), net.layout, payload)
        said += job.sync.method.taken(job.sync.codec(number), state, net.layout, values)
        wanted -= SCALE * held.vectors[0].astype(np.float64)
        assert np.abs(wanted - said - held.residual).max() < 1e-5 * np.abs(wanted).max()
    assert said.any()


@pytest.mark.parametrize("damage", ["short", "phase", "nan"])
def test_bad_payloads_are_refused_in_both_phases(trio, damage):
    net = trio()
    for number in range(2):
        data = bytearray(net.engines[0].handle(TrainCommand(number)).payload)
        if damage == "short":
            del data[-4:]
        elif damage == "phase":
            data[18] ^= 1  # the phase
        else:
            data[-2:] = b"\xc0\x7f"
        before = net.public.root(net.layout)
        with pytest.raises(FarflungError):
            net.engines[1].handle(MergeCommand(number, (part(net.spec, 0, bytes(data)),)))
        assert net.public.root(net.layout) == before
        net.round(number)


@pytest.mark.slow
def test_a_tiny_gpt_learns_by_it(tiny, data):
    spec = msgspec.structs.replace(
        tiny, **POWERSGD, rounds=80, batch=8, schedule=ScheduleSpec(kind="constant", warmup=2)
    )
    run = InProcessRun.of(spec, data, 3)
    before = run.heldout(64)
    for _ in range(80):
        run.round()
    assert run.heldout(64) < 0.5 * before
