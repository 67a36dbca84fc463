"""Real vectors to compress: what peers of the default job want to say after some rounds of training.

Four peers train the default GPT (job.presets) as `in_process` does; recorded is what the codec is given: the
change of the round and what was not sent before. The same seed gives the same vectors on one class of machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from in_process import InProcessRun

from farflung.core.tensor_layout import Float32, TensorLayout
from farflung.job.io.job_files import read_dataset
from farflung.job.job_loader import load
from farflung.job.spec import JobSpec
from farflung.train import round_work

PEERS = 4
FLAGS = {"sync.method": "sparse_loco", "sync.topk": "64", "sync.chunk": "4096", "sync.value_bits": "2"}
INNER = {  # inner optimizers whose changes differ: Muon's are nearly orthogonal, AdamW's lie on some rows and columns
    "AdamW": {"optimizer.name": "adamw", "optimizer.lr": "0.003"},
    "Muon": {"optimizer.name": "muon", "optimizer.lr": "0.01"},
}


def job(rounds: int, inner: str, seed: int = 1) -> JobSpec:
    """The default job with so many rounds and an optimizer of INNER, sending 64 of 4096."""
    return load(None, flags=FLAGS | INNER[inner] | {"rounds": str(rounds), "seed": str(seed)}).spec


def record(spec: JobSpec, rounds: Sequence[int], peers: int = PEERS) -> Iterator[tuple[int, TensorLayout, Float32]]:
    """Of each of `rounds` (ascending): its number, the layout, and what peer 0 wants to send, shape (layout.size,)."""
    torch.set_num_threads(1)
    net = InProcessRun.of(spec, read_dataset(spec.data, spec.model, Path()), peers)
    layout, decay = net.job.model.layout, np.float32(spec.sync.error_decay)
    for round in range(max(rounds) + 1):
        if round in rounds:
            held = net.inner[0]
            made = round_work.trained(net.job, net.public, held, net.job.batches(round, 0), lambda: None)
            change = made.end - net.public.params
            yield round, layout, change if held.residual is None else decay * held.residual + change
        if round < max(rounds):
            net.round()
