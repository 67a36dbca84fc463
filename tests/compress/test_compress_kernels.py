"""Compiled loops and their NumPy twins give the same bytes, and nothing needs them."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from farflung.compress import ans, chunks, codecs, context_model, index_coding, kernels, merge, symbol_stream, values
from farflung.core.errors import ProtocolError, UsageError

# Importing them registers every kernel.
MODULES = (ans, chunks, codecs, context_model, merge, symbol_stream, index_coding, values)

WIDTH = 1 << 15
finite = st.floats(width=32, allow_nan=False, allow_infinity=False)
vectors = st.integers(1, 300).flatmap(
    lambda size: st.one_of(
        arrays(np.float32, size, elements=finite),
        arrays(np.float32, size, elements=st.sampled_from([0.0, -0.0, 1.0, -1.0, 1e-45, -3e38, 2.0**-24])),
        st.integers(0, 1 << 32).map(lambda seed: random(seed, size)),
    )
)


def random(seed: int, size: int, scale: float = 1.0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(size) * scale).astype(np.float32)


def same(first, second) -> bool:
    """Equal to the bit: types, shapes, NaN and signs of zero included."""
    if isinstance(first, tuple):
        return len(first) == len(second) and all(map(same, first, second))
    if isinstance(first, np.ndarray):
        return (first.dtype, first.shape) == (second.dtype, second.shape) and first.tobytes() == second.tobytes()
    return first == second


def agree(name: str, *args) -> None:
    """Runs both forms on copies; compares results and what they wrote into their arguments."""
    loop = kernels.CODECS.loop(name)
    if loop is None:
        pytest.skip("the extra `fast` is not installed: no numba")
    here, there = ([a.copy() if isinstance(a, np.ndarray) else a for a in args] for _ in range(2))
    assert same(loop(*here), kernels.CODECS.twin(name)(*there)), name
    assert all(map(same, here, there)), name


def symbols_of(values: np.ndarray, top: int) -> np.ndarray:
    return (values.view(np.uint32) % (2 * top + 1)).astype(np.uint8)


def on_largest(values: np.ndarray, chunk: int, topk: int) -> None:
    agree("largest", values, chunk, min(topk, chunk))


def on_levels(values: np.ndarray, top: int, block: int) -> None:
    agree("uniform", values, top, block)
    scales, symbols = kernels.CODECS.twin("uniform")(values, top, block)
    agree("scaled", symbols, scales, top, block, np.empty(symbols.size, np.float32))
    agree("peaks", symbols_of(values, top), top, block)


def on_two_bits(values: np.ndarray, threshold: int, is_zero: bool) -> None:
    agree("magnitudes", values, 26)
    whole, _ = kernels.CODECS.twin("magnitudes")(values, 26)
    agree("above", whole, threshold)
    agree("above", whole, -1)
    agree("ranked", values, whole, threshold, is_zero)
    agree("tallied", kernels.CODECS.twin("ranked")(values, whole, threshold, is_zero), 4)
    agree("looked_up", symbols_of(values, 1), values[:3].repeat(3), np.empty(values.size, np.float32))


def on_sums(values: np.ndarray, other: np.ndarray, decay: float) -> None:
    agree("accumulate", values, other, np.float32(decay))


def on_merge(values: np.ndarray, weight: int, scale: int) -> None:
    high, low, peaks = kernels.CODECS.twin("measured")(values, WIDTH)
    agree("measured", values, 7)
    agree("measured", values, WIDTH)
    assert same(kernels.CODECS.kernel("measured")(values, WIDTH), (high, low, peaks))
    for block in (np.arange(values.size, dtype=np.int64), np.arange(values.size, dtype=np.float64)):
        if block.dtype == np.int64 or weight * int(peaks.max()) < 1 << 52:
            agree("add", values, block, weight, int(peaks.max()), scale)


def on_symbols(coded: np.ndarray, alphabet: int) -> None:
    agree("plane_shares", coded, alphabet)
    agree("plane_stream", coded, alphabet, symbol_stream.lanes_of(coded.size))
    starts, freqs = kernels.CODECS.twin("plane_shares")(coded, alphabet)
    data = on_stream(starts, freqs, symbol_stream.BITS, symbol_stream.lanes_of(coded.size))
    lanes = symbol_stream.lanes_of(coded.size)
    for stream in damaged(data, lanes):
        on_decoding("plane_symbols", stream, symbol_stream.BITS, lanes, coded.size, alphabet)


def on_contexts(coded: np.ndarray) -> None:
    lanes = symbol_stream.lanes_of(coded.size)
    agree("context_shares", coded, lanes)
    data = on_stream(*kernels.CODECS.twin("context_shares")(coded, lanes), symbol_stream.BITS, lanes)
    for stream in damaged(data, lanes):
        on_decoding("context_symbols", stream, symbol_stream.BITS, lanes, coded.size)


def on_bytes(coded: np.ndarray) -> None:
    for bits in (1, 2, 4):
        agree("packed", coded % (1 << bits), bits)
        agree("unpacked", coded, coded.size * 8 // bits - 1, bits)
    agree("united", coded, coded[::-1].copy(), 2 * coded.size - 1)


def on_support(indices: np.ndarray, *about: int) -> None:
    agree("support_shares", indices, *about)
    starts, freqs = kernels.CODECS.twin("support_shares")(indices, *about)
    lanes = ans.lanes_of(indices.size, index_coding.SHARE)
    if starts.size:
        data = on_stream(starts, freqs, index_coding.BITS, lanes)
        for stream in damaged(data, lanes):
            on_decoding("support_places", stream, index_coding.BITS, lanes, *about)


def damaged(data: bytes, lanes: int) -> list[bytes]:
    """A stream, one without its last word, one with other words, one with another state."""
    head = ans.STATE_BYTES * lanes
    states, words = data[:head], data[head:]
    return [data, states + words[:-2], states + words[::-1], b"\x55" + data[1:]]


def on_stream(starts: np.ndarray, freqs: np.ndarray, bits: int, lanes: int) -> bytes:
    agree("ans_encode", starts, freqs, bits, lanes)
    return ans.encode(starts, freqs, bits, lanes)


def on_decoding(name: str, data: bytes, bits: int, lanes: int, *about: int) -> None:
    """Both forms read the same, or both refuse; what a refused stream leaves behind is nobody's."""
    loop = kernels.CODECS.loop(name)
    if loop is None:
        pytest.skip("the extra `fast` is not installed: no numba")
    found = []
    for form in (loop, kernels.CODECS.twin(name)):
        try:
            stream = ans.RansDecoder.of(memoryview(data), bits, lanes)
        except ProtocolError:
            return
        result, how = form(stream.states, stream.words, stream.cursor, *about)
        is_whole = how if isinstance(how, bool) else how == 0
        found.append((how, result, stream.states, stream.cursor) if is_whole else how)
    assert same(*found), name


