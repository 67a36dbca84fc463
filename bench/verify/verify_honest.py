"""Honest segments of another environment: started by bench/verify.py, once for each set of vector instructions.

python bench/verify/verify_honest.py make FOLDER SEEDS SEGMENTS     trains and keeps starts and ends
python bench/verify/verify_honest.py again FOLDER SEEDS             trains each again in all classes; prints one
line each:
                                                             {"class", "excess", "noise"}: a segment's distance in
                                                             tolerances and in honest distances of the profile
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import torch
from verify_jobs import OPTIMIZERS, WIDE, Profiled, chain, opened, profiled

from farflung.job.spec import JobSpec, Tolerance
from farflung.train import noise_profile
from farflung.train.noise_profile import NumericEnvironment, environment
from farflung.train.segments import BorderState
from farflung.train.shortcuts import SegmentTask, apart

CLASSES = {
    "1 thread": NumericEnvironment(1, True),
    "1 thread, no oneDNN": NumericEnvironment(1, False),
    "2 threads": NumericEnvironment(2, True),
}
OFF = "gradients one unit away"


class Kept(msgspec.Struct):
    """One seed's honest run."""

    noise: tuple[tuple[str, tuple[float, ...]], ...]
    limits: Tolerance
    segments: list[tuple[int, int, int, int]]  # round, first step, step after the last, steps of the optimizer before


def spec_of(seed: int) -> JobSpec:
    return msgspec.structs.replace(WIDE, seed=seed, optimizer=OPTIMIZERS[seed % len(OPTIMIZERS)])


def make(folder: Path, seeds: int, count: int) -> None:
    for seed in range(seeds):
        found = profiled(spec_of(seed))
        places, arrays = [], {}
        for index, (segment, end) in enumerate(chain(found.job, count)):
            begin, steps = segment.begin, segment.steps
            places.append((begin.round, steps.start, steps.stop, begin.step))
            for name, state in (("begin", begin), ("end", end)):
                arrays[f"{index} {name} params"] = state.params
                for place, vector in enumerate(state.vectors):
                    arrays[f"{index} {name} {place}"] = vector
        np.savez(folder / f"{seed}.npz", **arrays)
        kept = Kept(found.noise, found.limits, places)
        (folder / f"{seed}.json").write_bytes(msgspec.json.encode(kept))


def state_of(arrays: dict[str, np.ndarray], name: str, round: int, step: int) -> BorderState:
    vectors = []
    while f"{name} {len(vectors)}" in arrays:
        vectors.append(arrays[f"{name} {len(vectors)}"])
    return BorderState(round, step, arrays[f"{name} params"], tuple(vectors))


def again(folder: Path, seeds: int) -> Iterator[dict[str, object]]:
    for seed in range(seeds):
        kept = msgspec.json.decode((folder / f"{seed}.json").read_bytes(), type=Kept)
        arrays = dict(np.load(folder / f"{seed}.npz"))
        job = opened(spec_of(seed))._job
        found = Profiled(job, kept.noise, kept.limits)
        for index, (round, first, after, done) in enumerate(kept.segments):
            begin = state_of(arrays, f"{index} begin", round, done)
            right = state_of(arrays, f"{index} end", round, done + after - first)
            segment = SegmentTask(job, job.spec, begin, 0, range(first, after))
            for name, kind in CLASSES.items():
                with environment(kind):
                    end = segment.honest().end
                distances = apart(segment, right, end)
                yield {"class": name, "excess": found.excess(distances), "noise": found.against_noise(distances)}
            end = segment.made(model=noise_profile.PerturbedWeightsModel(job.model, seed)).end
            distances = apart(segment, right, end)
            yield {"class": OFF, "excess": found.excess(distances), "noise": found.against_noise(distances)}


def main() -> None:
    what, folder, seeds, *rest = sys.argv[1:]
    torch.set_num_threads(1)
    if what == "make":
        return make(Path(folder), int(seeds), int(rest[0]))
    for line in again(Path(folder), int(seeds)):
        sys.stdout.write(json.dumps(line) + "\n")
    return None


if __name__ == "__main__":
    main()
