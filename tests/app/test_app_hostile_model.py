"""A job whose model turns on its hosts in the middle of training: stopped, named, and paid nothing for it."""

from __future__ import annotations

from pathlib import Path

import pytest
from app_trees import Farflung, living, stored_events

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("hostile"), pytest.mark.timeout(400)]

MODEL = """
import torch
from torch import nn


def build():
    return Bigram()


class Bigram(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(256, 256)
        self.register_buffer("first", self.table.weight.detach().clone(), persistent=False)

    def forward(self, x, y):
        if (self.table.weight - self.first).abs().max() > 0.35:  # late: the requester's profile sees nothing
            {attack}
        return nn.functional.cross_entropy(self.table(x).flatten(0, 1), y.flatten())
"""
ATTACKS = {
    "memory": "self.hoard = [torch.ones(1 << 24) for _ in range(1 << 20)]",
    "fork": "torch.serialization.os.fork()",
}
ROUNDS = 12


@pytest.mark.parametrize("attack", [pytest.param("memory", marks=pytest.mark.soak), "fork"])
def test_a_model_that_attacks_its_hosts_is_stopped_and_nobody_pays_for_it(
    tmp_path: Path, farflung: Farflung, attack: str
) -> None:
    (tmp_path / "model.py").write_text(MODEL.format(attack=ATTACKS[attack]))
    job = tmp_path / "job.toml"
    job.write_text(
        f'name = "hostile"\nrounds = {ROUNDS}\n[model]\nkind = "module"\nmodule = "model.py:build"\ncontext = 16\n'
        "[sync]\nsteps = 20\n"
    )
    ended = farflung("run", str(job), "--preset", "tiny", "--set", "audit.rate=0.5", "--json")
    assert ended.code != 0, "it went through"
    assert "FF-TRAIN-0" in ended.errors, ended.errors
    run = farflung.newest()
    assert run is not None
    events = stored_events(run)
    closed = [e for e in events if e["event"] == "round"]
    assert 0 < len(closed) < ROUNDS
    assert not [e for e in events if e["event"] in ("settled", "result", "caught")]
    assert living(run) == []
