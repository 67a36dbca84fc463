"""What stages of a pipeline hand over, keep for it, and add up at either end."""

from collections import defaultdict

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farflung.advice.traffic import hybrid_parallel, pipeline_traffic
from farflung.advice.traffic.collectives import RankSpan
from farflung.advice.traffic.hybrid_parallel import ParallelMesh, TrainingStep
from farflung.advice.traffic.pipeline_traffic import AqSgdConfig, PipelineCuts
from farflung.advice.traffic.traffic_terms import TrafficLoad, TrafficPhase
from farflung.advice.traffic.transformer_shapes import TransformerShape
from farflung.core.errors import UsageError

MODEL = TransformerShape(layers=24, hidden=256, sequence=64, parameters=24e6)
powers = st.sampled_from([1, 2, 4])


@given(st.integers(2, 9), st.integers(1, 6), st.integers(1, 3), powers, st.booleans())
def test_a_pipeline_hands_over_at_each_cut(
    count: int, micros: int, virtual: int, tensor: int, is_scattered: bool
) -> None:
    cutting = PipelineCuts(count, micros, virtual, tensor, is_scattered)
    terms = pipeline_traffic.pipelined(MODEL, cutting, groups=tensor)
    handed = TrafficLoad(count, terms[:2])
    whole = MODEL.activation(1) * micros * (count * virtual - 1) * 2
    assert handed.total == pytest.approx(whole * (1 if is_scattered else tensor))
    gathered = TrafficLoad(count, terms[2:])
    expected = whole * (tensor - 1) if is_scattered else 0.0  # each of t ranks lacks (t - 1)/t
    assert gathered.total == pytest.approx(expected)
    assert gathered.between == 0.0


@pytest.mark.parametrize("is_scattered", [False, True])
def test_sequence_parallel_ranks_hand_on_their_part_and_gather_nothing_behind_a_cut(is_scattered: bool) -> None:
    mesh = ParallelMesh(tensor=4, pipeline=3)
    load = hybrid_parallel.load(
        MODEL, mesh, TrainingStep(micros=5, is_sequence_parallel=True, is_scattered=is_scattered)
    )
    cut = TrafficLoad(12, tuple(term for term in load.terms if term.source == pipeline_traffic.PIPELINE))
    whole = MODEL.activation(1)
    assert cut.sent == cut.received == pytest.approx(2 * 5 * whole / 4)
    assert cut.total == pytest.approx(2 * 5 * 2 * whole)
    assert not any("in the node" in term.name for term in load.terms)


def test_changes_of_activations_take_their_bits() -> None:
    cutting = PipelineCuts(4, 8)
    plain = pipeline_traffic.pipelined(MODEL, cutting)
    few = pipeline_traffic.pipelined(MODEL, cutting, changes=AqSgdConfig(1000, 4, 8))
    assert [a.sent / b.sent for a, b in zip(few, plain, strict=True)] == [pytest.approx(4 / 16), pytest.approx(8 / 16)]
    scaled = pipeline_traffic.pipelined(MODEL, cutting, changes=AqSgdConfig(1000, 4, 8, block=64))
    assert scaled[0].sent / plain[0].sent == pytest.approx((4 + 0.25) / 16)


def test_the_first_epoch_of_changes_goes_in_full_and_a_run_s_mean_says_so() -> None:
    cutting = PipelineCuts(4, 8)
    plain, later, first, run = (
        pipeline_traffic.pipelined(MODEL, cutting, changes=changes)
        for changes in (None, *(AqSgdConfig(1000, 2, 8, epochs=epochs) for epochs in (0, 1, 10)))
    )
    for at in range(2):
        assert first[at].sent == plain[at].sent
        assert run[at].sent == pytest.approx((first[at].sent + 9 * later[at].sent) / 10)
        assert "mean of 10 epochs" in run[at].name
        assert "in full" in first[at].name


@given(st.integers(1, 6), st.integers(1, 3), powers, powers, st.booleans())
def test_what_changes_keep_comes_with_what_they_send(
    pipeline: int, virtual: int, data: int, tensor: int, is_sequence_parallel: bool
) -> None:
    """s h values of each example of the replica at either end of a cut, counted part by part."""
    shape = TransformerShape(layers=360, hidden=256, sequence=64, parameters=24e6)
    training = TrainingStep(virtual=virtual, is_sequence_parallel=is_sequence_parallel, changes=AqSgdConfig(1000))
    load = hybrid_parallel.load(shape, ParallelMesh(data, tensor, pipeline), training)
    ends = defaultdict(int)
    for place in range(pipeline * virtual - 1 if pipeline > 1 else 0):
        ends[place % pipeline] += 1
        ends[(place + 1) % pipeline] += 1
    each = 1000 / data * 64 * 256 * 2 / (tensor if is_sequence_parallel else 1)
    assert [kept.bytes for kept in load.kept] == ([pytest.approx(each * max(ends.values()))] if ends else [])
    assert load.times(10).of(phase=TrafficPhase.FORWARD).kept == load.kept


