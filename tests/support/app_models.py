"""A finished run as its folder has it, made in milliseconds: initial weights stand for trained ones.

What a ledger signs is not in it: whoever compares with the ledger needs a real run (`tiny` of conftest).
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from farflung.core import events
from farflung.core.crypto import NS_OBJECT, digest, local_key
from farflung.core.events import AnyEvent
from farflung.core.ids import ZERO_HASH, Hash
from farflung.core.money import MICRO
from farflung.core.tensor_layout import TensorLayout
from farflung.job import dataset
from farflung.job.spec import JobSpec, JobTerms
from farflung.local.jobs import resolve
from farflung.local.network import prepare
from farflung.peers.rundir import folder
from farflung.peers.rundir.folder import RunFolder
from farflung.peers.rundir.inputs import write_resolved
from farflung.train import flat_model, heldout, model_file
from farflung.train.model_file import model_hash
from farflung.train.public_state import PublicState
from farflung.watch.io.event_log import EventLog

TEXT = "".join(f"{n} green bottles hanging on the wall, and {n + 1} more.\n" for n in range(300))
JOB = """
name = "small"
rounds = 3
[model]
layers = 1
width = 16
heads = 2
context = 24
[data]
path = "bottles.txt"
heldout = 0.2
[evaluate]
final_tokens = 600
[network]
hidden = 0
"""
LETTERS = """
from torch import nn
from torch.nn import functional


class Letters(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(256, 256)

    def {name}(self, x_BT):
        return self.table(x_BT)

    def forward(self, x_BT, y_BT):
        return functional.cross_entropy(self.{name}(x_BT).flatten(0, 1), y_BT.flatten())


def build():
    return Letters()
"""


class _Nobody:
    """Hears what is told, and keeps nothing of it."""

    def emit(self, event: AnyEvent, *, durable: bool = False) -> None:
        """Tells of one event."""


def finished_run(runs: Path, name: str, text: str = JOB, *, source: str = "", is_done: bool = True) -> RunFolder:
    """A run of `text` below `runs`; with `source`, of a model of the user's own."""
    (runs / "data").mkdir(parents=True, exist_ok=True)
    (runs / "data" / "bottles.txt").write_text(TEXT)
    if source:
        (runs / "data" / "model.py").write_text(source)
        text = text.replace("[model]", '[model]\nkind = "module"\nmodule = "model.py:build"')
    resolved, identity = resolve.resolve(text, "local", {}, base=runs / "data")
    run = folder.create(runs / name, identity)
    spec = resolved.spec
    write_resolved(run, resolved)
    asyncio.run(prepare.read_inputs(run, spec, runs / "data", _Nobody()))
    code = source.encode()
    built = flat_model.build(spec, code)
    module = digest(NS_OBJECT, code) if code else ZERO_HASH
    layout = TensorLayout.of({t.name: t.shape for t in built.layout.tensors})
    data, party = Hash(digest(NS_OBJECT, b"data")), local_key(1, "requester", 0).public
    terms = JobTerms(spec, data, module, layout, party, Hash(ZERO_HASH))
    state = PublicState(3, flat_model.initial(spec, built))
    if is_done:
        packed = model_file.write(terms, state)
        run.model_file.write_bytes(packed)
        built.put(state.params)
        _write_result(run, built, spec, model_hash(packed).hex())
    assert run._lock is not None
    os.close(run._lock)  # as when the process that made it ended
    return RunFolder(run.root)


def _write_result(run: RunFolder, built: flat_model.FlatModel, spec: JobSpec, named: str) -> None:
    text = dataset.unpack(run.dataset_file.read_bytes()).heldout
    loss = heldout.measure(built, spec.model, spec.batch, text, spec.evaluate.final_tokens).loss
    result = events.RunResultEvent(
        loss=loss, loss_start=5.6, loss_unigram=3.1, bytes_sent=1000,
        bytes_by=events.SentBytesByKind(500, 100, 300, 50, 50),
        bytes_ring_bf16=9000, segments_audited=4, caught=(), paid=1200 * MICRO, slashed=0, refunded=10 * MICRO, sum=0,
        model_hash=named, ledger_root="cd" * 32, seconds=9.0, run=run.name, rounds=3, tokens=1152, reexecuted=0,
    )  # fmt: skip
    log = EventLog(run.events_file)
    log.append(result)
    log.close()
