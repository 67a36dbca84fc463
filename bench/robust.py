"""What a third of the peers can do to one merge: the rules of compress.merge under the attacks of the literature.

    python bench/robust.py [--training] [--quick] [--out FILE]

With --training, whole trainings instead, in which 1 and 2 of 8 peers send poison in every round (bench/poison.py).

A small GPT is trained for 100 steps; 16 peers then make one update each, 5 of them an attacker's. Printed is the cosine
of the merged update with the true gradient (of 512 sequences), and how long it is, against the honest peers' mean. One
step.

    huge    -1000 x its own update                     flip   -1 x its own update
    alie    μ - z σ, coordinate by coordinate, z = 0.35 of 5 in 16 (Baruch, Baruch & Goldberg 2019, arXiv 1902.06156)
    ipm     -2 μ of the honest updates (Xie, Koyejo & Gupta 2019, arXiv 1903.03936)

Updates are dense, the largest hundredth of each chunk's elements, or the signs times one size a tensor.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import NormalDist
from typing import Final, get_args

import numpy as np
import poison
import torch
from reporting import Row, at_least, at_most, load, show, told

from farflung.compress.merge import Rule, WeightedUpdate, mean, merge
from farflung.core.ids import PeerId
from farflung.core.tensor_layout import Float32, TensorLayout
from farflung.job.io.job_files import read_dataset
from farflung.job.job_loader import load as read_job
from farflung.train import data_order, flat_model, inner_steps

PEERS, ATTACKERS, STEPS, TRUE = 16, 5, 100, 64  # batches of 8 sequences
CHUNK, TOPK = 4096, 41
UNIT: Final = 1 << 4  # so that a thousandfold of most gradients stays below where fixed point saturates

Rows = list[Float32]


def updates(quick: bool) -> tuple[TensorLayout, Float32, Rows]:
    """The true direction at step STEPS, and what each of PEERS saw of it."""
    flags = {"model.layers": "2", "model.width": "64" if quick else "128", "batch": "8"}
    spec = read_job(None, flags=flags).spec
    tokens = read_dataset(spec.data, spec.model, Path()).train
    built = flat_model.build(spec, b"")
    start = inner_steps.single_machine(flat_model.initial(spec, built))
    at = inner_steps.baseline(built, spec, tokens, start, 1, 20 if quick else STEPS, lambda: None)
    built.put(at.params)

    def gradient(member: int, step: int) -> Float32:
        built.gradient(*inner_steps.tensors(data_order.batch(tokens, spec, spec.rounds, member, step)))
        found: Float32 = -built.grads.numpy() / UNIT
        return found

    true = np.mean([gradient(PEERS, step) for step in range(TRUE)], axis=0)
    return built.layout, true, [gradient(member, 0) for member in range(PEERS)]


def dense(_: TensorLayout, update: Float32) -> Float32:
    """All of it."""
    return update


def top(_: TensorLayout, update: Float32) -> Float32:
    """The TOPK largest of each chunk."""
    sent = np.zeros_like(update)
    for start in range(0, update.size, CHUNK):
        chunk = update[start : start + CHUNK]
        kept = np.argsort(-np.abs(chunk), kind="stable")[:TOPK]
        sent[start + kept] = chunk[kept]
    return sent


def sign(layout: TensorLayout, update: Float32) -> Float32:
    """The signs, times the mean size of each tensor."""
    sent = np.sign(update)
    for _, place in layout.slices():
        sent[place] *= np.abs(update[place]).mean()
    return sent


def spread(honest: Rows) -> Float32:
    """ALIE's common vector."""
    needed = PEERS // 2 + 1 - ATTACKERS
    z = NormalDist().inv_cdf((len(honest) - needed) / len(honest))
    found: Float32 = (np.mean(honest, axis=0) - z * np.std(honest, axis=0)).astype(np.float32)
    return found


Attack = Callable[[Rows, Rows], Rows]  # honest updates, the attackers' own -> what attackers send

ATTACKS: Final[dict[str, Attack]] = {
    "none": lambda _, own: own,
    "huge": lambda _, own: [-1000 * each for each in own],
    "flip": lambda _, own: [-each for each in own],
    "alie": lambda honest, own: [spread(honest)] * len(own),
    "ipm": lambda honest, own: [-2 * np.mean(honest, axis=0)] * len(own),
}


def cosine(left: Float32, right: Float32) -> float:
    """Of two vectors."""
    a, b = left.astype(np.float64), right.astype(np.float64)
    return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))


def cases(quick: bool) -> Iterator[Row]:
    """Every form, attack and rule."""
    layout, true, all_of_them = updates(quick)
    for form in (dense, top, sign):
        sent = [form(layout, each) for each in all_of_them]
        honest, own = sent[ATTACKERS:], sent[:ATTACKERS]
        wanted = np.linalg.norm(np.mean(honest, axis=0))
        plain = 0.0
        for name, attack in ATTACKS.items():
            bad = [form(layout, np.asarray(each, np.float32)) for each in attack(honest, own)]
            parts = [WeightedUpdate(PeerId(bytes([i]) * 32), 1, each) for i, each in enumerate(bad + honest)]
            for rule in get_args(Rule):
                merged = mean(merge(layout, parts, rule))
                found, case = cosine(merged, true), f"{form.__name__}, {name}, {rule}"
                against = "cosine of the merged update with the true gradient"
                if name == "none" and rule == "mean":
                    plain = found
                if name == "none" and rule != "mean":
                    yield at_least(case, found, "cosine", 0.9 * plain, f"0.9 of the mean's; {against}")
                else:
                    yield told(case, found, "cosine", against)
                length = float(np.linalg.norm(merged) / wanted)
                if name == "huge" and rule != "mean":
                    yield at_most(f"{case}, length", length, "x", 4.0, "the honest peers' mean")
                elif name != "none":
                    yield told(f"{case}, length", length, "x", "the honest peers' mean")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--training", action="store_true", help="whole trainings, in 7 minutes of a core")
    parser.add_argument("--quick", action="store_true", help="a smaller model, 20 steps")
    parser.add_argument("--out", type=Path, help="a results file to add to")
    asked, before = parser.parse_args(), load()
    torch.set_num_threads(1)
    for row in poison.cases(asked.quick) if asked.training else cases(asked.quick):
        show("robust", row, before, asked.out)


if __name__ == "__main__":
    main()