@pytest.mark.extra(name="kernels")
@given(st.lists(st.integers(0, 14), min_size=1, max_size=700), st.sampled_from([15, 255]))
@settings(max_examples=40)
def test_streams_of_values_are_the_same(symbols, alphabet):
    coded = np.array(symbols, np.uint8)
    on_symbols(coded, alphabet)
    on_contexts(coded % 4)
    on_bytes(coded * 17)


@given(
    st.integers(0, 1 << 32), st.integers(1, 6000), st.sampled_from([1, 7, 64, 256, 4096, 5000]), st.integers(1, 64),
    st.sampled_from([1, 3, 64, 100, 1000, 6000, 1 << 33]), st.integers(0, 300), st.booleans(),
)  # fmt: skip
@settings(max_examples=30)
def test_streams_of_supports_are_the_same(seed, size, chunk, topk, width, origin, is_skewed):
    values = random(seed, size)
    if is_skewed:
        values *= np.where((origin + np.arange(size)) % width % 7 == 0, np.float32(50), np.float32(1))
    topk = min(topk, chunk)
    on_support(chunks.largest(values, chunk, topk), origin, size, chunk, topk, width)


@given(vectors, st.integers(1, 64), st.integers(1, 64))
@settings(max_examples=40)
def test_the_largest_are_the_same(values, chunk, topk):
    on_largest(values, chunk, topk)


