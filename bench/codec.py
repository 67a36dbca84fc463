"""The codecs: bits a coefficient against the floor and the published formats, and speed on one core.

    python bench/codec.py [--quick] [--out FILE]

Seconds are processor time of this thread's process, the best of some calls, so that other work on the machine counts as
little as it can; ratios are to yardsticks of the same run (a copy of as many bytes, `torch.topk` alone). GB/s are
of the fp32 vector that goes in or comes out. "twins" is the same work by NumPy alone.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import recorded
import torch
from reporting import Row, at_least, at_most, load, show, told

from farflung.compress import chunks, context_model, kernels, payload_body, symbol_stream, values
from farflung.compress.merge import WeightedUpdate, merge
from farflung.compress.payload import HEADER_BYTES, BodyReader, ContributionKey
from farflung.compress.registry import Codec, make
from farflung.core.ids import ZERO_HASH, PeerId
from farflung.core.tensor_layout import Float32, TensorLayout

ABOUT = ContributionKey(0, 0, ZERO_HASH, PeerId(bytes(32)))
TOPK, CHUNK = 64, 4096
DEMO_BYTES, DEMO_CHUNK, DEMO_TOPK = 12, 64, 32  # int64 index and fp32 value; its defaults
SQUARE = (2048, 2048)
MATRIX = TensorLayout.of({"w": SQUARE})
PART = TensorLayout.of({"w": (512, 2048)})  # for NumPy alone


def codec(kind: str, bits: int, *, topk: int = TOPK, transform: str = "raw") -> Codec:
    """A codec, with the sparse default's other parameters."""
    return make(kind, value_bits=bits, topk=topk, chunk=CHUNK, transform=transform, rank=4, error_decay=0.95)


class Case(NamedTuple):
    """One codec whose speed is measured."""

    name: str
    codec: Codec


CASES = (
    Case("top 64 of 4096, 2 bits", codec("topk", 2)),
    Case("dense, 8 bits", codec("dense", 8)),
    Case("dense, 4 bits", codec("dense", 4)),
    Case("dense, 2 bits", codec("dense", 2)),
)


def seconds(call: Callable[[], object], times: int) -> float:
    """Processor seconds of the fastest of some calls."""
    best = math.inf
    for _ in range(times):
        began = time.process_time()
        call()
        best = min(best, time.process_time() - began)
    return best


def normal(layout: TensorLayout, seed: int = 0) -> Float32:
    """Independent values, of the size of a change of weights."""
    return (1e-3 * np.random.default_rng(seed).standard_normal(layout.size)).astype(np.float32)


class Bits(NamedTuple):
    """Bits a coefficient of one payload: of its index, of its value, and of all of it."""

    index: float
    value: float
    all_in: float


def bits(one: Codec, layout: TensorLayout, vector: Float32) -> Bits:
    """What a payload's parts take, found by reading it."""
    _, payload = one.encode(None, vector, layout, ABOUT)
    body, form = memoryview(payload)[HEADER_BYTES:], one.form
    cursor, count, value, others = BodyReader(body), 0, 0, 0
    for slabs in chunks.plan(layout, form.chunk, form.topk).sections():
        sent = payload_body.read(cursor, slabs, form)
        coded, rest = symbol_stream.split(np.concatenate([each.symbols for each in sent]), form.value_bits)
        raw = symbol_stream.raw_bytes(coded.size, symbol_stream.symbol_bits(form.value_bits))
        stream = 4 + len(symbol_stream.encode(coded, min(values.alphabet(form.value_bits), 256)))
        if form.value_bits == context_model.BITS:
            stream = min(stream, 4 + len(context_model.encode(coded)))
        levels = sum(len(each.levels) for each in sent)
        value += levels + min(stream, raw) + len(rest)
        others += 1
        count += coded.size
    index = len(body) - value - others
    return Bits(8 * index / count, 8 * value / count, 8 * len(payload) / count)


def sizes(quick: bool) -> Iterator[Row]:
    """Bits a coefficient, uniform and recorded."""
    floor = (math.lgamma(CHUNK + 1) - math.lgamma(TOPK + 1) - math.lgamma(CHUNK - TOPK + 1)) / math.log(2) / TOPK
    kernels.use("numba" if kernels.installed() else "numpy")
    uniform = bits(codec("topk", 2), MATRIX, normal(MATRIX))
    yield at_most("index, uniform support", uniform.index, "bits", 7.6, f"floor, computed: {floor:.2f} bits")
    yield told("coefficient all in, uniform support", uniform.all_in, "bits", "published 14; DeMo's reference 96")
    for inner in recorded.INNER:
        yield from recorded_sizes(inner, quick)


