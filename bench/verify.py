"""What a dispute costs: canonical arithmetic, the same bits on every machine, against torch's own kernels.

    python bench/verify.py [--quick] [--cases PREFIX ...] [--out FILE]

Seconds are the processor's (process_time), one thread on either side, so that a busy machine changes little; each pair
is measured in turns, and the ratio of the medians is told. Canonical loops are compiled where numba is installed
(compiling is a case of its own); the NumPy forms, which do without, are beside them.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import torch
from reporting import Row, load, show, told

from farflung.compress.kernels import installed, use
from farflung.verify.canon import kernels

Run = Callable[[], object]


def draw(*shape: int) -> np.ndarray:
    """Numbers as activations have them."""
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


def seconds(run: Run) -> float:
    """Of the processor, of one call among as many as take a twentieth of one."""
    count, spent = 0, 0.0
    gc.collect()
    before = time.process_time()
    while spent < 0.05:
        run()
        count, spent = count + 1, time.process_time() - before
    return spent / count


def ratio(ours: Run, theirs: Run, quick: bool) -> float:
    """How many times as long ours takes, both warm, in turns."""
    ours(), theirs()
    pairs = [(seconds(ours), seconds(theirs)) for _ in range(3 if quick else 9)]
    return statistics.median(a for a, _ in pairs) / statistics.median(b for _, b in pairs)


def compiling(quick: bool) -> Iterator[Row]:
    """The first call of every loop, numba's import included."""
    if not installed():
        return
    before, square = time.process_time(), draw(8, 8)
    use("numba")
    kernels.matmul(square[None], square[None])
    kernels.tree_sum(square)
    kernels.put_add(square, np.arange(8), 8)
    for function in kernels.FUNCTIONS.values():
        function(square[0])
    yield told("compiling", time.process_time() - before, "s", "every loop once, with the import of numba")


def matmul(quick: bool) -> Iterator[Row]:
    """Square matrices."""
    for side in (256,) if quick else (128, 256, 512):
        left, right = draw(1, side, side), draw(1, side, side)
        native = partial(torch.mm, torch.from_numpy(left[0]), torch.from_numpy(right[0]))
        yield from forms("matmul", (left, right), native, quick, f"torch.mm, {side} x {side}")


def functions(quick: bool) -> Iterator[Row]:
    """Functions of one value, and sums of rows."""
    values = np.abs(draw(1 << 16))  # torch.log takes another way for what has no logarithm
    tensor, rows = torch.from_numpy(values), values.reshape(-1, 256)
    for name in kernels.FUNCTIONS:
        native = partial(getattr(torch, name), tensor)
        yield from forms(name, (values,), native, quick, f"torch.{name}, {values.size} values")
    native = partial(torch.sum, torch.from_numpy(rows), -1)
    yield from forms(
        "tree_sum", (rows,), native, quick, f"torch.sum, {rows.shape[0]} rows of {rows.shape[1]}"
    )


def forms(name: str, args: tuple[np.ndarray, ...], native: Run, quick: bool, against: str) -> Iterator[Row]:
    """Both forms of a kernel."""
    for form, run in (("compiled", kernels.SHELF.loop(name)), ("NumPy", kernels.SHELF.twin(name))):
        if run is not None:
            value = ratio(partial(run, *args), native, quick)
            side = f" {args[0].shape[-1]}" if name == "matmul" else ""
            yield told(f"{name}{side}, {form}", value, "x", f"processor time of {against}")


CASES: Final[dict[str, Callable[[bool], Iterator[Row]]]] = {
    "compiling": compiling,
    "matmul": matmul,
    "functions": functions,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one size, three turns: less than a minute")
    parser.add_argument("--cases", nargs="*", metavar="PREFIX", help=f"only these of: {' '.join(CASES)}")
    parser.add_argument("--out", type=Path, help="a results file to add to")
    asked = parser.parse_args()
    prefixes, before = tuple(asked.cases or ("",)), load()
    if unknown := [one for one in prefixes if not any(name.startswith(one) for name in CASES)]:
        parser.error(f"no case {unknown[0]!r}; there are: {', '.join(CASES)}")
    torch.set_num_threads(1)
    for name, rows in CASES.items():
        if name.startswith(prefixes):
            for row in rows(asked.quick):
                show("verify", row, before, asked.out)


if __name__ == "__main__":
    main()
