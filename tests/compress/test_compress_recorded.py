"""What is foretold of payloads, beside real ones: a small GPT is trained, and what a peer wants to send is encoded."""

import argparse
import inspect

import numpy as np
import pytest
import torch

from farflung.compress.payload import HEADER_BYTES, ContributionKey
from farflung.compress.registry import make
from farflung.core.ids import Hash, PeerId
from farflung.job.spec import JobSpec, ModelSpec
from farflung.train import flat_model as models

ABOUT = ContributionKey(0, 0, Hash(b"\x01" * 32), PeerId(b"\x02" * 32))
ROUNDS, STEPS, ROWS, CONTEXT = 12, 8, 4, 32


@pytest.fixture(scope="module")
def recorded():
    """The layout, and the change of each round, AdamW's on the source of argparse."""
    text = np.frombuffer(inspect.getsource(argparse).encode(), np.uint8).astype(np.int64)
    spec = JobSpec(seed=5, model=ModelSpec(layers=2, width=64, heads=2, context=CONTEXT))
    model = models.build(spec, b"")
    model.put(models.initial(spec, model))
    model.params.grad = model.grads
    optimizer = torch.optim.AdamW([model.params], lr=3e-3, betas=(0.9, 0.99))
    random, changes = np.random.default_rng(6), []
    for _ in range(ROUNDS):
        before = model.take()
        for _ in range(STEPS):
            at = random.integers(0, text.size - CONTEXT - 1, ROWS)[:, None] + np.arange(CONTEXT)
            model.gradient(torch.from_numpy(text[at]), torch.from_numpy(text[at + 1]))
            optimizer.step()
        changes.append(model.take() - before)
    return model.layout, changes


def sizes(recorded, kind, bits, topk):
    """Length of each round's payload, and what was foretold of it."""
    layout, changes = recorded
    codec = make(kind, value_bits=bits, topk=topk, chunk=4096, transform="raw", rank=1, error_decay=0.95)
    state, lengths = None, []
    for change in changes:
        state, payload = codec.encode(state, change, layout, ABOUT)
        lengths.append(len(payload))
    return lengths, codec.expect(layout)


@pytest.mark.parametrize(
    ("kind", "bits", "topk"), [("topk", 2, 64), ("topk", 2, 256), ("topk", 32, 32), ("dense", 8, 1)]
)
def test_the_expected_length_is_within_two_percent_of_recorded_payloads(recorded, kind, bits, topk):
    lengths, expected = sizes(recorded, kind, bits, topk)
    assert abs(expected / np.mean(lengths[-3:]) - 1) < 0.02


def test_two_dense_bits_are_foretold_within_five_percent(recorded):
    lengths, expected = sizes(recorded, "dense", 2, 1)
    assert abs(expected / np.mean(lengths[-3:]) - 1) < 0.05


def test_an_index_of_a_recorded_change_costs_at_most_6_9_bits(recorded):
    layout, changes = recorded
    codec = make("topk", value_bits=1, topk=64, chunk=4096, transform="raw", rank=1, error_decay=0.0)
    sent = sum(slab.count for slab in codec.plan(layout).slabs)
    for change in changes[-3:]:
        size = len(codec.encode(None, change, layout, ABOUT)[1])
        assert 8 * (size - HEADER_BYTES) <= (6.9 + 1) * sent
