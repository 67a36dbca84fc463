"""The three codecs: round trips on odd layouts, canonical bytes, error feedback, lengths."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.compress.chunks import groups, slabs
from farflung.compress.payload import HEADER_BYTES, About
from farflung.compress.registry import NAMES, make
from farflung.core import limits
from farflung.core.errors import FarflungError, PolicyError, RunError, SpecError, VerificationError
from farflung.core.ids import Hash, PeerId
from farflung.core.layout import Layout

ABOUT = About(3, 0, Hash(b"\x01" * 32), PeerId(b"\x02" * 32))
CASES = settings(max_examples=40, deadline=None)
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
CODECS = [make(name, topk=3, chunk=16, error_decay=0.75) for name in NAMES]
CODECS += [make("topk_2bit", topk=k, chunk=chunk, error_decay=0.75) for k, chunk in SPARSE]


def label(codec):
    return f"{codec.name}-{getattr(codec, 'topk', '')}-{getattr(codec, 'chunk', '')}"


def gaussian(layout, seed=0):
    return np.random.default_rng(seed).standard_normal(layout.size).astype(np.float32)


@pytest.mark.parametrize("shapes", LAYOUTS.values(), ids=LAYOUTS.keys())
@pytest.mark.parametrize("codec", CODECS, ids=label)
def test_payload_and_residual_make_up_the_values_on_odd_layouts(codec, shapes):
    layout = Layout.of(shapes)
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
    layout = Layout.of({f"t{i}": tuple(shape) for i, shape in enumerate(shapes)})
    numbers = st.one_of(st.floats(-8, 8, width=32), st.sampled_from([0.0, -0.0, 1.0, -1.0, 1e-45, 1e38]))
    pool = draw(st.lists(numbers, min_size=1, max_size=30))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    picked = [random.choice(np.array(pool, np.float32), layout.size) for _ in range(2)]
    chunk = draw(st.integers(1, 20))
    return layout, picked, draw(st.integers(1, chunk)), chunk


@CASES
@given(rounds(), st.sampled_from(NAMES))
def test_error_feedback_conserves_what_was_not_sent(case, name):
    layout, (first, second), topk, chunk = case
    codec = make(name, topk=topk, chunk=chunk, error_decay=0.25)
    state, _ = codec.encode(None, first, layout, ABOUT)
    after, payload = codec.encode(state, second, layout, ABOUT)
    decoded = codec.decode(payload, layout, ABOUT)
    if name == "dense_fp32":
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
    codec = make("topk_2bit", topk=topk, chunk=chunk, error_decay=0.0)
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


def test_layouts_beyond_one_slab_and_one_block_come_back():
    layout = Layout.of({"big": ((1 << 20) + 4099,), "b": (5,)})
    values = gaussian(layout)
    for name in NAMES:
        codec = make(name, topk=64, chunk=4096, error_decay=0.9)
        state, payload = codec.encode(None, values, layout, ABOUT)
        decoded = codec.decode(payload, layout, ABOUT)
        rest = 0.0 if state is None else state
        assert np.array_equal(values - decoded, np.broadcast_to(rest, values.shape))


@pytest.mark.parametrize("topk", [16, 64, 256])
def test_expect_is_within_two_percent_for_gaussian_values(topk):
    layout = Layout.of({"emb": (256, 128), "fc": (512, 128), "qkv": (384, 131), "ln": (128,), "b": (512,)})
    for name in NAMES:
        codec = make(name, topk=topk, chunk=4096, error_decay=0.95)
        size = len(codec.encode(None, gaussian(layout), layout, ABOUT)[1])
        assert abs(codec.expect(layout) / size - 1) < 0.02


def test_an_index_costs_at_most_7_7_bits_at_64_of_4096():
    layout = Layout.of({"w": (64, 4096)})
    codec = make("topk_2bit", topk=64, chunk=4096, error_decay=0.95)
    payload = codec.encode(None, gaussian(layout), layout, ABOUT)[1]
    count = 64 * 64
    assert 8 * (len(payload) - HEADER_BYTES) - 2 * count <= 7.7 * count


@pytest.mark.parametrize("shapes", LAYOUTS.values(), ids=LAYOUTS.keys())
@pytest.mark.parametrize(("topk", "chunk"), SPARSE)
def test_the_bound_is_reached_by_the_worst_support(topk, chunk, shapes):
    layout = Layout.of(shapes)
    codec = make("topk_2bit", topk=topk, chunk=chunk, error_decay=0.95)
    worst = np.empty(layout.size, np.float32)
    for group in groups(layout, chunk):
        vector = np.concatenate(
            [
                np.arange(1, min(chunk, slab.size - start) + 1, dtype=np.float32)
                for slab in slabs(group, chunk, topk)
                for start in range(0, slab.size, chunk)
            ]
        )
        group.scatter(vector, worst)
    assert len(codec.encode(None, worst, layout, ABOUT)[1]) == codec.bound(layout)


def test_zeros_and_denormals_survive():
    layout = Layout.of({"a": (20,), "b": (3,)})
    for codec in CODECS:
        for filler in (0.0, -0.0, 1e-45, -1e-40, 3.4e38):
            values = np.full(layout.size, filler, np.float32)
            state, payload = codec.encode(None, values, layout, ABOUT)
            decoded = codec.decode(payload, layout, ABOUT)
            assert np.isfinite(decoded).all()
            assert state is None or np.array_equal(state, values - decoded)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("codec", CODECS[:3], ids=label)
def test_values_that_are_not_finite_are_refused_by_the_name_of_their_tensor(codec, bad):
    layout = Layout.of({"a": (20,), "culprit": (4,), "z": (9,)})
    values = gaussian(layout)
    values[23] = bad
    with pytest.raises(RunError, match="culprit") as caught:
        codec.encode(None, values, layout, ABOUT)
    assert caught.value.code == "FF-COMP-020"


def test_a_sum_with_the_residual_that_overflows_is_refused():
    layout = Layout.of({"a": (2,)})
    huge = np.full(2, 3e38, np.float32)
    with pytest.raises(RunError) as caught:
        make("dense_2bit", topk=1, chunk=1, error_decay=1.0).encode(huge, huge, layout, ABOUT)
    assert caught.value.code == "FF-COMP-020"


@pytest.mark.parametrize("codec", CODECS[1:3], ids=label)
def test_arrays_that_do_not_fit_the_layout_are_refused(codec):
    layout = Layout.of({"a": (20,)})
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
    layout = Layout.of({"a": (limits.PAYLOAD_BYTES // 4,)})
    with pytest.raises(PolicyError) as caught:
        make("dense_fp32", topk=1, chunk=1, error_decay=0.0).encode(
            None, np.zeros(1, np.float32), layout, ABOUT
        )
    assert caught.value.code == "FF-COMP-023"


@pytest.mark.parametrize(
    ("name", "topk", "chunk", "decay", "code"),
    [
        ("topk_3bit", 1, 4, 0.5, "FF-COMP-030"),
        ("topk_2bit", 0, 4, 0.5, "FF-COMP-031"),
        ("topk_2bit", 5, 4, 0.5, "FF-COMP-031"),
        ("topk_2bit", 5, (1 << 20) + 1, 0.5, "FF-COMP-031"),
        ("dense_2bit", 1, 4, 1.01, "FF-COMP-031"),
        ("dense_2bit", 1, 4, -0.1, "FF-COMP-031"),
        ("dense_2bit", 1, 4, float("nan"), "FF-COMP-031"),
    ],
)
def test_a_bad_codec_in_a_job_file_is_refused_with_a_next_step(name, topk, chunk, decay, code):
    with pytest.raises(SpecError) as caught:
        make(name, topk=topk, chunk=chunk, error_decay=decay)
    assert caught.value.code == code
    assert caught.value.hint
    assert isinstance(caught.value, FarflungError)


def test_names_and_numbers_of_codecs_are_fixed():
    made = [make(name, topk=1, chunk=1, error_decay=0.0) for name in NAMES]
    assert [(codec.name, codec.id) for codec in made] == [
        ("dense_fp32", 1),
        ("dense_2bit", 2),
        ("topk_2bit", 3),
    ]
