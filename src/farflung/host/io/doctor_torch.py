"""Tries PyTorch in a separate process: a broken one must not end the check, and a slow one must not delay it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import msgspec

from farflung.host import exit_reason
from farflung.host.io.torch_setup import nvidia_driver
from farflung.host.machine_readings import MissingReading, TorchReading
from farflung.host.worker_limits import scrubbed

# The interpreter's options are those of a worker: no user site, no script folder. Products of 12-bit numbers and
# signs, 96 of them summed, are whole numbers below 2^24: float32 holds them exactly in any order of summation, and
# TF32 or bfloat16 does not. NumPy computes the same in 64-bit integers.
CODE: Final = """
import json, time
start = time.perf_counter()
import torch
seconds = time.perf_counter() - start
import numpy as np
n = 96
values = (np.arange(n * n, dtype=np.int64) * 7919 % 4096).reshape(n, n)
signs = (np.arange(n * n, dtype=np.int64) * 10473 // 7 % 3 - 1).reshape(n, n)
a, b = (torch.from_numpy(x.astype(np.float32)) for x in (values, signs))
exact = all(
    (x @ y).numpy().tobytes() == whole.astype(np.float32).tobytes()
    for x, y, whole in ((a, b, values @ signs), (b, a, signs @ values))
)
c = a / 4095
try:
    from farflung.train.backend import registry
    cards = [
        {"kind": kind, "number": number, "name": card.name, "memory": card.memory, "has_bf16": card.has_bf16}
        for kind, number, card in registry.cards()
    ]
except Exception:  # a driver's fault is not PyTorch's
    cards = []
print(json.dumps({
    "version": torch.__version__,
    "load_seconds": seconds,
    "is_exact": exact,
    "is_repeated": (c @ c).numpy().tobytes() == (c @ c).numpy().tobytes(),
    "has_onednn": bool(torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled),
    "threads": torch.get_num_threads(),
    "cards": cards,
}))
"""


def _environment() -> dict[str, str]:
    """A worker's, and PYTHONPATH: the commands themselves load torch as well, and obey it."""
    path = os.environ.get("PYTHONPATH")
    return {**scrubbed(os.environ, Path("/")), **({"PYTHONPATH": path} if path else {})}


def torch(seconds: float) -> TorchReading | MissingReading:
    """What PyTorch is and does here, or why it does not come up within `seconds`."""
    command = [sys.executable, "-s", "-P", "-c", CODE]
    has_path = bool(os.environ.get("PYTHONPATH"))
    try:
        done = subprocess.run(command, env=_environment(), capture_output=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        why = f"PyTorch did not load within {seconds:.0f} s: a slow disk, or busy cores"
        return MissingReading(why, "python -c 'import torch', which takes what it takes; then farflung check")
    if done.returncode == 0:
        try:
            found = msgspec.json.decode(done.stdout.splitlines()[-1], type=TorchReading)
            return msgspec.structs.replace(found, driver=nvidia_driver())
        except (msgspec.DecodeError, IndexError):
            return TorchReading(error="it says something else than its version", has_python_path=has_path)
    words = exit_reason.last_line(done.stderr) if done.returncode > 0 else ""
    return TorchReading(error=words or exit_reason.reason(done.returncode, done.stderr), has_python_path=has_path)
