"""The engine: exact, repeatable, and unchanged by what fails.

How each method goes on from disk: test_train_job_state.
"""

import itertools

import msgspec
import numpy as np
import pytest
from train_methods import METHODS

from farflung.compress.payload import HEADER_BYTES
from farflung.core.canon.token_leaves import pack_leaves
from farflung.core.errors import FarflungError, ProtocolError, RunError
from farflung.core.tensor_layout import ROOT_CHUNK
from farflung.job.dataset import Dataset, pack
from farflung.job.spec import ModelSpec, OptimizerSpec, SyncSpec
from farflung.job.token_tree import DatasetTrees, pack_root, root_of, shard_nodes
from farflung.train import data_order, inner_state, public_state, worker_messages
from farflung.train.engine import WorkerEngine
from farflung.train.worker_messages import AcceptedPayload, LoadCommand, MergeCommand, TrainCommand


class Net:
    """Some engines that train and merge together; keeps the durable bytes of each, as agents do."""

    def __init__(self, make, spec, count=2):
        self.spec, self.count = spec, count
        self.engines = [make(spec, member) for member in range(count)]
        self.inner = [b""] * count

    def round(self, number, backwards=False):
        trained = [engine.handle(TrainCommand(number)) for engine in self.engines]
        self.inner = [t.inner for t in trained]
        weight = self.spec.round_tokens
        parts = [AcceptedPayload(bytes([m + 1]) * 32, weight, t.payload) for m, t in enumerate(trained)]
        self.parts = tuple(reversed(parts)) if backwards else tuple(parts)
        states = [engine.handle(MergeCommand(number, self.parts)) for engine in self.engines]
        assert len({state.root for state in states}) == 1
        return states[0].root

    def snapshot(self):
        engine = self.engines[0]
        return public_state.pack(engine._public, engine._job.model.layout)


@pytest.fixture
def net(engine, tiny):
    return lambda count=2, **changes: Net(engine, msgspec.structs.replace(tiny, **changes), count)


@pytest.mark.whole
@pytest.mark.parametrize("changes", METHODS)
def test_two_networks_agree_whatever_the_order_of_parts(net, changes):
    one, other = net(**changes), net(**changes)
    for number in range(3):
        assert one.round(number) == other.round(number, backwards=True)


def test_members_send_different_payloads(net):
    one = net(3)
    one.round(0)
    bodies = [part.payload[HEADER_BYTES:] for part in one.parts]
    assert len(set(bodies)) == 3


def test_another_seed_gives_another_state(net, tiny):
    assert net().round(0) != net(seed=tiny.seed + 1).round(0)


def test_resume_between_training_and_merge_needs_no_second_training(net):
    undisturbed, broken = net(), net()
    roots = [undisturbed.round(number) for number in range(3)]
    broken.round(0)
    base = broken.snapshot()
    broken.round(1)
    second = net()
    for engine, held in zip(second.engines, broken.inner, strict=True):
        engine.handle(LoadCommand(1, base, held))
        with pytest.raises(RunError, match=r"FF-TRAIN-080.*already trained"):
            engine.handle(TrainCommand(1))
        engine.handle(MergeCommand(1, broken.parts))
    assert second.round(2) == roots[2]


def test_inner_state_ahead_of_an_old_snapshot_waits_for_the_replay(net):
    undisturbed, first = net(), net()
    roots = [undisturbed.round(number) for number in range(3)]
    early, merges = first.snapshot(), []
    for number in range(2):
        first.round(number)
        merges.append(MergeCommand(number, first.parts))
    second = net()
    for engine, held in zip(second.engines, first.inner, strict=True):
        engine.handle(LoadCommand(0, early, held))
        for number, merge in enumerate(merges):
            with pytest.raises(RunError, match="FF-TRAIN-080"):
                engine.handle(TrainCommand(number))
            engine.handle(merge)
    assert second.round(2) == roots[2]


def test_a_stale_snapshot_and_damaged_bytes_leave_the_state_alone(net):
    one = net(1)
    early = one.snapshot()
    one.round(0)
    engine = one.engines[0]
    for load, code in [
        (LoadCommand(1, early, b""), "FF-TRAIN-072"),
        (LoadCommand(1, bytes(early)[:-1], b""), "FF-TRAIN-070"),
        (LoadCommand(1, one.snapshot(), bytes(one.inner[0])[:-40]), "FF-TRAIN-070"),
    ]:
        with pytest.raises(FarflungError, match=code):
            engine.handle(load)
    assert one.round(1) == net_root(net, 2)


