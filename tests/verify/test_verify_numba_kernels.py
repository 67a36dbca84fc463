"""The compiled loops of canonical arithmetic and their NumPy twins give the same bits, on every kind of processor."""

import math
import re
from pathlib import Path

import numpy as np
import pytest
from blake3 import blake3
from canon_process import said
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.compress import kernels
from farflung.verify.canon import tensor_kernels

HOSTILE = np.array(
    [0.0, -0.0, 1.0, math.nan, math.inf, -math.inf, 1e-45, -1e-40, 1.1754944e-38, 3.4e38, -3e38], np.float32
)
SETS = {"skylake-avx512": "avx512f avx512cd avx512bw avx512dq avx512vl", "haswell": "avx2 fma bmi2", "generic": ""}


def floats(seed: int, shape) -> np.ndarray:
    """Ordinary numbers of one drawn size, of which a drawn share is hostile."""
    draw = np.random.default_rng(seed)
    ordinary = draw.standard_normal(shape) * 2.0 ** draw.integers(-70, 60)
    hostile = draw.random(shape) < draw.choice([0.0, 0.01, 0.3])
    return np.where(hostile, draw.choice(HOSTILE, shape), ordinary).astype(np.float32)


def bits(array: np.ndarray) -> bytes:
    """What is compared: a NaN's payload is nobody's."""
    return np.where(np.isnan(array), np.float32(math.nan), array).tobytes()


def agree(name: str, *args) -> None:
    loop = tensor_kernels.registry(name).loop(name)
    if loop is None:
        pytest.skip("the extra `fast` is not installed: no numba")
    with np.errstate(all="ignore"):
        there = tensor_kernels.registry(name).twin(name)(*args)
    here = loop(*args)
    assert (here.dtype, here.shape) == (there.dtype, there.shape)
    assert bits(here) == bits(there), name


seeds = st.integers(0, 1 << 32)


@pytest.mark.slow
@given(seeds, st.integers(1, 3), st.integers(1, 9), st.integers(1, 140), st.integers(1, 40))
@settings(max_examples=30)
def test_matrices_are_multiplied_alike(seed, batch, rows, inner, columns):
    agree("matmul", floats(seed, (batch, rows, inner)), floats(seed + 1, (batch, inner, columns)))


@given(seeds, st.integers(1, 9), st.integers(1, 300))
@settings(max_examples=30)
def test_trees_are_summed_alike(seed, rows, count):
    agree("tree_sum", floats(seed, (rows, count)))


