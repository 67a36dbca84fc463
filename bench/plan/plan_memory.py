"""Cases of bench/plan.py: what a plan says of memory, against tensors that are kept and processes that run.

Activations: bytes that autograd holds after the forward pass of a real step, each storage once, parameters and batch
left out (saved_tensors_hooks), against the trace on fake tensors; a module that needs numbers is run on a quarter and
on half of its rows first. The closed form stands beside it, where there is one.

Peak: a process of its own makes three steps of AdamW (foreach = False) on one thread. It warms its libraries up, notes
what is resident (VmRSS), clears the high-water mark (/proc/self/clear_refs) and tells by how much the mark then rose.
`mmap` is with MALLOC_MMAP_THRESHOLD_=65536, so that a tensor that is freed leaves the process; `glibc` is as Linux has
it, where the threshold grows up to 32 MiB and the heap keeps what was freed below its top. What warming up has left in
the heap is handed back first (malloc_trim): steps would use it again, and the mark would rise by less than they take.
There the trace's peak is multiplied by what `farflung plan` measures for that: how much more than its tensors steps of
half of the rows raise a process by (train.gauge.process_heap). Two runs of the same steps differ by up to a
seventh, so both are medians of five processes. What `mmap` costs is told in processor seconds of a step: each
large tensor's pages are made anew.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import torch

sys.path.insert(1, str(Path(__file__).parents[1]))  # when it is its own process
from plan_modules import KINDS, VOCABULARY
from reporting import Row, at_most, told
from torch import Tensor

from farflung.advice.memory.activations import AttentionMemory, MicroBatch, kept, logits
from farflung.advice.memory.transformer import Transformer
from farflung.plan.step_trace import Recomputation, StepTrace
from farflung.train.gauge.process_heap import risen
from farflung.train.gauge.step_memory import Make, StepSubject, measure, observed

ROWS: Final = {"gpt2": 8, "llama": 12, "vit": 64, "resnet": 128, "t5": 12, "moe": 8}
FEW: Final = 4
QUICK_PEAKS: Final = ("llama",)
STEPS: Final = 3
RUNS: Final = 5
THRESHOLD: Final = "65536"
CLOSED: Final = {  # those that the closed form knows, and how they are written
    "gpt2": (Transformer(4, 256, 8, VOCABULARY, positions=256), 256, AttentionMemory.EAGER, True),
    "llama": (
        Transformer(
            4, 256, 8, VOCABULARY, key_heads=2, inner=688, is_gated=True, has_biases=False, is_tied=False
        ),
        256,
        AttentionMemory.FUSED,
        False,
    ),
    "moe": (
        Transformer(
            4, 256, 8, VOCABULARY, key_heads=2, inner=344, is_gated=True, has_biases=False, is_tied=False,
            experts=8, chosen=2,
        ),
        256,
        AttentionMemory.FUSED,
        False,
    ),
}  # fmt: skip


def make_of(name: str) -> Make:
    """A step of one module with AdamW, for so many rows."""
    kind = KINDS[name]

    def make(rows: int) -> StepSubject:
        torch.manual_seed(0)
        module, batch = kind.build(), kind.batch(rows)
        optimizer = torch.optim.AdamW(module.parameters(), foreach=False)

        def update() -> None:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        return StepSubject(module, batch, lambda: module(*batch), update)

    return make


def held(subject: StepSubject) -> int:
    """Bytes that autograd's hooks are shown on a real forward pass, by the addresses of storages."""
    own = {t.untyped_storage().data_ptr() for t in (*subject.module.parameters(), *subject.module.buffers())}
    own |= {t.untyped_storage().data_ptr() for t in subject.batch}
    seen: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        key = tensor.untyped_storage().data_ptr()
        if key not in own:
            seen.setdefault(key, tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = subject.loss()
    size = sum(tensor.untyped_storage().nbytes() for tensor in seen.values())
    del loss
    return size


def rows(wanted: Callable[[str], bool], *, is_quick: bool) -> Iterator[Row]:
    """All cases of memory, or those of the modules that are wanted."""
    torch.set_num_threads(1)
    for name, whole in ROWS.items():
        if not wanted(name):
            continue
        count = FEW if is_quick else whole
        found = measure(make_of(name), count, [Recomputation.NONE])
        yield from activations(name, count, found)
        if not is_quick:
            yield from recomputed(name, count)
        if not is_quick or name in QUICK_PEAKS:
            yield from peaks(name, count, found, 1 if is_quick else RUNS)


def activations(name: str, rows: int, found: StepTrace) -> Iterator[Row]:
    """The trace against the hooks, and the closed form against them."""
    seen, said = held(make_of(name)(rows)), found.mode().saved
    how = f"run on {found.ran_rows} rows, extrapolated" if found.ran_rows else "traced without numbers"
    about = f"{rows} rows: {said:,} B said ({how}), {seen:,} B held"
    yield at_most(f"activations, {name}", abs(said / seen - 1), "of held", 0.03, about)
    if name in CLOSED:
        model, context, attention, has_dropout = CLOSED[name]
        load = MicroBatch(rows, context, element=4.0, attention=attention, has_dropout=has_dropout)
        closed = model.layers * kept(load, model).bytes + logits(load, model).bytes
        yield told(f"activations, {name}, closed form", closed / seen - 1, "of held", f"{closed:,.0f} B said")


def recomputed(name: str, rows: int) -> Iterator[Row]:
    """Kept and peak with recomputation: the trace against the storages of a real step."""
    ways = [Recomputation.SELECTIVE, Recomputation.FULL]
    said, seen = measure(make_of(name), rows, ways), observed(make_of(name), rows, ways).traced
    for one, other in zip(said.modes, seen.modes, strict=True):
        worst = max(abs(one.live / other.live - 1), abs(one.peak / other.peak - 1))
        about = f"kept {one.live:,} and {other.live:,} B, peak {one.peak:,} and {other.peak:,} B"
        yield at_most(f"recomputation, {name}, {one.recompute}", worst, "of held", 0.03, about)


def peaks(name: str, rows: int, found: StepTrace, runs: int) -> Iterator[Row]:
    """What resident memory rises by, against the trace's peak, and against that with what the heap was seen to add."""
    said, few = found.peak(), rows // 2
    with ThreadPoolExecutor(2) as pool:
        mapped = pool.submit(process, "train", name, rows, mmap=True)
        whole = [pool.submit(process, "train", name, rows) for _ in range(runs)]
        half = [pool.submit(process, "heap", name, few) for _ in range(runs)]
    seen = mapped.result()["risen"]
    about = f"{rows} rows: {said:,} B said, {seen:,.0f} B risen; malloc: mmap"
    yield at_most(f"peak, {name}", abs(said / seen - 1), "of risen", 0.10, about)
    factor = statistics.median(each.result()["factor"] for each in half)
    risen = statistics.median(each.result()["risen"] for each in whole)
    of = f"of {said:,} B alive" + (f", medians of {runs} processes" if runs > 1 else "")
    yield told(f"heap, {name}", factor, "of alive", f"measured on {few} rows; on {rows} {risen / said:.3f} {of}")
    about = f"{rows} rows: {said:,} B x {factor:.3f} said, {risen:,.0f} B risen; malloc: glibc"
    yield at_most(f"peak, {name}, glibc", abs(said * factor / risen - 1), "of risen", 0.10, about)
    ratio = mapped.result()["seconds"] / statistics.median(each.result()["seconds"] for each in whole)
    yield told(f"step, {name}, mmap", ratio, "of glibc", "processor seconds of the last step of each process")


def process(what: str, name: str, rows: int, *, mmap: bool = False) -> dict[str, float]:
    """What `train`, or `heap`, finds in a process of its own."""
    settings = {"MALLOC_MMAP_THRESHOLD_": THRESHOLD} if mmap else {}
    done = subprocess.run(
        [sys.executable, __file__, what, name, str(rows)],
        env={**os.environ, **settings, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        check=True,
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def status(field: str) -> int:
    """A field of /proc/self/status, in bytes."""
    found = re.search(rf"^{field}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return 1024 * int(found[1])


def train(name: str, rows: int) -> dict[str, float]:
    """By how much three steps raise this process' high-water mark, and how long the last one computed."""
    torch.set_num_threads(1)
    warm = make_of(name)(1)
    for _ in range(2):
        warm.loss().backward()
        warm.update()
    del warm
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    before = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    subject = make_of(name)(rows)
    for _ in range(STEPS):
        begun = time.process_time()
        subject.loss().backward()
        subject.update()
    return {"risen": status("VmHWM") - before, "seconds": time.process_time() - begun}


def heap(name: str, rows: int) -> dict[str, float]:
    """What steps of so many rows hold of a process beside their tensors, as `farflung plan` measures it."""
    torch.set_num_threads(1)
    return {"factor": risen(make_of(name), rows).factor}


if __name__ == "__main__":
    print(json.dumps({"train": train, "heap": heap}[sys.argv[1]](sys.argv[2], int(sys.argv[3]))))