def recorded_sizes(inner: str, quick: bool) -> Iterator[Row]:
    """Bits a coefficient of what peers want to send; the goals are for AdamW's changes, of which papers tell theirs."""
    rounds = (1, 2) if quick else (5, 10)
    spec = recorded.job(rounds[-1] + 1, inner)
    found = [(layout, vector) for _, layout, vector in recorded.record(spec, rounds, 2 if quick else recorded.PEERS)]
    where = f"default GPT, {inner}, rounds {', '.join(map(str, rounds))}, change and residual of one peer"
    published = f"{where}; published 14, DeMo's reference 96"
    for transform in ("raw", "dct", "auto"):
        one = codec("topk", 2, transform=transform)
        mean = Bits(*np.mean([bits(one, layout, vector) for layout, vector in found], axis=0).tolist())
        case = f"recorded, {inner}, {transform}"
        if (inner, transform) == ("AdamW", "auto"):
            yield at_most(f"index, {case}", mean.index, "bits", 6.9, where)
            yield at_most(f"coefficient all in, {case}", mean.all_in, "bits", 8.5, published)
        else:
            yield told(f"index, {case}", mean.index, "bits", where)
            yield told(f"coefficient all in, {case}", mean.all_in, "bits", where)
        yield told(f"value, {case}", mean.value, "bits", f"{where}; 2 bits plainly")