@given(st.integers(1, 6), st.integers(1, 5), st.integers(1, 3), powers, st.booleans())
def test_a_stage_hands_over_what_its_own_parts_do(
    pipeline: int, micros: int, virtual: int, tensor: int, is_scattered: bool
) -> None:
    cutting = PipelineCuts(pipeline, micros, virtual, tensor, is_scattered)
    changes = AqSgdConfig(1000, 4, 8)
    size = MODEL.activation(2) / (tensor if is_scattered else 1)
    sent, received, messages = ([0.0] * pipeline for _ in range(3))
    for place in range(pipeline * virtual - 1 if pipeline > 1 else 0):
        for _ in range(micros):
            for source, target, bits in (
                (place % pipeline, (place + 1) % pipeline, 4), ((place + 1) % pipeline, place % pipeline, 8),
            ):  # fmt: skip
                sent[source] += size * bits / 16
                received[target] += size * bits / 16
                messages[source] += 1
    found = pipeline_traffic.by_stage(MODEL, cutting, batch=2, changes=changes)
    assert [one.sent for one in found] == pytest.approx(sent)
    assert [one.received for one in found] == pytest.approx(received)
    assert [one.messages for one in found] == messages
    terms = pipeline_traffic.pipelined(MODEL, cutting, batch=2, changes=changes)[:2]
    assert sum(sent) == pytest.approx(TrafficLoad(pipeline, terms).total)
    assert max(sent) <= TrafficLoad(pipeline, terms).sent * (1 + 1e-12)


def test_both_ends_of_a_pipeline_add_up_their_gradients_of_a_shared_table() -> None:
    """V h e/t bytes each way a step in each of data x context x tensor pairs; and replicas sum the copy, too."""
    tied = TransformerShape(layers=24, hidden=256, sequence=64, vocabulary=1000, parameters=24e6)
    own = msgspec.structs.replace(tied, is_tied=False)
    mesh, table = ParallelMesh(data=2, tensor=4, pipeline=3, context=2, node=16), 2.0 * 1000 * 256
    one, other = (hybrid_parallel.load(shape, mesh, TrainingStep()) for shape in (tied, own))
    (shared,) = (term for term in one.terms if term.source.startswith(pipeline_traffic.TIED))
    assert (shared.sent, shared.received) == (table / 4, table / 4)
    assert shared.total == shared.between == pytest.approx(2 * 2 * 2 * table)
    assert one.total - other.total == pytest.approx(shared.total + 2 * (4 - 1) * table)
    for other_mesh in (ParallelMesh(data=4), ParallelMesh(tensor=4)):
        alone = [hybrid_parallel.load(shape, other_mesh, TrainingStep()).total for shape in (tied, own)]
        assert alone[0] == alone[1]


def test_two_ends_that_share_a_node_send_the_table_within_it() -> None:
    tied = TransformerShape(layers=24, hidden=256, sequence=64, vocabulary=1000)
    load = hybrid_parallel.load(tied, ParallelMesh(tensor=2, pipeline=4, node=8), TrainingStep())
    assert [term.between for term in load.terms if term.source.startswith(pipeline_traffic.TIED)] == [0.0]
    assert pipeline_traffic.tied_table(1e6, RankSpan(1)) == ()


@pytest.mark.parametrize(
    ("code", "call"),
    [
        ("FF-PLAN-020", lambda: AqSgdConfig(1.0).share(4, 0)),
        ("FF-PLAN-020", lambda: AqSgdConfig(1.0, epochs=-1)),
        ("FF-PLAN-020", lambda: AqSgdConfig(1.0, forward=0)),
        ("FF-PLAN-020", lambda: pipeline_traffic.cached(MODEL, PipelineCuts(2, 1), AqSgdConfig(1.0), replicas=0)),
        ("FF-PLAN-020", lambda: pipeline_traffic.tied_table(1e6, RankSpan(2), tensor=0)),
        ("FF-PLAN-020", lambda: pipeline_traffic.tied_table(1e6, RankSpan(3))),
        ("FF-PLAN-021", lambda: AqSgdConfig(0.0)),
        ("FF-PLAN-021", lambda: AqSgdConfig(float("inf"))),
        ("FF-PLAN-021", lambda: pipeline_traffic.pipelined(MODEL, PipelineCuts(2, 1), groups=float("nan"))),
        ("FF-PLAN-021", lambda: pipeline_traffic.tied_table(float("nan"), RankSpan(2))),
    ],
)
def test_pipelines_that_make_no_sense_are_refused(code: str, call: object) -> None:
    with pytest.raises(UsageError) as error:
        call()  # type: ignore[operator]
    assert error.value.code == code
