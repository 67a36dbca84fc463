"""Measures how much a process' resident memory rises during training, beside the tensors that are alive (P2).

glibc keeps freed blocks of up to 32 MiB and cannot always use them again, so a process on a CPU holds 1.1 to 1.8 times
what its tensors take, as its blocks come and go (docs/plan/memory). No rule that was tried predicts it; a few steps on
half of the rows show it. The process must be a fresh one: what was freed before would be used again unseen, and a high-
water mark above that of the steps would hide theirs.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import re
import sys
from pathlib import Path
from typing import Final

from farflung.plan.heap import HeapGrowth, unmeasured
from farflung.plan.step_trace import Recomputation
from farflung.train.gauge.step_memory import Make, measure

STEPS: Final = 3  # the third begins with the heap that the second has left
WARM: Final = 2


def risen(make: Make, rows: int) -> HeapGrowth:
    """What `STEPS` steps of so many rows raise this process by, and what their tensors take.

    Raises RunError FF-PLAN-058 where a process' resident memory cannot be read so, and what the module raises.
    """
    if sys.platform != "linux":
        raise unmeasured(f"this is {sys.platform}, and the way to read it is Linux'")
    _steps(make, 1, WARM)  # libraries load and allocate what they need once
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    with contextlib.suppress(OSError):  # a sandbox may keep it shut
        Path("/proc/self/clear_refs").write_text("5")  # the high-water mark begins anew
    before, mark = _status("VmRSS"), _status("VmHWM")
    _steps(make, rows, STEPS)
    after = _status("VmHWM")
    if after <= mark:
        raise unmeasured("its steps took no more than getting ready did")
    return HeapGrowth(rows, after - before, measure(make, rows, [Recomputation.NONE]).peak())


def _steps(make: Make, rows: int, count: int) -> None:
    subject = make(rows)
    for _ in range(count):
        subject.loss().backward()  # type: ignore[no-untyped-call]
        subject.update()


def _status(field: str) -> int:
    """A field of /proc/self/status, in bytes."""
    found = re.search(rf"^{field}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    if found is None:
        raise unmeasured(f"/proc/self/status has no {field}")
    return 1024 * int(found[1])
