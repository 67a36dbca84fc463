"""Borders, opened states, and a verifier that repeats what a peer did."""

import itertools

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from train_methods import METHODS

from farflung.core.errors import FarflungError, RunError, SpecError
from farflung.core.ids import ZERO_HASH
from farflung.core.tensor_layout import TensorLayout, state_root
from farflung.job.spec import AuditSpec, OptimizerSpec
from farflung.train import inner_state, public_state, segments, tensor_file
from farflung.train.engine import WorkerEngine
from farflung.train.run_log import payload_hash
from farflung.train.segments import BorderState
from farflung.train.worker_messages import (
    AcceptedPayload,
    LoadCommand,
    MergeCommand,
    OpenSegmentCommand,
    ReencodeCommand,
    RerunCommand,
    RewindCommand,
    TrainCommand,
)

LAYOUT = TensorLayout.of({"a": (3, 4), "b": (5,)})
ADAMW = OptimizerSpec()
DROPOUT = """        noise = torch.rand(self.table.weight.shape)
        loss = nn.functional.cross_entropy((self.table(x) * (1 + noise[0])).flatten(0, 1), y.flatten())
        return loss"""


class Peer:
    """One engine with the public state that it stands at, its last contribution, and its neighbour's."""

    def __init__(self, make, spec, member=0, module=b""):
        self.engine, self.other = make(spec, member, module), make(spec, member + 1, module)
        self.spec, self.member, self.peer = spec, member, bytes([member + 1]) * 32
        self.round, self.inner = 0, b""

    @property
    def snapshot(self):
        return public_state.pack(self.engine._public, self.engine._job.model.layout)

    def train(self):
        self.trained = self.engine.handle(TrainCommand(self.round))
        return self.trained

    def merge(self):
        theirs = self.other.handle(TrainCommand(self.round))
        weight = self.spec.round_tokens
        parts = (
            AcceptedPayload(self.peer, weight, self.trained.payload),
            AcceptedPayload(bytes([self.member + 2]) * 32, weight, theirs.payload),
        )
        for engine in (self.engine, self.other):
            engine.handle(MergeCommand(self.round, parts))
        self.inner, self.round = self.trained.inner, self.round + 1

    def open(self, segment):
        return self.engine.handle(OpenSegmentCommand(self.round, segment))

    def check(self, verifier):
        """Every segment and the encoding, repeated by `verifier`, agree with the trace to the bit."""
        borders, statistics = self.trained.trace.borders, self.trained.trace.statistics
        losses = []
        for segment in range(len(borders) - 1):
            opened = self.open(segment)
            again = verifier.handle(RerunCommand(self.snapshot, self.member, segment, opened.start))
            residual = ZERO_HASH if segment == len(borders) - 2 else borders[segment + 1].residual
            assert again.border == msgspec.structs.replace(borders[segment + 1], residual=residual)
            assert again.end == opened.end
            losses += again.losses
            encoding = verifier.handle(ReencodeCommand(self.snapshot, self.peer, opened.last))
            assert encoding.payload == self.trained.trace.payload == payload_hash(self.trained.payload)
            assert encoding.params == borders[-1].params
            assert encoding.residual == borders[-1].residual
        assert tuple(losses) == statistics.losses
        assert statistics.tokens == self.spec.round_tokens


@pytest.fixture
def peer(engine, tiny):
    return lambda member=0, **changes: Peer(engine, msgspec.structs.replace(tiny, **changes), member)


@pytest.mark.whole
@pytest.mark.parametrize("changes", [*METHODS, {"audit": AuditSpec(segments=1)}])
def test_a_verifier_gets_the_bits_of_an_honest_peer_in_every_segment(peer, engine, changes):
    one = peer(member=1, **changes)
    verifier = engine(one.spec, 7)
    for _ in range(3):
        one.train()
        one.check(verifier)
        one.merge()


def test_a_verifier_repeats_a_users_dropout(user_job, engine):
    spec, source = user_job(DROPOUT)
    one = Peer(engine, spec, 0, source)
    one.train()
    one.check(engine(spec, 3, source))