def demo_reference(shape: tuple[int, ...]) -> int:
    """Bytes of DeMo's reference format for one tensor: blocks whose sides are the largest divisors up to 64."""
    sides = [max(d for d in range(1, DEMO_CHUNK + 1) if side % d == 0) for side in shape]
    block = math.prod(sides)
    return DEMO_BYTES * min(DEMO_TOPK, block) * (math.prod(shape) // block)


def shapes() -> Iterator[Row]:
    """The drop-in (32 of 4096 coefficients of the transform, exact values) against the reference's bytes."""
    drop_in = codec("topk", 32, topk=DEMO_TOPK, transform="dct")
    cases: tuple[tuple[tuple[int, ...], int, float], ...] = (
        (SQUARE, 1, 2.3), ((50257, 64), 1, 2.3), ((1009, 64), 1, 30.0), ((10007,), 1, 30.0), ((768,), 24, 30.0),
        ((256, 128, 3, 3), 1, 2.3),
    )  # fmt: skip
    for shape, copies, goal in cases:
        layout = TensorLayout.of({f"w{n:02}": shape for n in range(copies)})
        _, payload = drop_in.encode(None, normal(layout), layout, ABOUT)
        nbytes = len(payload) - HEADER_BYTES  # one header a payload, whatever its tensors
        flat = shape if len(shape) <= 2 else (shape[0], math.prod(shape[1:]))
        reference = copies * demo_reference(flat)
        against = f"DeMo's format, computed: {reference} B; ours {nbytes} B with fp32 values"
        if flat != shape:
            against += "; the reference refuses four sides, so flattened for it"
        case = " x ".join(map(str, shape)) + (f", {copies} tensors" if copies > 1 else "")
        yield at_least(f"fewer bytes, {case}", reference / nbytes, "ratio", goal, against)
    for bits in (4, 2):
        few = codec("topk", bits, topk=DEMO_TOPK, transform="dct")
        _, payload = few.encode(None, normal(MATRIX), MATRIX, ABOUT)
        reference, nbytes = demo_reference(SQUARE), len(payload) - HEADER_BYTES
        case = f"fewer bytes with values of {bits} bits, {SQUARE[0]} x {SQUARE[1]}"
        against = f"DeMo's format, computed: {reference} B; ours {nbytes} B"
        yield at_least(case, reference / nbytes, "ratio", 8.0, against)


def speeds(quick: bool) -> Iterator[Row]:
    """GB/s of one core, compiled and by the twins, beside a copy and torch's choice alone."""
    times = 3 if quick else 9
    vector, state = normal(MATRIX), normal(MATRIX, 1)
    gigabytes = vector.nbytes / 1e9
    target = np.empty_like(vector)
    copy = gigabytes / seconds(lambda: np.copyto(target, vector), times)
    yield told("copy", copy, "GB/s", "yardstick")
    torch.set_num_threads(1)
    rows = torch.from_numpy(vector).view(-1, CHUNK)
    choice = gigabytes / seconds(lambda: rows.abs().topk(TOPK, dim=1), times)
    yield told("torch.topk alone", choice, "GB/s", "yardstick: absolute values and their 64 largest of 4096")
    loops: dict[str, float] = {}
    if kernels.installed():
        kernels.use("numba")
        for case in CASES:
            began = time.process_time()
            _round_trip(case.codec, MATRIX, vector, state)
            first = time.process_time() - began
            took = measured(case.codec, MATRIX, vector, state, times)
            loops[case.name] = sum(took)
            yield from _speed(case, gigabytes / took[0], gigabytes / took[1], copy, choice)
            if case is CASES[0]:
                compiling = first - sum(took)
                yield told(f"compiling, {case.name}", compiling, "s", "first calls of a process, once")
        yield told(
            "merge", 4 * gigabytes / merging(MATRIX, times), "GB/s", f"four peers' vectors; a copy: {copy:.1f} GB/s"
        )
    kernels.use("numpy")
    some, part = normal(PART), normal(PART, 1)
    share = some.nbytes / 1e9
    for case in CASES:
        took = measured(case.codec, PART, some, part, 1 if quick else 3)
        for name, value in zip(("encode", "decode"), took, strict=True):
            yield told(f"{name}, {case.name}, twins", share / value, "GB/s", "NumPy alone; the same bytes")
        if loops and case is CASES[0]:
            saved = sum(took) / PART.size - loops[case.name] / MATRIX.size
            against = f"FARFLUNG_KERNELS=auto waits for {kernels.PAYS / 1e9:g} s of NumPy's time, reckoned"
            yield told("compiling pays after", compiling / saved, "elements sent and received", against)
    yield told("merge, twins", 4 * share / merging(PART, 1 if quick else 3), "GB/s", "NumPy alone; the same bits")
    kernels.use("auto")


def measured(one: Codec, layout: TensorLayout, vector: Float32, state: Float32, times: int) -> tuple[float, float]:
    """Seconds of an encoding and of a decoding."""
    _, payload = one.encode(state, vector, layout, ABOUT)
    encoding = seconds(lambda: one.encode(state, vector, layout, ABOUT), times)
    return encoding, seconds(lambda: one.decode(payload, layout, ABOUT), times)


def merging(layout: TensorLayout, times: int) -> float:
    """Seconds of a merge of four peers."""
    parts = [WeightedUpdate(PeerId(bytes([n]) * 32), 1, normal(layout, n)) for n in range(4)]
    merge(layout, parts)
    return seconds(lambda: merge(layout, parts), times)


def _round_trip(one: Codec, layout: TensorLayout, vector: Float32, state: Float32) -> None:
    one.decode(one.encode(state, vector, layout, ABOUT)[1], layout, ABOUT)


def _speed(case: Case, encode: float, decode: float, copy: float, choice: float) -> Iterator[Row]:
    against = f"a copy: {copy:.1f} GB/s"
    yield at_least(f"encode, {case.name}", encode, "GB/s", 0.8, against)
    yield at_least(f"decode, {case.name}", decode, "GB/s", 2.0, against)
    if case.codec.form.kind == "topk":
        against = f"torch.topk alone: {choice:.2f} GB/s"
        yield at_least(f"encode, {case.name}, against torch.topk", encode / choice, "ratio", 2.0, against)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="less training, fewer calls: at most 60 s")
    parser.add_argument("--only", choices=("speed", "bits", "shapes"))
    parser.add_argument("--out", type=Path, help="a results file to add to")
    asked = parser.parse_args()
    before = load()
    if not kernels.installed():
        sys.stderr.write("numba is not installed: the twins alone\n")
    tables = {"speed": speeds(asked.quick), "bits": sizes(asked.quick), "shapes": shapes()}
    for name, rows in tables.items():
        for row in rows if asked.only in (None, name) else ():
            show("codec", row, before, asked.out)


if __name__ == "__main__":
    main()