@given(vectors, st.sampled_from([7, 127]), st.integers(1, 200))
@settings(max_examples=40)
def test_block_wise_values_are_the_same(values, top, block):
    on_levels(values, top, block)


@given(vectors, st.integers(0, 1 << 26), st.booleans())
@settings(max_examples=40)
def test_two_bit_values_are_the_same(values, threshold, is_zero):
    on_two_bits(values, threshold, is_zero)


@given(vectors, st.data(), st.sampled_from([0.0, 0.5, 0.95, 0.999, 1.0]))
@settings(max_examples=40)
def test_error_feedback_is_the_same(values, data, decay):
    on_sums(values, data.draw(arrays(np.float32, values.size, elements=finite)), decay)


@given(vectors, st.integers(1, 1 << 20), st.integers(0, 1 << 30))
@settings(max_examples=40)
def test_merging_is_the_same(values, weight, scale):
    on_merge(values, weight, scale)


SIZES = [1, 2, 64, 65, 4096, 4097, 8191, (1 << 15) + 1]
SHAPES = ["normal", "tiny", "huge", "equal", "zero", "up", "down", "sparse"]


@pytest.mark.extra(name="kernels")
@pytest.mark.parametrize(("size", "shape"), [(SIZES[i], SHAPES[(i + by) % 8]) for i in range(8) for by in (0, 3)])
def test_adversarial_sizes_and_values_are_the_same(size, shape):
    ramp = np.arange(size, dtype=np.float32)
    values = {
        "normal": random(1, size), "tiny": random(2, size, 1e-42), "huge": random(3, size, 1e37),
        "equal": np.full(size, -2.5, np.float32), "zero": np.zeros(size, np.float32), "up": ramp, "down": -ramp[::-1],
        "sparse": np.where(ramp % 97 == 0, random(4, size), np.float32(0)),
    }[shape]  # fmt: skip
    values = np.ascontiguousarray(values)
    for chunk, topk in ((4096, 64), (4096, 4096), (size, 1), (size, size), (7, 3)):
        on_largest(values, chunk, topk)
    for top in (7, 127):
        for block in (1, 128, size):
            on_levels(values, top, block)
    on_two_bits(values, 1 << 20, True)
    on_sums(values, values[::-1].copy(), 0.95)
    for scale in (1 << 30, 123_456_789, 0):
        on_merge(values, 1 << 20, scale)
    on_symbols(symbols_of(values, 127), 255)
    on_symbols(symbols_of(values, 1), 4)
    on_contexts(symbols_of(values, 1))
    on_bytes(symbols_of(values, 127))
    for width in (1 << 33, 777, 64):
        on_support(chunks.largest(values, 4096, 64), width, size, 4096, 64, width)


def test_every_kernel_is_compared():
    """A kernel without a comparison in this file fails here."""
    loops = {name for name in kernels.CODECS.names() if kernels.CODECS.loop(name)}
    if not loops:
        pytest.skip("the extra `fast` is not installed: no numba")
    assert loops == set(kernels.CODECS.names())
    text = Path(__file__).read_text()
    assert [name for name in loops if f'agree("{name}"' not in text and f'on_decoding("{name}"' not in text] == []