@pytest.mark.whole
@pytest.mark.parametrize("changes", [*METHODS, {"audit": AuditSpec(segments=1)}])
def test_border_zero_goes_on_where_the_round_before_ended(peer, changes):
    one = peer(**changes)
    layout, before = one.engine._job.model.layout, None
    for round in range(3):
        borders = one.train().trace.borders
        assert [b.index for b in borders] == list(range(len(one.spec.borders)))
        assert {b.round for b in borders} == {round}
        assert [b.steps for b in borders] == [round * one.spec.sync.steps + at for at in one.spec.borders]
        assert borders[0].params == state_root(layout, {"params": one.engine._public.params})
        assert len({b.residual for b in borders[:-1]}) == 1
        if before is None:
            assert (borders[0].optimizer, borders[0].residual) == (ZERO_HASH, ZERO_HASH)
        else:
            for part in ("optimizer", "steps", "residual"):
                assert getattr(borders[0], part) == getattr(before, part)
            assert borders[0].optimizer != ZERO_HASH
        assert len({b.params for b in borders}) == len({b.optimizer for b in borders}) == len(borders)
        before = borders[-1]
        one.merge()


def test_the_last_border_holds_the_residual_that_the_encoding_left(peer):
    one = peer()
    layout = one.engine._job.model.layout
    trained = one.train()
    left = inner_state.unpack(trained.inner, one.spec.optimizer, layout)
    assert trained.trace.borders[-1].residual == state_root(layout, {"residual": left.residual})
    names = dict(zip(("mean", "square"), left.vectors, strict=True))
    assert trained.trace.borders[-1].optimizer == state_root(layout, names)
    assert peer(sync=METHODS[3]["sync"]).train().trace.borders[-1].residual == ZERO_HASH


def test_a_second_training_repeats_the_trace(peer):
    one = peer()
    for _ in range(2):
        assert one.train().trace == one.train().trace
        one.merge()


def test_rewinding_repeats_the_round_to_the_same_bits(peer):
    one = peer()
    first = one.train()
    assert one.engine.handle(RewindCommand(0, b"")).round == 0
    assert one.train() == first
    one.merge()
    second = one.train()
    late = one.engine
    late.handle(LoadCommand(1, one.snapshot, second.inner))  # as after a crash: the round is trained already
    with pytest.raises(RunError, match=r"FF-TRAIN-080.*already trained"):
        one.train()
    with pytest.raises(RunError, match="FF-TRAIN-081"):
        one.open(0)
    assert late.handle(RewindCommand(1, one.inner)).root == late._public.root(late._job.model.layout)
    assert one.train() == second
    one.check(one.other)


def test_a_rewind_to_a_later_state_or_another_round_is_refused(peer):
    one = peer()
    ahead = one.train().inner
    for request in (RewindCommand(0, ahead), RewindCommand(1, b"")):
        with pytest.raises(RunError, match="FF-TRAIN-080"):
            one.engine.handle(request)
    with pytest.raises(RunError, match="FF-TRAIN-070"):
        one.engine.handle(RewindCommand(0, bytes(ahead)[:-1]))
    assert one.open(0).end  # what was held is still held
    one.engine.handle(RewindCommand(0, b""))
    with pytest.raises(RunError, match=r"FF-TRAIN-081.*no round"):
        one.open(0)


def test_only_the_segments_of_the_round_just_trained_are_opened(peer):
    one = peer()
    with pytest.raises(RunError, match="FF-TRAIN-081"):
        one.open(0)
    one.train()
    for segment in (-1, 3):
        with pytest.raises(RunError, match=r"FF-TRAIN-082.*3 segments"):
            one.open(segment)
    with pytest.raises(RunError, match=r"FF-TRAIN-081.*round 0"):
        one.engine.handle(OpenSegmentCommand(1, 0))
    one.merge()
    with pytest.raises(RunError, match="FF-TRAIN-081"):
        one.engine.handle(OpenSegmentCommand(0, 0))


def test_what_everybody_has_is_not_opened_again(peer):
    one = peer()
    layout, optimizer = one.engine._job.model.layout, one.spec.optimizer
    one.train()
    assert one.open(0).start == b""
    one.merge()
    one.train()
    names = []
    for segment, part in itertools.product(range(3), ("start", "end", "last")):
        state = segments.unpack(getattr(one.open(segment), part), optimizer, layout, 1)
        names.append((segment, part, "".join(sorted(name[0] for name in state.named(optimizer)))))
    starts = [found for _, part, found in names if part == "start"]
    assert starts == ["mrs", "mprs", "mprs"]  # mean, params, residual, square
    assert {found for _, part, found in names if part == "end"} == {"mps"}
    assert {found for _, part, found in names if part == "last"} == {"pr"}