def net_root(net, rounds):
    fresh = net(1)
    return [fresh.round(number) for number in range(rounds)][-1]


@pytest.mark.slow
def test_training_lowers_the_loss(net):
    one = net(2, rounds=12)
    start = one.engines[0].handle(worker_messages.EvaluateCommand(one.snapshot(), 64))
    for number in range(12):
        one.round(number)
    end = one.engines[0].handle(worker_messages.EvaluateCommand(one.snapshot(), 64))
    assert start.loss == pytest.approx(np.log(256), abs=0.2)
    assert end.loss < start.loss - 1
    assert end.tokens == 64


def test_evaluate_disturbs_nothing_and_repeats_exactly(net):
    one = net(1)
    first = one.engines[0].handle(TrainCommand(0))
    scores = [one.engines[0].handle(worker_messages.EvaluateCommand(one.snapshot(), 1 << 20)) for _ in range(2)]
    assert scores[0] == scores[1]
    assert scores[0].tokens % 8 == 0
    assert one.engines[0].handle(TrainCommand(0)) == first


def test_baseline_learns_and_repeats_exactly(net):
    one = net(1)
    ask = worker_messages.BaselineCommand(one.snapshot(), 2, 12, 64, 1)
    scores = [one.engines[0].handle(ask) for _ in range(2)]
    start = one.engines[0].handle(worker_messages.EvaluateCommand(one.snapshot(), 64))
    assert scores[0] == scores[1]
    assert scores[0].steps == 12
    assert scores[0].loss < start.loss


@pytest.mark.parametrize("changes", METHODS[-3:])
def test_the_baseline_of_peers_that_send_gradients_moves_its_own_weights(net, changes):
    one = net(1, **changes)
    start = one.engines[0].handle(worker_messages.EvaluateCommand(one.snapshot(), 64))
    score = one.engines[0].handle(worker_messages.BaselineCommand(one.snapshot(), 2, 4, 64, 1))
    assert score.loss < start.loss


def test_a_baseline_in_pieces_is_the_baseline_in_one(net):
    one = net(1)
    whole = one.engines[0].handle(worker_messages.BaselineCommand(one.snapshot(), 2, 12, 64, 1))
    pieces = [one.engines[0].handle(worker_messages.BaselineCommand(one.snapshot(), 2, 5, 64, 1))]
    pieces += [one.engines[0].handle(worker_messages.BaselineCommand(b"", 2, until, 64, 1)) for until in (5, 9, 99)]
    assert [piece.steps for piece in pieces] == [5, 5, 9, 12]
    assert pieces[0].loss == pieces[1].loss
    assert (pieces[-1].loss, pieces[-1].steps) == (whole.loss, whole.steps)


def test_a_baseline_goes_on_from_nothing_but_a_baseline(engine):
    with pytest.raises(RunError, match="out of order"):
        engine().handle(worker_messages.BaselineCommand(b"", 2, 5, 64, 1))


def test_baseline_trains_on_the_union_of_the_members_batches(net, monkeypatch):
    from farflung.train import data_order, inner_steps

    one, seen = net(1), []
    original = data_order.batch
    monkeypatch.setattr(inner_steps.data_order, "batch", lambda *a: seen.append(a[2:]) or original(*a))
    one.engines[0].handle(worker_messages.BaselineCommand(one.snapshot(), 3, 12, 64, 1))
    assert sorted(seen) == sorted(itertools.product(range(4), range(3), range(3)))


def test_a_diverging_round_is_refused_and_leaves_the_state(user_job, engine):
    spec, source = user_job("        return loss * (self.table.weight[0, 0] ** 4 + 1)")
    wild = msgspec.structs.replace(
        spec, optimizer=OptimizerSpec(name="sgd", lr=1e30, clip=0.0), sync=SyncSpec(steps=8, topk=32, chunk=256)
    )
    one = engine(wild, 0, source)
    before = one._public.root(one._job.model.layout)
    for _ in range(2):
        with pytest.raises(RunError, match=r"FF-TRAIN-0(58|62)"):
            one.handle(TrainCommand(0))
    assert one._public.root(one._job.model.layout) == before
    assert one._inner == inner_state.InnerState()
    assert one._pending is None


def test_a_users_dropout_repeats(user_job, engine):
    spec, source = user_job("        loss = loss * torch.rand(())\n        return loss")
    one = engine(spec, 0, source)
    assert one.handle(TrainCommand(0)) == one.handle(TrainCommand(0))


