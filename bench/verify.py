"""What is found, what it costs, and what a dispute costs: canonical arithmetic against torch's own kernels.

    python bench/verify.py [--quick] [--cases PREFIX ...] [--out FILE]

Seconds are the processor's (process_time), one thread on either side, so that a busy machine changes little; each pair
is measured in turns, and the ratio of the medians is told. Canonical loops are compiled where numba is installed
(compiling is a case of its own); the NumPy forms, which do without, are beside them.

`detection` plays every way around the work, `honest` repeats honest segments in other environments (verify_detection),
`share` is what audits cost (verify_share).
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import torch
from reporting import Row, at_most, load, show, told

sys.path.insert(1, str(Path(__file__).with_suffix("")))
from verify_detection import detection, honest
from verify_dispute import dispute
from verify_share import share

from farflung.compress.kernels import installed, use
from farflung.core.canon.graph import CanonicalGraph
from farflung.core.tensor_layout import Float32
from farflung.job.io.job_files import read_dataset
from farflung.job.job_loader import load as read_job
from farflung.job.spec import JobSpec
from farflung.train import data_order, flat_model, inner_steps
from farflung.train.inner_state import VECTORS
from farflung.verify.canon import tensor_kernels
from farflung.verify.canon.execute import execute
from farflung.verify.canon.scalars import scalars
from farflung.verify.canon.step_graph import buffers, traced

Run = Callable[[], object]

STEPS: Final[dict[str, dict[str, str]]] = {  # the default job's optimizer, and the usual one
    "muon": {},
    "adamw": {"sync.method": "diloco", "optimizer.name": "adamw", "optimizer.lr": "0.003"},
}


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
    tensor_kernels.matmul(square[None], square[None])
    tensor_kernels.tree_sum(square)
    tensor_kernels.put_add(square, np.arange(8), 8)
    for function in tensor_kernels.FUNCTIONS.values():
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
    for name in tensor_kernels.FUNCTIONS:
        native = partial(getattr(torch, name), tensor)
        yield from forms(name, (values,), native, quick, f"torch.{name}, {values.size} values")
    native = partial(torch.sum, torch.from_numpy(rows), -1)
    yield from forms("tree_sum", (rows,), native, quick, f"torch.sum, {rows.shape[0]} rows of {rows.shape[1]}")


def forms(name: str, args: tuple[np.ndarray, ...], native: Run, quick: bool, against: str) -> Iterator[Row]:
    """Both forms of a kernel."""
    registry = tensor_kernels.registry(name)
    for form, run in (("compiled", registry.loop(name)), ("NumPy", registry.twin(name))):
        if run is not None:
            value = ratio(partial(run, *args), native, quick)
            side = f" {args[0].shape[-1]}" if name == "matmul" else ""
            yield told(f"{name}{side}, {form}", value, "x", f"processor time of {against}")


def step(quick: bool) -> Iterator[Row]:
    """A training step of the default job: forward, gradient, clip and optimizer."""
    for optimizer, flags in STEPS.items():
        spec = read_job(None, flags=flags).spec
        tokens = read_dataset(spec.data, spec.model, Path()).train
        built = flat_model.build(spec, b"")
        start = flat_model.initial(spec, built)
        before = time.process_time()
        graph = traced(built, spec)
        spent = time.process_time() - before
        yield told(f"tracing, {optimizer}", spent, "s", f"once a job; {len(graph.nodes)} operations")
        given = inputs(spec, built, start, data_order.batch(tokens, spec, 0, 0, 0), graph)
        at = inner_steps.single_machine(start)
        native = partial(inner_steps.baseline, built, spec, tokens, at, 1, 1, lambda: None)
        against = f"processor time of the same step by torch, {start.size} parameters"
        for form, mode in (("compiled", "numba"), ("NumPy", "numpy")):
            if form == "NumPy" or installed():
                use(mode)
                value = ratio(partial(execute, graph, given), native, quick)
                row = f"step, {optimizer}, {form}", value, "x"
                yield at_most(*row, 15, against) if mode == "numba" else told(*row, against)


def inputs(
    spec: JobSpec,
    built: flat_model.FlatModel,
    start: Float32,
    batch: tuple[np.ndarray, np.ndarray],
    graph: CanonicalGraph,
) -> dict[str, np.ndarray]:
    """What the graph of the first step takes."""
    params = built.layout.unflatten(start)
    given = {f"params/{name}": value for name, value in params.items()}
    for vector in VECTORS[spec.optimizer.name]:
        given |= {f"{vector}/{name}": np.zeros_like(value) for name, value in params.items()}
    given |= buffers(built) | scalars(spec, 0, 1) | {"x": batch[0], "y": batch[1]}
    return {each.name: given[each.name] for each in graph.inputs}


CASES: Final[dict[str, Callable[[bool], Iterator[Row]]]] = {
    "compiling": compiling,
    "matmul": matmul,
    "functions": functions,
    "step": step,
    "detection": detection,
    "honest": honest,
    "share": share,
    "dispute": dispute,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one size, three turns: less than a minute")
    parser.add_argument("--cases", nargs="*", metavar="PREFIX", help=f"only these of: {' '.join(CASES)}")
    parser.add_argument("--out", type=Path, help="a results file to add to")
    asked = parser.parse_args()
    prefixes, before = tuple(asked.cases or ("",)), load()
    if unknown := [one for one in prefixes if not any(name.startswith(one) for name in CASES)]:
        parser.error(f"no case {unknown[0]!r}; there are: {', '.join(CASES)}")
    torch.set_num_threads(1)
    use("numba" if installed() else "numpy")
    for name, rows in CASES.items():
        if name.startswith(prefixes):
            for row in rows(asked.quick):
                show("verify", row, before, asked.out)


if __name__ == "__main__":
    main()