def test_a_rerun_changes_nothing_that_a_worker_holds(peer, engine):
    one = peer()
    one.train()
    opened = one.open(1)
    verifier, calm = engine(one.spec, 3), engine(one.spec, 3)
    expected = calm.handle(TrainCommand(0))
    assert verifier.handle(TrainCommand(0)) == expected
    verifier.handle(RerunCommand(one.snapshot, 0, 1, opened.start))
    verifier.handle(ReencodeCommand(one.snapshot, one.peer, opened.last))
    assert verifier.handle(OpenSegmentCommand(0, 1)) == calm.handle(OpenSegmentCommand(0, 1))
    assert verifier.handle(TrainCommand(0)) == expected


def test_a_changed_start_member_segment_or_snapshot_gives_another_border(peer, engine):
    one = peer()
    one.train()
    one.merge()
    one.train()
    layout, optimizer = one.engine._job.model.layout, one.spec.optimizer
    state = segments.unpack(one.open(1).start, optimizer, layout, 1)
    verifier = engine(one.spec, 3)
    honest = verifier.handle(RerunCommand(one.snapshot, 0, 1, one.open(1).start)).border

    def border(changed, member=0, segment=1):
        packed = segments.pack(changed, optimizer, layout)
        return verifier.handle(RerunCommand(one.snapshot, member, segment, packed)).border

    assert border(state) == honest
    moved = state.params.copy()
    moved[0] += 1.0
    mean = state.vectors[0].copy()
    mean[0] += 1.0
    others = [
        border(BorderState(1, state.step, moved, state.vectors, state.residual)),
        border(BorderState(1, state.step, state.params, (mean, state.vectors[1]), state.residual)),
        border(BorderState(1, state.step + 1, state.params, state.vectors, state.residual)),
        border(BorderState(1, state.step, state.params, state.vectors, None)),
        border(state, member=1),
        msgspec.structs.replace(border(state, segment=2), index=honest.index, steps=honest.steps),
    ]
    assert honest not in others
    assert len(set(others)) == len(others)


def test_an_opened_state_that_cannot_stand_at_the_border_is_refused(peer, engine):
    one = peer()
    one.train()
    one.merge()
    one.train()
    layout, optimizer = one.engine._job.model.layout, one.spec.optimizer
    verifier = engine(one.spec, 3)
    full = segments.unpack(one.open(1).start, optimizer, layout, 1)
    last = one.open(1).last

    def packed(*fields):
        return segments.pack(BorderState(*fields), optimizer, layout)

    sgd = tensor_file.pack(segments.KIND, layout, tensor_file.TensorFileContent(1, 3, {"velocity": full.params}))
    empty = tensor_file.pack(segments.KIND, layout, tensor_file.TensorFileContent(1, 0, {}))
    for segment, start, code in [
        (0, one.open(1).start, "082"),  # weights of border 0 are P_r's, whatever the peer says
        (1, one.open(0).start, "082"),
        (1, b"", "082"),
        (1, packed(1, 3, full.params), "082"),
        (3, one.open(1).start, "082"),
        (1, packed(0, 3, full.params, full.vectors), "082"),
        (0, empty, "082"),
        (0, sgd, "071"),
        (1, bytes(one.open(1).start)[:-1], "070"),
        (1, one.snapshot, "070"),
    ]:
        with pytest.raises(RunError, match=f"FF-TRAIN-{code}"):
            verifier.handle(RerunCommand(one.snapshot, 0, segment, start))
    for claim in (b"", one.open(1).start, packed(1, 0, None, (), full.residual)):
        with pytest.raises(RunError, match="FF-TRAIN-082"):
            verifier.handle(ReencodeCommand(one.snapshot, one.peer, claim))
    with pytest.raises(FarflungError):
        verifier.handle(ReencodeCommand(b"", one.peer, last))


def test_a_start_that_loses_the_numbers_is_an_error_and_no_result(peer, engine):
    one = peer()
    one.train()
    layout, optimizer = one.engine._job.model.layout, one.spec.optimizer
    state = segments.unpack(one.open(1).start, optimizer, layout, 0)
    wild = np.full(layout.size, 1e38, np.float32)
    start = segments.pack(BorderState(0, state.step, wild, state.vectors), optimizer, layout)
    with pytest.raises(RunError, match=r"FF-TRAIN-0(58|62)"):
        engine(one.spec, 3).handle(RerunCommand(one.snapshot, 0, 1, start))


