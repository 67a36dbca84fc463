"""How large a model trains here, and what each process holds of it: whole runs, audited and paid, on this computer.

    python bench/size.py [--quick] [--part NAME] [--out FILE]

| part  | measures | minutes |
|-------|----------|---------|
| run   | a GPT of GPT-2 small's shape (124 M parameters, context 256; quick: 10 M), 2 providers, 1 verifier, 2 rounds |
|       | of 5 steps, proven: whether it ends, what each process takes at its peak, against 0.8 M and the plan | 25 |
| speed | tokens a second of whole rounds, all providers, `diloco` and `muloco`, H = 20, 1,024 tokens a step, beside |
|       | plain PyTorch of the same model and optimizer in as many processes of one thread | 10 |

Honest segments in other classes of numerics are a part of bench/verify.py.

Peaks are `VmHWM` as each process' agent reads it: mapped pages count while they are resident.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from reporting import Row, at_least, at_most, load, show, told

from farflung.job.job_loader import load as load_job
from farflung.job.spec import JobSpec
from farflung.plan.worker_memory import gpt_activations

PARTS: Final = ("run", "speed")
BYTES: Final = 28.0  # a parameter, of a worker, beside activations and what it takes without a model
BARE: Final = 300_000_000  # a worker without model and data (plan.worker_memory), compiled codecs not counted
MORE: Final = 200_000_000  # of a process that is no worker, against the same with a small model
LIMIT: Final = 3600.0  # seconds of one run
COMMON: Final = {
    "batch": "2", "rounds": "2", "sync.method": "diloco", "sync.steps": "5", "optimizer.lr": "1e-3",
    "network.providers": "2", "network.verifiers": "1", "model.context": "256", "evaluate.tokens": "512",
    "evaluate.final_tokens": "512", "budget": "100", "audit.segments": "2",  # states at five borders: 9 GB of disk more
}  # fmt: skip


class Shape(NamedTuple):
    """A GPT's sizes."""

    width: int
    layers: int
    heads: int
    vocabulary: int

    def flags(self) -> dict[str, str]:
        """As a job's settings."""
        return {f"model.{name}": str(value) for name, value in self._asdict().items()}


SMALL: Final = Shape(128, 4, 4, 256)  # 0.8 M
MIDDLE: Final = Shape(320, 8, 8, 256)  # 10 M
LARGER: Final = Shape(512, 8, 8, 8192)  # 30 M
GPT2: Final = Shape(768, 12, 12, 50257)  # 124 M


class Finished(NamedTuple):
    """What a run said, and what it exited with."""

    events: list[dict[str, Any]]
    status: int
    seconds: float

    def all(self, kind: str) -> list[dict[str, Any]]:
        """Its events of one kind."""
        return [event for event in self.events if event["event"] == kind]

    @property
    def peaks(self) -> dict[str, int]:
        """Bytes, by process."""
        return {each["process"]: each["peak_bytes"] for each in self.all("usage")}


def run(flags: dict[str, str], folder: Path) -> Finished:
    """One whole run of these settings."""
    words = [word for key, value in flags.items() for word in ("--set", f"{key}={value}")]
    command = [sys.executable, "-m", "farflung.app.cli.main", "run", "--json", "--preset", "tiny", *words]
    began = time.monotonic()
    done = subprocess.run(
        [*command, "--out", str(folder)], stdout=subprocess.PIPE, text=True, timeout=LIMIT, check=False
    )
    events = [json.loads(line) for line in done.stdout.splitlines()]
    return Finished(events, done.returncode, time.monotonic() - began)