def test_a_product_and_a_sum_are_rounded_twice():
    """Fused, 0.1f * 10 - 1 is not zero: the twin's result tells the two apart, so a fused loop would differ."""
    values, state = np.full(64, -1.0, np.float32), np.full(64, 10.0, np.float32)
    total, _ = kernels.CODECS.twin("accumulate")(values, state, np.float32(0.1))
    fused = np.float32(float(np.float32(0.1)) * 10.0 - 1.0)
    assert (total == 0).all()
    assert fused != 0
    agree("accumulate", values, state, np.float32(0.1))


@pytest.mark.extra(name="kernels")
@pytest.mark.timeout(1200)
def test_no_loop_holds_a_fused_instruction():
    """In a process of its own: code that was read from a cache cannot be looked into."""
    if kernels.CODECS.loop("add") is None:
        pytest.skip("the extra `fast` is not installed: no numba")
    here = str(Path(__file__).parent)
    run(f"import sys; sys.path.insert(0, {here!r}); import test_compress_kernels as t; t.look_for_fused()")


def look_for_fused() -> None:
    test_adversarial_sizes_and_values_are_the_same(65, "normal")
    for name in kernels.CODECS.names():
        code = "".join(kernels.CODECS.loop(name).inspect_asm().values())
        assert "ret" in code, name
        assert not re.search(r"\bv?fn?m(add|sub)", code), name


def run(code: str, **environment: str) -> str:
    # A process that compiles takes twenty seconds of a processor, which others may need as well.
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=1000)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_compress_does_not_import_numba():
    code = "import sys; import farflung.compress.registry, farflung.compress.merge; print('numba' in sys.modules)"
    assert run(code) == "False"


WORK = """
import sys, numpy as np
from farflung.compress import kernels
{before}
from farflung.compress.chunks import largest
chosen = largest(np.arange(64, dtype=np.float32), 8, 2)
print(chosen.sum(), kernels.CODECS.mode != "numpy" and bool(kernels.CODECS.loops))
"""


def test_without_numba_the_twins_run():
    hidden = "sys.modules['numba'] = None; kernels.CODECS.settled = 'numba'"
    assert run(WORK.format(before=hidden)) == "552 False"


def test_in_numpy_mode_nothing_is_compiled():
    assert run(WORK.format(before="kernels.use('numpy'); kernels.PAYS = 0")) == "552 False"


@pytest.mark.extra(name="kernels")
def test_in_auto_mode_compiling_waits_until_it_pays():
    assert run(WORK.format(before="")) == "552 False"
    assert run(WORK.format(before="kernels.PAYS = 1")) == "552 True"


@pytest.mark.whole
def test_compiled_code_is_kept_only_where_nobody_else_may_write(tmp_path):
    for mode, kept in ((0o700, True), (0o770, False)):
        folder = tmp_path / oct(mode)
        folder.mkdir()
        folder.chmod(mode)
        assert run(WORK.format(before=f"kernels.use('numba', {str(folder)!r})")) == "552 True"
        assert any(folder.rglob("*.nbi")) is kept


def test_an_unknown_mode_is_refused():
    with pytest.raises(UsageError, match="FF-COMP-037"):
        kernels.use("fast")


def test_asking_for_what_is_not_installed_is_refused(monkeypatch):
    monkeypatch.setattr(kernels, "installed", lambda: False)
    with pytest.raises(UsageError, match="FF-COMP-038"):
        kernels.use("numba")


def test_a_process_of_a_job_decides_before_its_first_round_and_never_in_the_middle_of_one():
    cache = kernels._settings.cache
    try:
        kernels.settle(kernels.WORTH - 1)
        kernels.CODECS.spent = 100 * kernels.PAYS
        assert kernels.CODECS.ready("accumulate", 1 << 20) is None
        kernels.settle(kernels.WORTH)
        assert kernels.CODECS.mode == ("numba" if kernels.installed() else "numpy")
        kernels.use("numpy")
        kernels.settle(kernels.WORTH)
        assert kernels.CODECS.mode == "numpy"  # what somebody asked for stays
    finally:
        kernels.use("auto", cache)
