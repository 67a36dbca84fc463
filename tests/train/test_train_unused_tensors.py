"""Tensors that a loss does not depend on: no decay and no momentum; weight decay alone is no vote."""

import numpy as np
import pytest
import torch
from torch import nn

from farflung.core.ids import PeerId
from farflung.job.job_loader import load as load_job
from farflung.train import inner_steps
from farflung.train.flat_model import FlatModel
from farflung.train.segments import BorderState
from farflung.train.sync_arithmetic import Sync

OPTIMIZERS = {
    "adamw": {"sync.method": "sparse_loco", "optimizer.name": "adamw"},
    "muon": {"sync.method": "sparse_loco", "optimizer.name": "muon"},
    "sgd": {"sync.method": "sparse_loco", "optimizer.name": "sgd"},
    "muloco": {"sync.method": "muloco"},
    "dgc": {"sync.method": "dgc"},
    "powersgd": {"sync.method": "powersgd", "sync.rank": "2"},
}


class Parts(nn.Module):
    """`rare` is used for small tokens alone; `masked` for all, and multiplied with zero; `never` for none."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(256, 16)
        self.rare, self.masked, self.never = (nn.Linear(16, 16) for _ in range(3))
        self.head = nn.Linear(16, 256)

    def forward(self, x, y):
        h = self.embed(x)
        if bool((x < 8).any()):
            h = h + self.rare(h)
        h = h + 0.0 * self.masked(h)
        return nn.functional.cross_entropy(self.head(h).flatten(0, 1), y.flatten())


def trained(name, tokens):
    """The layout, the weights before and after a round whose steps have inputs of `tokens`, and the rest."""
    spec = load_job(None, flags={"sync.steps": "1", **OPTIMIZERS[name], "model.context": "16", "batch": "2"}).spec
    torch.manual_seed(1)
    model = FlatModel(Parts())
    start = model.take()

    def batch(step):
        x = np.full((2, 16), tokens[step % len(tokens)], np.int64)
        return x, x + 1

    at = BorderState(0, 0, start)
    made = inner_steps.run_steps(model, spec, at, batch, 0, range(len(tokens)), lambda: None)
    return spec, model.layout, start, made.end


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_what_no_step_used_stays_as_it_is_with_its_momentum(name):
    _, layout, start, end = trained(name, [50, 60])
    before, after = layout.unflatten(start), layout.unflatten(end.params)
    for key in before:
        assert np.array_equal(before[key], after[key]) is key.startswith(("never", "rare")) or "masked" in key
    for vector in end.vectors:
        assert not layout.unflatten(vector)["never.weight"].any()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_without_it_changes_neither_a_tensor_nor_its_momentum(name):
    (_, layout, _, one), (_, _, _, two) = trained(name, [3]), trained(name, [3, 60])
    for first, second in zip((one.params, *one.vectors), (two.params, *two.vectors), strict=True):
        assert np.array_equal(layout.unflatten(first)["rare.weight"], layout.unflatten(second)["rare.weight"])


@pytest.mark.parametrize("name", ["adamw", "muon", "sgd", "muloco"])
def test_weight_decay_alone_is_no_vote(name):
    spec, layout, start, end = trained(name, [50])
    decayed = layout.unflatten(end.params)["masked.weight"]
    assert not np.array_equal(decayed, layout.unflatten(start)["masked.weight"])
    sync = Sync.of(spec)
    state, peer = sync.initial(start), PeerId(b"\1" * 32)
    sent = sync.encode(state, None, None, end.params, layout, peer)
    said = layout.unflatten(sync.decode(sync.about(state, layout, peer), layout, sent.payload))
    for key, values in said.items():
        assert values.view(np.uint32).any() == (not key.startswith(("never", "rare", "masked")))