def whole(shape: Shape) -> Iterator[Row]:
    """The run of the issue's first row, beside a small one, and the plan beside both."""
    found: dict[Shape, Finished] = {}
    for each in dict.fromkeys((SMALL, MIDDLE, *([LARGER] if shape == GPT2 else []), shape)):
        with tempfile.TemporaryDirectory() as folder:
            found[each] = run(COMMON | each.flags(), Path(folder) / "run")
    large, small = found[shape], found[SMALL]
    count = large.all("plan")[0]["parameters"]
    size = f"{count / 1e6:.0f} M"
    result = (large.all("result") or [{"sum": 1, "segments_audited": 0, "paid": 0}])[0]
    is_good = not large.status and result["sum"] == 0 and result["segments_audited"] and result["paid"]
    said = f"{result['segments_audited']} segments audited, {len(large.all('settled'))} peers paid, sum {result['sum']}"
    yield Row(f"{size} run ends, audited, paid, sum 0", float(is_good), "runs", 1.0, bool(is_good), said)
    yield told(f"{size} run, seconds", large.seconds, "s", "two cores, five processes that compute")
    spec = spec_of(COMMON | shape.flags())
    worker, of = max((peak, name) for name, peak in large.peaks.items() if "worker" in name)
    each = (worker - BARE - gpt_activations(spec)) / count
    told_of = f"the {of}; {worker / 1e9:.2f} GB less {BARE / 1e9:.2f} of libraries and the activations' closed form"
    yield at_most(f"{size} largest worker, bytes a parameter", each, "B", BYTES, told_of)
    for name, peak in large.peaks.items():
        if "worker" not in name:
            against = f"0.8 M parameters: {small.peaks[name] / 1e6:.0f} MB"
            yield at_most(f"{size} {name}, memory more", (peak - small.peaks[name]) / 1e6, "MB", MORE / 1e6, against)
    for one in found.values():
        plan = one.all("plan")[0]
        most = max((peak for name, peak in one.peaks.items() if "worker" in name), default=0)
        apart = abs(most / plan["memory_bytes"] - 1) * 100
        against = f"measured {most / 1e6:.0f} MB, planned {plan['memory_bytes'] / 1e6:.0f} MB"
        yield at_most(f"plan of a worker, {plan['parameters'] / 1e6:.1f} M", apart, "%", 10, against)
    ready = max(each["at"] for each in large.all("process") if each["role"] == "verifier")
    before = large.all("class")[0]["at"] - ready
    step = min(each["train_seconds"] for each in large.all("round")) / spec.sync.steps
    about = f"{before:.0f} s before escrow; a step takes {step:.1f} s; a tenth of a job of ten times as many"
    yield told(f"{size} tracing, noise profile and trial", before / step, "steps of a worker", about)


def spec_of(flags: dict[str, str]) -> JobSpec:
    """The job of these settings."""
    return load_job(None, preset="tiny", flags=flags).spec


SPEED: Final = COMMON | {
    "batch": "4", "sync.steps": "20", "network.verifiers": "0", "audit.rate": "0", "audit.probation": "0",
    "audit.segments": "1", "rounds": "4",
}  # fmt: skip


def speed(shape: Shape) -> Iterator[Row]:
    """Tokens a second of rounds that nobody audits, beside plain loops that run as many at a time."""
    for method in ("diloco", "muloco"):
        flags = SPEED | shape.flags() | {"sync.method": method}
        with tempfile.TemporaryDirectory() as folder:
            ended = run(flags, Path(folder) / "run")
        rounds = ended.all("round")[1:]  # while the first one is trained, processes still start
        ours = sum(each["tokens"] for each in rounds) / sum(each["seconds"] for each in rounds)
        count = ended.all("plan")[0]["parameters"]
        peers = spec_of(flags).network.providers
        command = [sys.executable, __file__, "--plain", json.dumps(flags)]
        loops = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(peers)]
        plain = sum(float(loop.communicate(timeout=LIMIT)[0]) for loop in loops)
        against = (
            f"plain PyTorch, {peers} processes of one thread: {plain:.0f} tokens/s; {count / 1e6:.1f} M parameters"
        )
        yield at_least(f"tokens a second, {method}", ours / plain, "ratio", 0.9, against)


def plain_loop(flags: dict[str, str]) -> float:
    """Tokens a second of a loop that somebody without farflung would write."""
    import torch

    from farflung.sync.muon import Muon
    from farflung.train.models import gpt

    torch.set_num_threads(1)
    spec = spec_of(flags)
    model = gpt.build(spec.model)
    is_muon = spec.optimizer.name == "muon"  # torch's own multiplies in bfloat16, which this processor is slow at
    optimizer = Muon(model, lr=1e-3) if is_muon else torch.optim.AdamW(model.parameters(), lr=1e-3)
    tokens = torch.randint(0, spec.model.vocabulary, (spec.batch, spec.model.context + 1))
    began, steps = 0.0, 2 * spec.sync.steps
    for step in range(steps + 2):
        if step == 2:  # what is loaded and allocated once
            began = time.perf_counter()
        loss = model(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return steps * spec.step_tokens / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smaller models")
    parser.add_argument("--part", choices=PARTS, action="append", help="of the parts these; default: all")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--plain", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.plain:
        print(plain_loop(json.loads(asked.plain)))
        return
    before = load()
    for part in asked.part or PARTS:
        match part:
            case "run":
                found = whole(MIDDLE if asked.quick else GPT2)
            case _:
                found = speed(SMALL if asked.quick else MIDDLE)
        for row in found:
            show("size", row, before, asked.out)


if __name__ == "__main__":
    main()