def test_requests_out_of_order_are_refused(net, setup, tiny):
    bare = WorkerEngine(lambda: 0.0)
    for request in (
        TrainCommand(0),
        MergeCommand(0, ()),
        worker_messages.InitializeCommand(),
        LoadCommand(0, b"", b""),
        worker_messages.EvaluateCommand(b"", 1),
    ):
        with pytest.raises(RunError, match="FF-TRAIN-080"):
            bare.handle(request)
    bare.handle(setup(tiny))
    with pytest.raises(RunError, match=r"FF-TRAIN-080.*held: none"):
        bare.handle(TrainCommand(0))
    with pytest.raises(RunError, match=r"FF-TRAIN-080.*held: round 0"):
        net(1).engines[0].handle(MergeCommand(1, ()))


def test_a_bad_part_leaves_the_round_open(net):
    one = net(1)
    trained = one.engines[0].handle(TrainCommand(0))
    bad = AcceptedPayload(bytes([1]) * 32, trained.trace.statistics.tokens, trained.payload[:-1])
    with pytest.raises(ProtocolError, match="FF-COMP"):
        one.engines[0].handle(MergeCommand(0, (bad,)))
    assert one.round(0) == net_root(net, 1)


def test_a_failed_setup_keeps_the_job_before(net, setup, tiny):
    one = net(1)
    wrong = setup(msgspec.structs.replace(tiny, model=ModelSpec(width=10, heads=4, context=tiny.model.context)))
    with pytest.raises(FarflungError, match="FF-TRAIN-050"):
        one.engines[0].handle(wrong)
    assert one.round(0)


def test_setup_says_how_much_data_there_is(setup, tiny, data):
    ready = WorkerEngine(lambda: 0.0).handle(setup(tiny))
    assert (ready.tokens_train, ready.tokens_heldout) == (len(data.train), len(data.heldout))
    assert 0 < ready.loss_unigram < np.log(256)


def test_pieces_of_a_data_set_train_to_the_same_bits_and_what_is_missing_is_refused(setup, engine, tiny):
    text = np.arange(3 * ROOT_CHUNK, dtype=np.uint64) ** 2 % 251
    data = Dataset(text.astype(np.uint8), text[:ROOT_CHUNK].astype(np.uint8))
    trees = DatasetTrees.of(data, shard_nodes(data.train) + shard_nodes(data.heldout))
    made = []
    for named in (pack(data), pack_root(root_of(data, trees))):
        one = WorkerEngine(lambda: 0.0)
        one.handle(msgspec.structs.replace(setup(tiny), dataset=named))
        start = one.handle(worker_messages.InitializeCommand())
        one.handle(worker_messages.LoadCommand(0, start.snapshot, b""))
        made.append(one)
    whole, pieces = made
    with pytest.raises(FarflungError, match="FF-CORE-097"):
        pieces.handle(TrainCommand(0))
    leaves = pack_leaves(trees.train.leaves(data_order.round_leaves(tiny, len(data.train), 0, 0)))
    held = pieces.handle(worker_messages.HoldTokensCommand((worker_messages.DatasetLeaves(False, leaves),)))
    assert held.pieces == len(data_order.round_leaves(tiny, len(data.train), 0, 0)) <= 3
    a, b = whole.handle(TrainCommand(0)), pieces.handle(TrainCommand(0))
    assert (a.payload, a.inner, a.trace) == (b.payload, b.inner, b.trace)
    with pytest.raises(FarflungError, match="FF-TRAIN-080"):
        whole.handle(worker_messages.HoldTokensCommand((worker_messages.DatasetLeaves(False, leaves),)))
    narrow = msgspec.structs.replace(tiny, model=msgspec.structs.replace(tiny.model, vocabulary=200))
    pieces.handle(msgspec.structs.replace(setup(narrow), dataset=pack_root(root_of(data, trees))))
    with pytest.raises(FarflungError, match="FF-JOB-023"):
        pieces.handle(worker_messages.HoldTokensCommand((worker_messages.DatasetLeaves(False, leaves),)))


def test_initialize_reports_every_tensor(engine, tiny):
    state = engine(tiny).handle(worker_messages.InitializeCommand())
    names = [name for name, _ in state.shapes]
    assert names == sorted(names)
    assert state.round == 0
    assert state.snapshot


def test_round_zero_of_a_users_model_stays_what_it_was_after_training(user_job, engine):
    spec, source = user_job("        return loss")
    one = engine(spec, 0, source)
    start = one.handle(worker_messages.InitializeCommand())
    one.handle(TrainCommand(0))
    assert one.handle(worker_messages.InitializeCommand()) == start
    assert engine(spec, 0, source).handle(worker_messages.InitializeCommand()) == start
