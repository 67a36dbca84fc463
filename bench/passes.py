"""What each setting of a pass takes: memory and seconds of one gradient, against float32 in one pass without recompute.

    python bench/passes.py [--quick] [--out bench/results/passes.jsonl]

Memory is traced (train.gauge): what is alive at the peak of forward and backward pass beyond what is there between two
steps, and reckoned from that. Seconds are the median of repeated gradients on one thread, the settings in turn, so that
another load of the machine meets all of them.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Final

import torch
from reporting import load, show, told

from farflung.job.job_loader import load as load_job
from farflung.job.spec import JobSpec
from farflung.plan.step_trace import way_of
from farflung.train import flat_model
from farflung.train.flat_model import FlatModel
from farflung.train.gauge.job_step import answer
from farflung.train.gauge.request import StepMemoryRequest

SIZE: Final = {"model.layers": "6", "model.width": "384", "model.heads": "6", "model.context": "256", "batch": "8"}
SMALL: Final = {"model.layers": "2", "model.width": "64", "model.heads": "2", "model.context": "64", "batch": "4"}
PLAIN: Final = "float32"
SETTINGS: Final[dict[str, dict[str, str]]] = {
    PLAIN: {},
    "float32, blocks recomputed": {"model.recompute": "blocks"},
    "float32, 4 passes": {"accumulate": "4"},
    "bfloat16": {"numerics.compute": "bfloat16"},
    "bfloat16, blocks recomputed, 4 passes": {
        "numerics.compute": "bfloat16", "model.recompute": "blocks", "accumulate": "4",
    },
}  # fmt: skip


def built(spec: JobSpec) -> FlatModel:
    """The job's model with its first weights."""
    model = flat_model.build(spec, b"")
    model.put(flat_model.initial(spec, model))
    return model


def main() -> None:
    """Prints a row for memory and one for time of each setting."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    before, repeats = load(), 1 if asked.quick else 7
    torch.set_num_threads(1)
    size = SMALL if asked.quick else SIZE
    fast = {"sync.method": "diloco", "optimizer.name": "sgd"}  # passes alone are looked at
    specs = {name: load_job(None, flags={**size, **fast, **more}).spec for name, more in SETTINGS.items()}
    models = {name: built(spec) for name, spec in specs.items()}
    spec = specs[PLAIN]
    x_BT, y_BT = (torch.randint(0, 256, (spec.batch, spec.model.context)) for _ in range(2))
    seconds: dict[str, list[float]] = {name: [] for name in specs}
    for _ in range(1 + repeats):  # the first one loads what is loaded once
        for name, model in models.items():
            began = time.perf_counter()
            model.gradient(x_BT, y_BT)
            seconds[name].append(time.perf_counter() - began)
    took = {name: statistics.median(each[1:]) for name, each in seconds.items()}
    model_words = f"gpt {spec.model.layers}x{spec.model.width}, {spec.batch} rows of {spec.model.context}"
    for name, each in specs.items():
        mode = answer(StepMemoryRequest(each, b"")).mode(way_of(each))  # type: ignore[union-attr]
        show("passes", told(f"activations at the peak: {name}", mode.peak / 1e6, "MB", model_words), before, asked.out)
        share = f"{model_words}; {took[PLAIN] / took[name]:.2f} of the speed of {PLAIN}"
        show("passes", told(f"one gradient: {name}", took[name], "s", share), before, asked.out)


if __name__ == "__main__":
    main()
