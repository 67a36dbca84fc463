"""What a step of a mixed layout sends, against ranks that are listed one by one."""

from collections import Counter, defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.advice.traffic import data_parallel, hybrid_parallel, tensor_parallel
from farflung.advice.traffic.collectives import CollectiveBackend, RankSpan
from farflung.advice.traffic.context_and_expert_parallel import ring_attention, routed
from farflung.advice.traffic.data_parallel import ReplicaSharding, ZeroPlusPlus
from farflung.advice.traffic.hybrid_parallel import ParallelMesh, TrainingStep
from farflung.advice.traffic.traffic_terms import TrafficClass, TrafficLoad, TrafficPhase, TrafficTerm, explained
from farflung.advice.traffic.transformer_shapes import Recomputation, TransformerShape, gpt_flop, gpt_parameters
from farflung.core.errors import UsageError

MODEL = TransformerShape(layers=24, hidden=256, sequence=64, parameters=24e6)
SIZE = 2 * 24e6
SPOKEN = TransformerShape(layers=24, hidden=256, sequence=64, vocabulary=1000)
powers = st.sampled_from([1, 2, 4])


def total(terms: object) -> float:
    return TrafficLoad(1, tuple(terms)).sent  # type: ignore[arg-type]


@given(powers, powers, powers, powers, st.sampled_from([1, 2, 4, 8, 16]), st.integers(1, 3))
@settings(max_examples=80)
def test_quantised_sharding_in_a_mix_is_the_sum_of_its_parts(
    data: int, tensor: int, pipeline: int, context: int, node: int, micros: int
) -> None:
    """Each group's bytes from its ranks' nodes alone, and a copy in each node beside them."""
    mesh = ParallelMesh(data, tensor, pipeline, context, node=node)
    sharding = ReplicaSharding(3, units=6, plus=ZeroPlusPlus(8, 2))
    load = hybrid_parallel.load(MODEL, mesh, TrainingStep(micros=micros, sharding=sharding))
    size, total, leaving, copy = MODEL.size * 2 / tensor / pipeline, 0.0, 0.0, 0.0
    for ranks in listed(mesh)["replicas"]:
        n, homes = len(ranks), Counter(rank // node for rank in ranks)
        local = n // len(homes)
        assert set(homes.values()) == {local}
        weights, near, far = (n - 1) * size / 2, len(homes) * (local - 1), len(homes) - 1
        total += weights + near * size + near * size / 8 + far * size / 8
        leaving += weights * crossing(ranks, node, is_ring=True) + far * size / 8
        copy = size / local if n > 1 else 0.0
    of_it = [term for term in load.terms if data_parallel.PLUS in term.source]
    assert sum(term.total for term in of_it) == pytest.approx(micros * total)
    assert sum(term.between for term in of_it) == pytest.approx(micros * leaving)
    assert sum(kept.bytes for kept in load.kept) == pytest.approx(copy)


def test_tensor_parallel_sums_activations_four_times_a_layer() -> None:
    """8 b s h (t - 1)/t values a layer and micro-batch (Narayanan et al. 2021, section 3.2)."""
    group, count = RankSpan(8), 8
    one = 8 * MODEL.sequence * MODEL.hidden * (count - 1) / count * MODEL.layers * MODEL.element
    plain = tensor_parallel.tensor_parallel(MODEL, group)
    assert total(plain) == pytest.approx(one)
    assert TrafficLoad(8, plain).syncs == 4 * MODEL.layers
    full = tensor_parallel.tensor_parallel(MODEL, group, recompute=Recomputation.FULL)
    assert total(full) == pytest.approx(1.5 * one)
    assert total(tensor_parallel.tensor_parallel(MODEL, group, recompute=Recomputation.SELECTIVE)) == total(plain)
    assert (
        TrafficLoad(8, full).of(phase=TrafficPhase.FORWARD).sent
        == TrafficLoad(8, plain).of(phase=TrafficPhase.FORWARD).sent
    )


def test_sequence_parallel_sends_as_much_but_for_inputs_gathered_again() -> None:
    plain = TrafficLoad(8, tensor_parallel.tensor_parallel(MODEL, RankSpan(8)))
    cut = TrafficLoad(8, tensor_parallel.tensor_parallel(MODEL, RankSpan(8), is_sequence_parallel=True))
    assert cut.of(phase=TrafficPhase.FORWARD).sent == pytest.approx(plain.of(phase=TrafficPhase.FORWARD).sent)
    assert cut.of(phase=TrafficPhase.BACKWARD).sent == pytest.approx(1.5 * plain.of(phase=TrafficPhase.BACKWARD).sent)


def test_keys_and_values_go_around_once_forward_and_twice_backward() -> None:
    grouped = TransformerShape(layers=24, hidden=256, sequence=64, share=0.25)
    forward, backward = ring_attention(grouped, RankSpan(4), batch=2)
    assert forward.sent == pytest.approx(24 * 3 / 4 * 2 * 2 * 64 * 256 * 0.25 * 2)
    assert backward.sent == pytest.approx(2 * forward.sent)


def test_tokens_go_to_their_experts_and_back_both_ways() -> None:
    shape = TransformerShape(layers=24, hidden=256, sequence=64, routed=12, chosen=2)
    forward, backward = routed(shape, RankSpan(8), tokens=64.0)
    assert forward.sent == backward.sent == pytest.approx(12 * 2 * 7 / 8 * 64 * 2 * 256 * 2)
    assert forward.syncs == 24


def passes(terms: tuple[TrafficTerm, ...]) -> float:
    """Of the first term's bytes, how often they are sent."""
    return total(terms) / terms[0].sent


def test_full_recomputation_sends_keys_values_and_tokens_once_more_and_selective_nothing() -> None:
    shape = TransformerShape(layers=24, hidden=256, sequence=64, routed=12, chosen=2)
    expected = {Recomputation.NONE: (3, 2), Recomputation.SELECTIVE: (3, 2), Recomputation.FULL: (4, 3)}
    for kind, (around, there_and_back) in expected.items():
        ring = ring_attention(shape, RankSpan(4), recompute=kind)
        sent = routed(shape, RankSpan(8), tokens=64.0, recompute=kind)
        assert (passes(ring), passes(sent)) == (pytest.approx(around), pytest.approx(there_and_back))
        for terms in (ring, sent):
            assert TrafficLoad(1, terms).of(phase=TrafficPhase.FORWARD).sent == terms[0].sent


def test_a_mix_sends_again_whatever_its_layers_send_forward() -> None:
    shape = TransformerShape(layers=24, hidden=256, sequence=64, parameters=24e6, routed=24)
    mesh = ParallelMesh(data=2, tensor=2, context=2, expert=4)
    plain, full = (
        hybrid_parallel.load(shape, mesh, TrainingStep(recompute=kind))
        for kind in (Recomputation.NONE, Recomputation.FULL)
    )
    more = full.of(phase=TrafficPhase.BACKWARD).sent - plain.of(phase=TrafficPhase.BACKWARD).sent
    assert more == pytest.approx(plain.of(phase=TrafficPhase.FORWARD).sent)


def listed(mesh: ParallelMesh) -> dict[str, list[list[int]]]:
    """Every group of a mesh as lists of ranks, from the numbering alone."""
    groups: dict[str, dict[object, list[int]]] = defaultdict(lambda: defaultdict(list))
    for rank in range(mesh.ranks):
        rest, tensor = divmod(rank, mesh.tensor)
        rest, part = divmod(rest, mesh.context)
        stage, replica = divmod(rest, mesh.data)
        groups["tensor"][stage, replica, part].append(rank)
        groups["replicas"][stage, tensor].append(rank)
        groups["context"][stage, replica, tensor].append(rank)
        groups["chain"][replica, part, tensor].append(rank)
    return {name: list(found.values()) for name, found in groups.items()}


def crossing(ranks: list[int], node: int, *, is_ring: bool) -> float:
    hops = list(zip(ranks, ranks[1:] + (ranks[:1] if is_ring else []), strict=False))
    if len(ranks) == 1 or not hops:
        return 0.0
    return sum(a // node != b // node for a, b in hops) / len(hops)


@given(powers, powers, powers, powers, st.sampled_from([1, 2, 4, 8]), st.integers(1, 3))
@settings(max_examples=80)
def test_a_mixed_step_is_the_sum_of_its_groups(
    data: int, tensor: int, pipeline: int, context: int, node: int, micros: int
) -> None:
    mesh = ParallelMesh(data, tensor, pipeline, context, node=node)
    load = hybrid_parallel.load(MODEL, mesh, TrainingStep(batch=2, micros=micros))
    groups = listed(mesh)
    act = 2 * MODEL.sequence / context * MODEL.hidden * 2
    own = MODEL.size * 2 / tensor / pipeline
    layers = MODEL.layers / pipeline
    each = {
        "replicas": lambda n: 2 * (n - 1) * own,
        "tensor": lambda n: 4 * 2 * (n - 1) * act * layers * micros,
        "context": lambda n: 3 * (n - 1) * 2 * act * context / tensor * layers * micros,
        "chain": lambda n: 2 * (n - 1) * act * micros,
    }
    whole = {name: sum(each[name](len(one)) for one in groups[name]) for name in each}
    assert load.total == pytest.approx(sum(whole.values()))
    leaving = sum(
        each[name](len(one)) * crossing(one, node, is_ring=name != "chain") for name in each for one in groups[name]
    )
    assert load.between == pytest.approx(leaving)


def test_experts_are_summed_among_those_that_hold_them() -> None:
    shape = TransformerShape(layers=24, hidden=256, sequence=64, parameters=24e6, experts=16e6, routed=24)
    load = hybrid_parallel.load(shape, ParallelMesh(data=8, expert=4), TrainingStep())
    names = {term.name: term for term in load.terms}
    assert names["gradients"].sent == pytest.approx(2 * 7 / 8 * 8e6 * 2)
    assert names["experts: gradients"].sent == pytest.approx(2 * 1 / 2 * 16e6 * 2 / 4)


def test_experts_in_a_mix_take_the_tokens_of_their_ranks() -> None:
    shape = TransformerShape(layers=24, hidden=256, sequence=64, parameters=24e6, routed=24, chosen=2)
    mesh = ParallelMesh(data=4, tensor=2, pipeline=2, expert=4)
    whole = hybrid_parallel.load(shape, mesh, TrainingStep(batch=2)).terms
    cut = hybrid_parallel.load(shape, mesh, TrainingStep(batch=2, is_sequence_parallel=True)).terms
    one, half = (next(term for term in terms if "to experts" in term.name) for terms in (whole, cut))
    assert one.sent == pytest.approx(12 * 2 * 3 / 4 * 2 * 64 * 2 * 256 * 2)
    assert half.sent == pytest.approx(one.sent / 2)
    assert one.total == pytest.approx(16 * one.sent)


def test_a_vocabulary_that_is_cut_adds_a_sum_at_either_end() -> None:
    spoken = TransformerShape(layers=24, hidden=256, sequence=64, vocabulary=1000, parameters=24e6, is_tied=False)
    mesh = ParallelMesh(tensor=4, pipeline=2)
    more = (
        hybrid_parallel.load(spoken, mesh, TrainingStep(micros=3)).total
        - hybrid_parallel.load(MODEL, mesh, TrainingStep(micros=3)).total
    )
    assert more == pytest.approx(2 * 3 * 2 * 3 * spoken.activation(1))


def test_an_epoch_is_its_steps_and_storage_is_apart() -> None:
    step = hybrid_parallel.load(MODEL, ParallelMesh(data=4), TrainingStep())
    for name in ("sent", "received", "total", "between", "messages", "syncs"):
        assert getattr(step.times(1000), name) == pytest.approx(1000 * getattr(step, name)) != 0
    assert step.of(road=TrafficClass.STORAGE).sent == 0
    assert step.of(road=TrafficClass.CARDS).sent == step.sent


def test_every_figure_says_its_formula_with_numbers_and_its_source() -> None:
    mesh = ParallelMesh(data=4, tensor=2, pipeline=2, context=2, node=8)
    shape = TransformerShape(layers=24, hidden=256, sequence=64, vocabulary=1000)
    load = hybrid_parallel.load(shape, mesh, TrainingStep(is_scattered=True, sharding=ReplicaSharding(3)))
    assert len(load.terms) > 8
    for term, line in zip(load.terms, explained(load.terms), strict=True):
        assert term.name in line
        assert term.source in line
        assert any(character.isdigit() for character in term.formula)
        assert "19" in term.source or "20" in term.source


@pytest.mark.parametrize(
    ("code", "call"),
    [
        ("FF-PLAN-020", lambda: ParallelMesh(data=0)),
        ("FF-PLAN-020", lambda: ParallelMesh(data=1 << 12, tensor=1 << 12)),
        ("FF-PLAN-020", lambda: TrainingStep(micros=-1)),
        ("FF-PLAN-020", lambda: TransformerShape(layers=0, hidden=8)),
        ("FF-PLAN-020", lambda: TransformerShape(layers=2, hidden=8, routed=3)),
        ("FF-PLAN-020", lambda: tensor_parallel.embedding(SPOKEN, RankSpan(2), micros=-1)),
        ("FF-PLAN-020", lambda: tensor_parallel.embedding(SPOKEN, RankSpan(2), micros=float("nan"))),
        ("FF-PLAN-020", lambda: gpt_parameters(-2, 8, 0, 1)),
        ("FF-PLAN-021", lambda: TrafficLoad(2, ()).times(float("nan"))),
        ("FF-PLAN-021", lambda: TrafficLoad(2, ()).times(-1)),
        ("FF-PLAN-021", lambda: TrafficLoad(2, ()).times(float("inf"))),
        ("FF-PLAN-021", lambda: tensor_parallel.embedding(SPOKEN, RankSpan(2), groups=-1.0)),
        ("FF-PLAN-026", lambda: TrainingStep(recompute="all")),
        ("FF-PLAN-026", lambda: tensor_parallel.tensor_parallel(MODEL, RankSpan(2), recompute="x")),
        ("FF-PLAN-026", lambda: ring_attention(MODEL, RankSpan(2), recompute="x")),
        ("FF-PLAN-026", lambda: gpt_flop(MODEL, 1, "x")),
        ("FF-PLAN-020", lambda: tensor_parallel.tensor_parallel(MODEL, RankSpan(2), layers=25)),
        ("FF-PLAN-021", lambda: TransformerShape(layers=2, hidden=8, parameters=float("nan"))),
        ("FF-PLAN-021", lambda: TransformerShape(layers=2, hidden=8, share=2.0)),
        ("FF-PLAN-020", lambda: RankSpan(2, local=3)),
        (
            "FF-PLAN-028",
            lambda: hybrid_parallel.load(
                MODEL, ParallelMesh(6, node=4), TrainingStep(sharding=ReplicaSharding(3, plus=ZeroPlusPlus()))
            ),
        ),
        ("FF-PLAN-023", lambda: ParallelMesh(data=6, expert=4)),
        ("FF-PLAN-023", lambda: hybrid_parallel.load(MODEL, ParallelMesh(pipeline=5), TrainingStep())),
        ("FF-PLAN-023", lambda: hybrid_parallel.load(MODEL, ParallelMesh(context=3), TrainingStep())),
        ("FF-PLAN-023", lambda: hybrid_parallel.load(MODEL, ParallelMesh(pipeline=8), TrainingStep(virtual=2))),
        ("FF-PLAN-023", lambda: ring_attention(MODEL, RankSpan(3))),
    ],
)
def test_layouts_that_cannot_be_are_refused(code: str, call: object) -> None:
    with pytest.raises(UsageError) as error:
        call()  # type: ignore[operator]
    assert error.value.code == code


@pytest.mark.parametrize(
    ("field", "sizes"),
    [("experts", {"parameters": 1e6, "experts": 5e6}), ("routed", {"parameters": 1e6, "experts": 5e5})],
)
def test_experts_that_cannot_be_are_refused_by_the_field_that_is_wrong(field: str, sizes: dict[str, float]) -> None:
    with pytest.raises(UsageError, match=f"{field} cannot be"):
        TransformerShape(layers=4, hidden=8, **sizes)  # type: ignore[arg-type]


def test_a_word_means_the_same_as_its_member() -> None:
    full = tensor_parallel.tensor_parallel(MODEL, RankSpan(8), recompute="full")  # type: ignore[arg-type]
    assert full == tensor_parallel.tensor_parallel(MODEL, RankSpan(8), recompute=Recomputation.FULL)
    gloo = data_parallel.replicated(SIZE, RankSpan(4), ReplicaSharding(3, backend="gloo"))  # type: ignore[arg-type]
    assert gloo == data_parallel.replicated(SIZE, RankSpan(4), ReplicaSharding(3, backend=CollectiveBackend.GLOO))
    assert gpt_flop(MODEL, 1, "full") == gpt_flop(MODEL, 1, Recomputation.FULL)  # type: ignore[arg-type]
