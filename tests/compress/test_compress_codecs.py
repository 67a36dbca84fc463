"""Dense and top-k codecs: round trips on odd layouts, canonical bytes, error feedback, lengths."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.compress import chunks
from farflung.compress.chunks import plan
from farflung.compress.payload import HEADER_BYTES, ContributionKey
from farflung.compress.registry import NAMES, make
from farflung.compress.values import BITS
from farflung.core import limits
from farflung.core.errors import FarflungError, PolicyError, RunError, SpecError, VerificationError
from farflung.core.ids import Hash, PeerId
from farflung.core.tensor_layout import TensorLayout

ABOUT = ContributionKey(3, 0, Hash(b"\x01" * 32), PeerId(b"\x02" * 32))
CASES = settings(max_examples=40)
LAYOUTS = {
    "prime": {"w": (1009, 7)},
    "one element": {"w": (1,)},
    "scalar": {"w": ()},
    "one dimension": {"b": (130,), "w": (257,)},
    "convolution": {"conv": (5, 3, 7, 7), "bias": (5,)},
    "many tiny": {f"t{i:03d}": (i % 5 + 1,) for i in range(90)},
    "whole chunks": {"w": (8, 16)},
    "small between large": {"a": (40,), "b": (3,), "c": (61,), "d": (15,), "e": (17,)},
}
SPARSE = [(1, 1), (1, 16), (3, 16), (16, 16), (5, 7), (64, 4096)]


def codec_of(kind, bits=2, transform="raw", topk=3, chunk=16, decay=0.75):
    return make(kind, value_bits=bits, topk=topk, chunk=chunk, transform=transform, rank=4, error_decay=decay)


CODECS = [codec_of(kind, bits) for kind in ("dense", "topk") for bits in BITS]
CODECS += [codec_of("topk", topk=k, chunk=chunk) for k, chunk in SPARSE]
CODECS += [
    codec_of(kind, bits, transform, 9, 256)
    for kind in ("dense", "topk")
    for bits in (2, 8, 32)
    for transform in ("dct", "auto")
]


def label(codec):
    return "-".join(map(str, codec.form[:5]))


def gaussian(layout, seed=0):
    return np.random.default_rng(seed).standard_normal(layout.size).astype(np.float32)


@pytest.mark.slow
def test_payload_and_residual_make_up_the_values_on_odd_layouts(subtests):
    for shapes in LAYOUTS.values():
        for codec in CODECS:
            with subtests.test(shapes=shapes, codec=codec):
                layout = TensorLayout.of(shapes)
                values = gaussian(layout)
                before = values.copy()
                state, payload = codec.encode(None, values, layout, ABOUT)
                assert np.array_equal(values, before)
                decoded = codec.decode(payload, layout, ABOUT)
                assert decoded.shape == (layout.size,)
                assert decoded.dtype == np.float32
                assert len(payload) <= codec.bound(layout)
                rest = np.zeros_like(values) if state is None else state
                assert np.array_equal(rest, values - decoded)
                assert codec.encode(None, values, layout, ABOUT)[1] == payload


@st.composite
def rounds(draw):
    shapes = draw(st.lists(st.lists(st.integers(1, 9), max_size=3), min_size=1, max_size=4))
    layout = TensorLayout.of({f"t{i}": tuple(shape) for i, shape in enumerate(shapes)})
    numbers = st.one_of(st.floats(-8, 8, width=32), st.sampled_from([0.0, -0.0, 1.0, -1.0, 1e-45, 1e38]))
    pool = draw(st.lists(numbers, min_size=1, max_size=30))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    picked = [random.choice(np.array(pool, np.float32), layout.size) for _ in range(2)]
    chunk = draw(st.integers(1, 20))
    return layout, picked, draw(st.integers(1, chunk)), chunk


@CASES
@given(rounds(), st.sampled_from(["dense", "topk"]), st.sampled_from(BITS))
def test_error_feedback_conserves_what_was_not_sent(case, kind, bits):
    layout, (first, second), topk, chunk = case
    codec = codec_of(kind, bits, "raw", topk, chunk, 0.25)
    state, _ = codec.encode(None, first, layout, ABOUT)
    after, payload = codec.encode(state, second, layout, ABOUT)
    decoded = codec.decode(payload, layout, ABOUT)
    assert len(payload) <= codec.bound(layout)
    if (kind, bits) == ("dense", 32):
        assert after is None
        assert np.array_equal(decoded, second)
    else:
        wanted = np.float32(0.25) * state + second
        assert np.array_equal(after, wanted - decoded)
        unit = np.spacing(np.maximum(np.abs(wanted), np.abs(decoded)).astype(np.float64).astype(np.float32))
        assert (np.abs((after.astype(np.float64) + decoded) - wanted) <= unit).all()


@CASES
@given(rounds())
def test_topk_sends_the_largest_of_each_chunk_and_of_equals_the_first(case):
    layout, (values, _), topk, chunk = case
    codec = codec_of("topk", 2, "raw", topk, chunk, 0.0)
    wanted = np.zeros(layout.size, bool)
    flat = [list(range(p.start, p.stop)) for _, p in layout.slices()]
    small = [i for places in flat if len(places) < chunk for i in places]
    for places in [*filter(lambda p: len(p) >= chunk, flat), small]:
        for start in range(0, len(places), chunk):
            piece = places[start : start + chunk]
            wanted[sorted(piece, key=lambda i: (-abs(values[i]), i))[:topk]] = True
    marked = np.where(wanted, np.sign(values) + (values == 0), 0).astype(np.float32)
    state, payload = codec.encode(None, values, layout, ABOUT)
    decoded = codec.decode(payload, layout, ABOUT)
    assert not decoded[~wanted].any()
    assert np.array_equal(state[~wanted], values[~wanted])
    # the same support with values of one magnitude: every chosen element now shows
    shown = codec.decode(codec.encode(None, marked, layout, ABOUT)[1], layout, ABOUT)
    assert np.array_equal(shown != 0, wanted)


@pytest.mark.parametrize("kind", ["dense", "topk"])
@pytest.mark.parametrize("transform", ["raw", "auto"])
def test_layouts_beyond_one_slab_come_back(kind, transform):
    layout = TensorLayout.of({"big": ((1 << 20) + 4099,), "b": (5,)})
    values = gaussian(layout)
    codec = codec_of(kind, 2, transform, 16, 4096, 0.9)
    state, payload = codec.encode(None, values, layout, ABOUT)
    assert np.array_equal(values - codec.decode(payload, layout, ABOUT), state)


def test_sections_are_coded_alone(monkeypatch):
    layout = TensorLayout.of({"a": (300, 33), "b": (70, 40), "c": (5000,), "d": (7,)})
    values = gaussian(layout)
    whole = codec_of("topk", 2, "auto", 9, 256).encode(None, values, layout, ABOUT)[1]
    monkeypatch.setattr(chunks, "SLAB", 1 << 11)
    monkeypatch.setattr(chunks, "SECTION", 1 << 12)
    chunks_of = plan(layout, 256, 9)
    assert len(list(chunks_of.sections())) == 5
    codec = codec_of("topk", 2, "auto", 9, 256)
    monkeypatch.setattr(type(codec), "plan", lambda self, layout: chunks_of)
    state, payload = codec.encode(None, values, layout, ABOUT)
    assert np.array_equal(values - codec.decode(payload, layout, ABOUT), state)
    assert payload != whole


def test_a_transform_that_keeps_more_is_taken_for_each_slab():
    layout = TensorLayout.of({"rough": (64, 64), "smooth": (64, 64)})
    rough = np.random.default_rng(1).standard_normal((64, 64)) ** 5
    smooth = np.add.outer(np.arange(64.0), np.arange(64.0)) + 1
    values = np.concatenate([rough.reshape(-1), smooth.reshape(-1)]).astype(np.float32)
    errors = {}
    for transform in ("raw", "dct", "auto"):
        codec = codec_of("topk", 8, transform, 64, 4096)
        state, _ = codec.encode(None, values, layout, ABOUT)
        errors[transform] = [float((part**2).sum()) for part in (state[:4096], state[4096:])]
    assert errors["auto"] == [errors["raw"][0], errors["dct"][1]]
    assert errors["raw"][0] < errors["dct"][0]
    assert errors["raw"][1] > errors["dct"][1]


def test_an_index_of_a_uniform_support_costs_at_most_7_6_bits_at_64_of_4096():
    layout = TensorLayout.of({"w": (64, 4096)})
    values = gaussian(layout)
    sizes = [len(codec_of("topk", bits, "raw", 64, 4096).encode(None, values, layout, ABOUT)[1]) for bits in (1, 2)]
    assert 8 * (sizes[0] - HEADER_BYTES) - 64 * 64 <= 7.6 * 64 * 64
    assert 8 * (sizes[1] - HEADER_BYTES) <= 9.6 * 64 * 64


def test_rows_and_columns_that_differ_make_indices_cheap():
    random = np.random.default_rng(2)
    layout = TensorLayout.of({"w": (512, 128)})
    scale = np.outer(random.lognormal(0, 0.5, 512), random.lognormal(0, 0.5, 128))
    values = (random.standard_normal((512, 128)) * scale).astype(np.float32).reshape(-1)
    size = len(codec_of("topk", 1, "raw", 64, 4096).encode(None, values, layout, ABOUT)[1])
    assert 8 * (size - HEADER_BYTES) <= (6.6 + 1) * 64 * 16


def test_odd_shapes_cost_no_more_than_their_share(subtests):
    """Bytes per element beside those of whole square chunks."""
    for shape in [(65_537,), (257, 255), (64, 113, 3, 3), (5, 13_109), (13_109, 5)]:
        for transform in ["raw", "auto"]:
            with subtests.test(shape=shape, transform=transform):
                codec = codec_of("topk", 2, transform, 64, 4096)
                costs = []
                for shapes in ({"w": shape}, {"w": (256, 256)}):
                    layout = TensorLayout.of(shapes)
                    size = len(codec.encode(None, gaussian(layout), layout, ABOUT)[1]) - HEADER_BYTES
                    sent = sum(min(64, layout.size - start) for start in range(0, layout.size, 4096))
                    costs.append(size / sent)
                assert costs[0] <= 1.03 * costs[1]


def test_many_small_tensors_cost_no_more_than_one_large_one():
    codec = codec_of("topk", 2, "raw", 64, 4096)
    tiny = TensorLayout.of({f"t{i:04d}": (97,) for i in range(676)})
    large = TensorLayout.of({"w": (676 * 97,)})
    middle = TensorLayout.of({f"t{i:02d}": (128, 64) for i in range(8)})
    sizes = [len(codec.encode(None, gaussian(layout), layout, ABOUT)[1]) for layout in (tiny, middle, large)]
    assert sizes[0] <= 1.03 * sizes[2]
    assert sizes[1] <= 1.05 * sizes[2]


@pytest.mark.slow
def test_no_input_found_is_longer_than_the_bound(subtests):
    for shapes in LAYOUTS.values():
        for topk, chunk in SPARSE:
            with subtests.test(shapes=shapes, topk=topk, chunk=chunk):
                layout = TensorLayout.of(shapes)
                for bits in (1, 2, 8):
                    codec = codec_of("topk", bits, "raw", topk, chunk)
                    for values in (worst(layout, topk, chunk), gaussian(layout), np.zeros(layout.size, np.float32)):
                        assert len(codec.encode(None, values, layout, ABOUT)[1]) <= codec.bound(layout)


@pytest.mark.parametrize(("topk", "chunk"), SPARSE)
def test_the_bound_is_reached_by_the_worst_support(topk, chunk):
    sizes = {}
    for name in ("one element", "scalar", "small between large"):
        layout = TensorLayout.of(LAYOUTS[name])
        codec = codec_of("topk", 8, "raw", topk, chunk)
        sizes[name] = (len(codec.encode(None, worst(layout, topk, chunk), layout, ABOUT)[1]), codec.bound(layout))
    assert sizes["one element"][0] == sizes["one element"][1]
    assert sizes["scalar"][0] == sizes["scalar"][1]
    assert sizes["small between large"][0] >= 0.95 * sizes["small between large"][1]


def worst(layout, topk, chunk):
    """Every chunk chooses its last elements, and no magnitude comes twice."""
    cut = plan(layout, chunk, topk)
    rows = [
        np.arange(1, min(chunk, slab.size - start) + 1, dtype=np.float32)
        for slab in cut.slabs
        for start in range(0, slab.size, chunk)
    ]
    flat = np.empty(layout.size, np.float32)
    flat[np.concatenate([np.arange(place.start, place.stop) for place in cut.order])] = np.concatenate(rows)
    return flat


@pytest.mark.parametrize("bits", BITS)
def test_dense_payloads_of_noise_reach_their_bound(bits):
    layout = TensorLayout.of({"w": (700,)})
    noise = np.random.default_rng(0).integers(0, 1 << 32, 700, dtype=np.uint32).view(np.float32)
    values = np.where(np.isfinite(noise), noise, np.float32(1.0))
    codec = codec_of("dense", bits)
    if bits == 2:
        values = np.tile(np.array([-3, -1, 1, 3], np.float32), 175)
    if bits == 8:
        values = np.tile(np.arange(-127, 127, dtype=np.float32), 3)[:700]
        values[::128] = 127
    if bits == 1:
        values = np.tile(np.array([-1, 1], np.float32), 350)
    size = len(codec.encode(None, values, layout, ABOUT)[1])
    assert size <= codec.bound(layout)
    if bits != 4:  # 15 of 16 symbols: always a little to save
        assert size == codec.bound(layout)


def test_zeros_and_denormals_survive():
    layout = TensorLayout.of({"a": (20,), "b": (3,)})
    for codec in CODECS:
        for filler in (0.0, -0.0, 1e-45, -1e-40, 3.4e38):
            values = np.full(layout.size, filler, np.float32)
            state, payload = codec.encode(None, values, layout, ABOUT)
            decoded = codec.decode(payload, layout, ABOUT)
            assert np.isfinite(decoded).all()
            assert state is None or np.array_equal(state, values - decoded)


def test_values_that_are_not_finite_are_refused_by_the_name_of_their_tensor(subtests):
    for bad in [np.nan, np.inf, -np.inf]:
        for codec in [CODECS[5], CODECS[1], CODECS[7], CODECS[-1]]:
            with subtests.test(bad=bad, codec=codec):
                layout = TensorLayout.of({"a": (20,), "culprit": (4,), "z": (9,)})
                values = gaussian(layout)
                values[23] = bad
                with pytest.raises(RunError, match="culprit") as caught:
                    codec.encode(None, values, layout, ABOUT)
                assert caught.value.code == "FF-COMP-020"


def test_a_sum_with_the_residual_that_overflows_is_refused():
    layout = TensorLayout.of({"a": (2,)})
    huge = np.full(2, 3e38, np.float32)
    with pytest.raises(RunError) as caught:
        codec_of("dense", decay=1.0).encode(huge, huge, layout, ABOUT)
    assert caught.value.code == "FF-COMP-020"


@pytest.mark.parametrize("codec", [CODECS[1], CODECS[7]], ids=label)
def test_arrays_that_do_not_fit_the_layout_are_refused(codec):
    layout = TensorLayout.of({"a": (20,)})
    good = gaussian(layout)
    for state, values in [
        (None, good[:19]),
        (good[:19], good),
        (None, good.reshape(4, 5)),
        (None, good.astype(np.float64)),
    ]:
        with pytest.raises(VerificationError) as caught:
            codec.encode(state, values, layout, ABOUT)
        assert caught.value.code == "FF-COMP-021"


def test_a_payload_that_nobody_would_accept_is_refused_before_the_work():
    layout = TensorLayout.of({"a": (limits.PAYLOAD_BYTES // 4,)})
    with pytest.raises(PolicyError) as caught:
        codec_of("dense", 32).encode(None, np.zeros(1, np.float32), layout, ABOUT)
    assert caught.value.code == "FF-COMP-023"


def test_a_bad_codec_in_a_job_file_is_refused_with_a_next_step(subtests):
    for change, code in [
        ({"kind": "top_k"}, "FF-COMP-030"),
        ({"topk": 0}, "FF-COMP-031"),
        ({"topk": 5, "chunk": 4}, "FF-COMP-031"),
        ({"topk": 5, "chunk": (1 << 20) + 1}, "FF-COMP-031"),
        ({"decay": 1.01}, "FF-COMP-031"),
        ({"decay": -0.1}, "FF-COMP-031"),
        ({"decay": float("nan")}, "FF-COMP-031"),
        ({"transform": "fft"}, "FF-COMP-031"),
        ({"transform": "dct", "chunk": 100}, "FF-COMP-032"),
        ({"bits": 3}, "FF-COMP-033"),
    ]:
        with subtests.test(change=change, code=code):
            with pytest.raises(SpecError) as caught:
                codec_of(**{"kind": "dense", **change})
            assert caught.value.code == code
            assert caught.value.hint
            assert isinstance(caught.value, FarflungError)


def test_names_and_numbers_of_codecs_are_fixed():
    assert NAMES == ("dense", "topk", "low_rank")
    assert [codec_of(name).form.numbers[0] for name in NAMES] == [1, 2, 3]