def test_another_weight_in_the_end_gives_another_payload(peer):
    one = peer()
    one.train()
    layout, optimizer = one.engine._job.model.layout, one.spec.optimizer
    last = segments.unpack(one.open(0).last, optimizer, layout, 0)
    moved = last.params.copy()
    moved[:] += 1e-2
    claim = segments.pack(BorderState(0, last.step, moved), optimizer, layout)
    found = one.other.handle(ReencodeCommand(one.snapshot, one.peer, claim))
    assert found.payload != one.trained.trace.payload
    assert found.params != one.trained.trace.borders[-1].params
    assert one.other.handle(ReencodeCommand(one.snapshot, bytes([9]) * 32, one.open(0).last)).payload not in (
        found.payload,
        one.trained.trace.payload,
    )


@pytest.mark.slow
def test_two_threads_stay_within_a_small_distance(setup, tiny):
    import torch

    engines = []
    for threads in (1, 2):
        made = WorkerEngine(lambda: 0.0)
        made.handle(msgspec.structs.replace(setup(tiny), threads=threads))
        made.handle(LoadCommand(0, made.initialize().snapshot, b""))
        engines.append(made)
    one, two = engines
    one.handle(TrainCommand(0))
    assert torch.get_num_threads() == 1
    two.handle(TrainCommand(0))
    assert torch.get_num_threads() == 2
    layout, optimizer = one._job.model.layout, tiny.optimizer
    start = one._public.params
    for segment in range(3):
        ends = [segments.unpack(e.handle(OpenSegmentCommand(0, segment)).end, optimizer, layout, 0) for e in engines]
        apart = segments.distances(layout, start, *(segments.compared(end, optimizer) for end in ends))
        close = {t.name for t, d in zip(layout.tensors, apart["params"], strict=True) if d < 1e-4}
        assert {t.name for t in layout.tensors} - close <= {"blocks.0.qkv.bias"}  # see train.noise_profile: keys
        assert max(apart["mean"]) < 1e-4
        start = ends[0].params
    one.handle(TrainCommand(0))
    assert torch.get_num_threads() == 1


@pytest.mark.parametrize("threads", [0, -1, 1025])
def test_threads_are_bounded(setup, tiny, threads):
    with pytest.raises(SpecError, match="FF-TRAIN-063"):
        WorkerEngine(lambda: 0.0).handle(msgspec.structs.replace(setup(tiny), threads=threads))


def vector(seed, scale=1.0):
    return (scale * np.random.default_rng(seed).standard_normal(LAYOUT.size)).astype(np.float32)


@settings(max_examples=60)
@given(st.booleans(), st.booleans(), st.booleans(), st.integers(0, 1 << 20), st.integers(0, 1 << 40))
def test_an_opened_state_comes_back_bit_for_bit(weights, optimizer, residual, round, step):
    state = BorderState(
        round,
        step if weights or optimizer or residual else 0,
        vector(1) if weights else None,
        (vector(2), vector(3)) if optimizer else (),
        vector(4) if residual else None,
    )
    packed = segments.pack(state, ADAMW, LAYOUT)
    back = segments.unpack(packed, ADAMW, LAYOUT, round)
    assert (back.round, back.step) == (round, state.step)
    assert back.named(ADAMW).keys() == state.named(ADAMW).keys()
    assert segments.pack(back, ADAMW, LAYOUT) == packed
    assert bool(packed) is (weights or optimizer or residual)
    if weights:
        assert segments.border(LAYOUT, ADAMW, 2, back) == segments.border(LAYOUT, ADAMW, 2, state)


@settings(max_examples=80)
@given(st.binary(max_size=400), st.integers(0, 400), st.binary(min_size=1, max_size=4))
def test_damaged_opened_states_never_pass(noise, place, patch):
    whole = segments.pack(BorderState(3, 9, vector(1), (vector(2), vector(3))), ADAMW, LAYOUT)
    place %= len(whole)
    patched = whole[:place] + patch + whole[place + len(patch) :]
    for data in (noise, whole[:place], patched):
        if data in (b"", whole):
            continue
        with pytest.raises(RunError, match=r"FF-TRAIN-0(70|71|82)|FF-CORE-095"):
            segments.unpack(data, ADAMW, LAYOUT, 3)


def test_a_vector_that_no_state_has_is_refused():
    data = tensor_file.pack(segments.KIND, LAYOUT, tensor_file.TensorFileContent(0, 0, {"momentum": vector(1)}))
    with pytest.raises(RunError, match=r"FF-TRAIN-071.*opened state of another optimizer"):
        segments.unpack(data, ADAMW, LAYOUT, 0)