@given(seeds, st.integers(1, 40), st.integers(1, 20), st.integers(1, 9))
@settings(max_examples=30)
def test_rows_are_added_alike(seed, count, width, height):
    index = np.random.default_rng(seed).integers(-2, height + 2, count)
    index[: count // 9] = (1 << 63) - 1
    agree("put_add", floats(seed, (count, width)), index, height)


@pytest.mark.extra(name="kernels")
@pytest.mark.parametrize("name", ["exp", "log", "erf", "tanh"])
def test_functions_have_the_same_values(name):
    """Everywhere: hostile values, each exponent, and where a function changes its series or its sign."""
    around = np.array([0.5, 1.0, 2**0.5, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 20.0, 88.72284, -103.97, 0.34657], np.float32)
    near = [around.view(np.int32) + step for step in range(-3, 4)]
    sizes = (np.arange(0, 1 << 31, 1 << 15, dtype=np.uint32) + np.uint32(12345)).view(np.float32)
    values = np.concatenate([HOSTILE, np.concatenate(near).view(np.float32), sizes, floats(7, 5000)])
    agree(name, np.concatenate([values, -values]))


def test_every_kernel_is_compared():
    """A kernel without a comparison in this file fails here."""
    loops = {name for name in names() if tensor_kernels.registry(name).loop(name)}
    if not loops:
        pytest.skip("the extra `fast` is not installed: no numba")
    assert loops == names()
    assert [name for name in loops if f'"{name}"' not in Path(__file__).read_text()] == []


def test_products_are_added_in_order_and_each_is_rounded():
    """Fused, 0.1 * 10 - 1 is not zero; with k descending, 1 + (2^24 - 2^24) is not zero either."""
    left = np.array([[[1.0, 0.1], [1.0, 1.0]]], np.float32)
    assert tensor_kernels.matmul(left, np.array([[[-1.0], [10.0]]], np.float32))[0, 0, 0] == 0.0
    large = np.array([[[1.0, 2.0**24, -(2.0**24)]]], np.float32)
    assert tensor_kernels.matmul(large, np.ones((1, 3, 1), np.float32))[0, 0, 0] == 0.0
    agree("matmul", left, np.array([[[-1.0], [10.0]]], np.float32))
    agree("matmul", large, np.ones((1, 3, 1), np.float32))


def test_what_is_added_to_nothing_is_added_to_plus_zero():
    minus = np.full((1, 1, 1), -0.0, np.float32)
    assert not np.signbit(tensor_kernels.matmul(minus, np.ones((1, 1, 1), np.float32))).any()
    assert not np.signbit(tensor_kernels.put_add(minus[0], np.array([0]), 2)).any()
    assert np.signbit(tensor_kernels.tree_sum(minus[0])).all(), "one value needs no padding"
    assert not np.signbit(tensor_kernels.tree_sum(np.full((1, 3), -0.0, np.float32))).any()


def names() -> set[str]:
    return {*tensor_kernels.KERNELS.names(), *tensor_kernels.PRODUCTS.names()}


def compiled(cpu: str = "", features: str = "") -> None:
    """numba reads its processor from the environment."""
    from farflung.verify.canon.product_kernel import Product

    tensor_kernels.KERNELS.settled = tensor_kernels.PRODUCTS.settled = "numba"
    tensor_kernels.PRODUCTS.loops = {"matmul": Product(cpu, features)}


def work() -> str:
    """A hash over results of every kernel, in the form that this process uses."""
    results = [tensor_kernels.matmul(floats(1, (2, 37, 131)), floats(2, (2, 131, 70)))]
    results.append(tensor_kernels.tree_sum(floats(3, (50, 1000))))
    results += [function(floats(5, 3000)) for function in tensor_kernels.FUNCTIONS.values()]
    results.append(tensor_kernels.put_add(floats(4, (200, 33)), np.arange(200) * 7 % 12 - 1, 10))
    return blake3(b"".join(map(bits, results))).hexdigest()


def run(code: str, **environment: str) -> str:
    return said(__name__, code, **environment)


COMPILED = """
t.compiled(*{!r})
print(t.work())
assert {{*t.tensor_kernels.KERNELS.loops, *t.tensor_kernels.PRODUCTS.loops}} == t.names()
"""


@pytest.mark.extra(name="kernels")
@pytest.mark.parametrize("processor", [*SETS, ""])
def test_other_processors_give_the_same_bits(processor):
    if tensor_kernels.PRODUCTS.loop("matmul") is None:
        pytest.skip("the extra `fast` is not installed: no numba")
    info = Path("/proc/cpuinfo")
    if not set(SETS.get(processor, "").split()) <= set((info.read_text() if info.exists() else "").split()):
        pytest.skip(f"this processor cannot run code for {processor}")
    features = ",".join(f"+{each}" for each in SETS.get(processor, "").split())
    target = {"NUMBA_CPU_NAME": processor, "NUMBA_CPU_FEATURES": features} if processor else {}
    with np.errstate(all="ignore"):
        assert run(COMPILED.format((processor, features) if processor else ()), **target) == work()


@pytest.mark.extra(name="kernels")
def test_no_loop_holds_a_fused_instruction():
    """In a process of its own: what other tests compiled may have come from a cache."""
    if tensor_kernels.PRODUCTS.loop("matmul") is None:
        pytest.skip("the extra `fast` is not installed: no numba")
    run("t.look_for_fused()")


def look_for_fused() -> None:
    compiled()
    work()
    for name in names():  # `loop` is None for one that did not compile
        code = "".join(tensor_kernels.registry(name).loop(name).inspect_asm().values())
        assert "ret" in code, name
        assert not re.search(r"\bv?fn?m(add|sub)", code), name


def test_importing_the_kernels_does_not_import_numba():
    assert run("print('numba' in sys.modules)") == "False"


SHAPES = ((1, 1, 1, 1), (2, 4, 3, 16), (1, 5, 7, 17), (3, 13, 1, 33), (1, 8, 0, 16))  # whole tiles, and others


def test_the_loop_of_products_is_made_without_numba_and_fits_matrices_of_every_shape():
    """In a process that cannot import numba: each node compiles this loop for one step."""
    pytest.importorskip("llvmlite")
    with np.errstate(all="ignore"):
        twin = product(tensor_kernels.PRODUCTS.twin("matmul"))
    code = "sys.modules['numba'] = None; t.compiled(); print(t.product(t.tensor_kernels.PRODUCTS.loop('matmul')))"
    assert run(code) == twin


def product(form) -> str:
    """A hash of the products that one form gives: a loop that fails has none."""
    made = [form(floats(1, (n, rows, inner)), floats(2, (n, inner, columns))) for n, rows, inner, columns in SHAPES]
    return blake3(b"".join(map(bits, made))).hexdigest()


@pytest.mark.parametrize(("products", "is_compiled"), [(1_000_000, False), (2_700_000_000, True)])
def test_one_step_of_the_default_job_compiles_products_and_a_small_one_nothing(products, is_compiled, monkeypatch):
    """From the first product on, and nothing else: a node tries one step, and the other loops would cost it seconds."""
    loop = tensor_kernels.matmul.__wrapped__
    loaded = {"matmul": lambda *args: loop(*args) if is_compiled else pytest.fail("it does not pay")}
    monkeypatch.setattr(tensor_kernels.PRODUCTS, "settled", "auto")
    monkeypatch.setattr(tensor_kernels.PRODUCTS, "spent", 0)
    monkeypatch.setattr(tensor_kernels.PRODUCTS, "loops", None)
    called = []
    monkeypatch.setattr(kernels, "_load", lambda module, cache: called.append(module) or loaded)
    before = tensor_kernels.KERNELS.spent
    tensor_kernels.foresee(products)
    tensor_kernels.matmul(np.ones((1, 2, 2), np.float32), np.ones((1, 2, 2), np.float32))
    assert (called, tensor_kernels.KERNELS.spent) == ([tensor_kernels.PRODUCTS.module] * is_compiled, before)
