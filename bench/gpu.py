"""What one card shows of farflung's sync methods: bits, tokens a second, and what travels to the host.

    python bench/gpu.py [--quick] [--part NAME ...] [--out FILE] [--device cuda]

It needs one card, torch >= 2.11 and loopback, and takes about twelve minutes; `--part` chooses. Parts: the tests of
tests/sync with their models on the card; a job's segment by a worker on the card and by the processor, in float32 and
bfloat16; each method stopped and continued from its checkpoint, on the card; a GPT of
124 M parameters in bfloat16 by two peers that share the card, against two plain PyTorch loops that share it; and the
bytes that one round moves over PCIe. `--device cpu --quick` tries the script itself where there is no card; such rows
are not kept.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # products of matrices with the same bits each time

import numpy as np
import torch
from reporting import Row, at_least, at_most, load, show, told
from torch import nn

import farflung
from farflung.core.canon.token_leaves import TokenSource
from farflung.core.tensor_layout import Float32
from farflung.job.job_loader import load as load_job
from farflung.job.spec import JobSpec, ModelSpec
from farflung.train import flat_model, inner_steps, segments
from farflung.train.backend import registry
from farflung.train.flat_model import FlatModel
from farflung.train.models.gpt import GPT
from farflung.train.segments import BorderState

ROOT = Path(__file__).resolve().parents[1]
PEERS = 2
H = 20  # local steps of a round
RATE = 3e-4
SMALL = ModelSpec(layers=2, width=64, heads=2, context=64, vocabulary=256)
GPT2 = ModelSpec(layers=12, width=768, heads=12, context=512, vocabulary=50257)

Method = Callable[..., Any]


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    """The inner optimizer of the methods that need one, and of the plain loop."""
    fused = next(model.parameters()).is_cuda
    return torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95), weight_decay=0.1, fused=fused)


METHODS: dict[str, Method] = {
    "sparse_loco": lambda m, n, **g: farflung.sync.SparseLoCo(m, adamw(m), sync_every=n, transform="raw", **g),
    "muloco": lambda m, n, **g: farflung.sync.MuLoCo(m, lr=RATE, sync_every=n, **g),
    "diloco": lambda m, n, **g: farflung.sync.DiLoCo(m, adamw(m), sync_every=n, **g),
    "local_sgd": lambda m, n, **g: farflung.sync.LocalSGD(m, adamw(m), sync_every=n, **g),
    "dgc": lambda m, n, **g: farflung.sync.DGC(m, lr=0.01, **g),
    "powersgd": lambda m, n, **g: farflung.sync.PowerSGD(m, lr=RATE, **g),
    "demo": lambda m, n, **g: farflung.sync.DeMo(
        m.parameters(), lr=RATE, **({"process_group": g["group"]} if g else {})
    ),
}


def gpt(spec: ModelSpec, device: str, seed: int = 0) -> nn.Module:
    """A GPT on `device` with weights of `seed`, drawn on the host: every process draws the same."""
    torch.manual_seed(seed)
    model = GPT(spec)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)
    return model.to(device)


class Corpus:
    """Batches of this repository's own text as bytes, by rank and step."""

    def __init__(self, spec: ModelSpec, batch: int, device: str) -> None:
        text = b"\n".join(path.read_bytes() for path in sorted((ROOT / "docs").rglob("*.md")))
        self.tokens = torch.frombuffer(bytearray(text), dtype=torch.uint8).to(device)
        self.context, self.batch = spec.context, batch

    def at(self, rank: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        """int64 (batch, context) tokens, and those that follow them."""
        generator = torch.Generator().manual_seed(100_000 * rank + step)
        first = torch.randint(len(self.tokens) - self.context - 1, (self.batch, 1), generator=generator)
        places = (first + torch.arange(self.context + 1)).to(self.tokens.device)
        found = self.tokens[places].long()
        return found[:, :-1], found[:, 1:]


def backward(model: nn.Module, corpus: Corpus, rank: int, step: int) -> None:
    """Gradients of one batch, computed in bfloat16."""
    x, y = corpus.at(rank, step)
    with torch.autocast(x.device.type, torch.bfloat16):
        loss = model(x, y)
    loss.backward()


# Bits


def resumed(name: str, device: str) -> bool:
    """Whether a run of three rounds has the bits of one that is saved within the second, and goes on in new objects."""
    corpus = Corpus(SMALL, 4, device)
    every, stop, end = 4, 6, 12

    def made(seed: int) -> tuple[nn.Module, Any]:
        model = gpt(SMALL, device, seed)
        return model, METHODS[name](model, every)

    def steps(model: nn.Module, sync: Any, first: int, last: int) -> list[torch.Tensor]:
        for step in range(first, last):
            backward(model, corpus, 0, step)
            sync.step()
            sync.zero_grad()
        return [parameter.detach().clone() for parameter in model.parameters()]

    model, sync = made(0)
    steps(model, sync, 0, stop)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "kept.pt")
        torch.save({"model": model.state_dict(), "sync": sync.state_dict()}, file)
        kept = torch.load(file, map_location=device)
    without = steps(model, sync, stop, end)
    again, other = made(1)
    again.load_state_dict(kept["model"])
    other.load_state_dict(kept["sync"])
    return all(torch.equal(a, b) for a, b in zip(without, steps(again, other, stop, end), strict=True))


def bits(device: str) -> Iterator[Row]:
    """Each method continues from a checkpoint bit for bit."""
    torch.use_deterministic_algorithms(True)
    held = [name for name in METHODS if resumed(name, device)]
    torch.use_deterministic_algorithms(False)
    lost = sorted(set(METHODS) - set(held))
    against = f"{len(METHODS)} methods, saved within a round; not: {', '.join(lost) or 'none'}"
    yield at_least("methods that go on with the same bits", len(held), "methods", len(METHODS), against)


def worker(device: str) -> Iterator[Row]:
    """How far a worker's segment on the card lies from the processor's, as an audit measures it (train.segments)."""
    for compute in ("float32", "bfloat16"):
        spec = load_job(None, preset="tiny", flags={"numerics.compute": compute, "batch": "8"}).spec
        text = b"".join(path.read_bytes() for path in sorted((ROOT / "docs").rglob("*.md")))
        tokens = np.frombuffer(text, np.uint8)

        def ended(
            where: str, spec: JobSpec = spec, tokens: TokenSource = tokens
        ) -> tuple[FlatModel, Float32, BorderState]:
            model = flat_model.build(spec, b"", device=registry.opened(where))
            start = flat_model.initial(spec, model)
            batches = inner_steps.batches(tokens, spec, 0, 0)
            at = BorderState(0, 0, start)
            return model, start, inner_steps.run_steps(model, spec, at, batches, 0, range(3), lambda: None).end

        (model, start, here), (_, _, there) = ended("cpu"), ended(device)
        mine, claimed = (segments.compared(end, spec.optimizer) for end in (here, there))
        found = segments.distances(model.layout, start, mine, claimed)["params"]
        against = f"three steps of the tiny job in {compute}, against the processor; largest {float(found.max()):.2g}"
        yield told(f"a worker's weights, {compute}: median tensor", float(np.median(found)), "of the change", against)


def suite() -> Iterator[Row]:
    """The tests of the library, whose models lie on the card where there is one."""
    command = [sys.executable, "-m", "pytest", "-q", "-n", "8", "--tier", "all"]
    tests = [f"tests/sync/test_sync_{name}.py" for name in ("device_memory", "state")]
    ended = subprocess.run([*command, *tests, "-o", "filterwarnings=default"], cwd=ROOT, capture_output=True, text=True)
    sys.stderr.write("".join(ended.stdout.splitlines(keepends=True)[-40:]) + ended.stderr[-2000:])
    last = ended.stdout.strip().splitlines()[-1].strip("= ")
    yield at_most("tests/sync with models on the card", ended.returncode, "exit status", 0, last)


# Speed


class Loop(NamedTuple):
    """What one process of a timed pair measured: tokens and seconds of the wall after the first round."""

    tokens: int
    seconds: float
    encode: float  # seconds of choice and coding, in all of them
    exchange: float
    payload: int
    megabytes: float  # of the card's memory, at its peak


def loop(name: str, rank: int, ports: list[int], rounds: int, quick: bool, device: str) -> Loop:
    """One peer of a method, or one plain loop of as many steps."""
    spec, batch = (SMALL, 4) if quick else (GPT2, 32)
    model, corpus = gpt(spec, device), Corpus(spec, batch, device)
    keys = [farflung.sync.unsafe_key(1, each) for each in range(PEERS)]
    book = [(key.public.hex(), "127.0.0.1", port) for key, port in zip(keys, ports, strict=True)]
    group = farflung.sync.connect(book, keys[rank])  # the plain loops begin together, too
    sync = None if name == "plain" else METHODS[name](model, H, group=group)
    optimizer = sync or adamw(model)
    encode = exchange = began = 0.0
    payload = 0
    if sync is not None and hasattr(sync, "memory"):
        sent = sync.memory.sent

        def timed(*arguments: Any) -> bytes:
            nonlocal encode
            wait(device)
            start = time.monotonic()
            found: bytes = sent(*arguments)
            encode += time.monotonic() - start
            return found

        sync.memory.sent = timed
    for step in range(H * (rounds + 1)):
        if step == H:
            wait(device)
            encode, exchange, began = 0.0, 0.0, time.monotonic()
        backward(model, corpus, rank, step)
        report = optimizer.step()
        optimizer.zero_grad()
        if sync is not None and report is not None:
            exchange += report.exchange_seconds
            payload = report.payload_bytes
    wait(device)
    seconds = time.monotonic() - began
    group.close()
    peak = torch.cuda.max_memory_allocated() / 1e6 if device != "cpu" else 0.0
    return Loop(H * rounds * batch * spec.context, seconds, encode / rounds, exchange / rounds, payload, peak)


def wait(device: str) -> None:
    """Returns when the card has done what it was given."""
    if device != "cpu":
        torch.cuda.synchronize()


def pair(name: str, rounds: int, quick: bool, device: str) -> list[Loop]:
    """Two processes at once; their figures."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(PEERS)]
    ports = [each.getsockname()[1] for each in held]
    for each in held:
        each.close()
    asked = [name, ",".join(map(str, ports)), str(rounds), str(int(quick)), device]
    peers = [
        subprocess.Popen([sys.executable, __file__, "--peer", str(rank), *asked], stdout=subprocess.PIPE, text=True)
        for rank in range(PEERS)
    ]
    said = [peer.communicate()[0] for peer in peers]
    if any(peer.returncode for peer in peers):
        return []
    return [Loop(*json.loads(text.splitlines()[-1])) for text in said]


def speed(quick: bool, device: str) -> Iterator[Row]:
    """Tokens a second of both peers together, against two plain loops on the same card."""
    what = "a small GPT" if quick else "GPT of 124 M, bfloat16, 16,384 tokens a step, 20 steps a round"
    rate = {}
    for name in ("plain", "sparse_loco", "muloco", "diloco"):
        rounds = 1 if quick else 2
        found = pair(name, rounds, quick, device)
        if not found:
            yield at_most(f"{name}, two peers", 1, "peers that failed", 0, what)
            continue
        rate[name] = sum(one.tokens / one.seconds for one in found)
        if name == "plain":
            yield told("plain PyTorch, two loops", rate[name], "tokens/s", what)
            continue
        one = found[0]
        where = (
            f"two plain loops on the same card; {what}; {one.payload / 1e6:.2f} MB a payload, "
            f"{one.exchange:.2f} s an exchange over loopback, card memory {one.megabytes:,.0f} MB a peer"
        )
        yield at_least(f"{name}, two peers", rate[name] / rate["plain"], "x", 0.8, where)
        share = 100 * one.encode / (one.seconds / rounds)
        yield at_most(f"{name}, choice and coding", share, "% of a round", 2, f"{one.encode:.3f} s a round; {what}")


# Bytes


def travelled(quick: bool, device: str) -> Iterator[Row]:
    """Bytes over PCIe of one round of `sparse_loco`, by PyTorch's profiler, against its payload."""
    spec = SMALL if quick else GPT2
    model, corpus = gpt(spec, device), Corpus(spec, 4, device)
    sync = farflung.sync.SparseLoCo(model, adamw(model), sync_every=2, transform="raw", outer_momentum=0.0)
    for step in range(3):
        backward(model, corpus, 0, step)
        sync.step()
        sync.zero_grad()
    backward(model, corpus, 0, 3)
    activities = [torch.profiler.ProfilerActivity.CPU]
    if device != "cpu":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with tempfile.TemporaryDirectory() as folder:
        with torch.profiler.profile(activities=activities) as profile:
            report = sync.step()
            wait(device)
        file = Path(folder, "trace.json")
        profile.export_chrome_trace(str(file))
        events = json.loads(file.read_text())["traceEvents"]
    moved = {"DtoH": 0, "HtoD": 0}
    for event in events:
        for way in moved:
            if event.get("cat") == "gpu_memcpy" and way in event["name"]:
                moved[way] += int(event["args"]["bytes"])
    assert report is not None
    where = f"payload of {report.payload_bytes:,} bytes, whole weights {4 * sync.weights.layout.size:,}; one peer"
    yield at_most("sparse_loco, card to host", moved["DtoH"] / report.payload_bytes, "x payload", 1.2, where)
    yield told("sparse_loco, host to card", moved["HtoD"] / report.payload_bytes, "x payload", where)


def main() -> None:
    """Measures, prints, and keeps what was asked for."""
    if "--peer" in sys.argv:
        rank, name, ports, rounds, quick, device = sys.argv[2:]
        found = loop(name, int(rank), [*map(int, ports.split(","))], int(rounds), quick == "1", device)
        print(json.dumps(found))
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="smaller models: a minute")
    parser.add_argument("--out", type=Path, help="add the rows to this file")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parts: dict[str, Callable[[], Iterator[Row]]] = {
        "bits": lambda: bits(asked.device),
        "worker": lambda: worker(asked.device),
        "speed": lambda: speed(asked.quick, asked.device),
        "travelled": lambda: travelled(asked.quick, asked.device),
        "tests": suite,
    }
    parser.add_argument("--part", action="append", choices=parts, help="one of the parts; default: all of them")
    asked = parser.parse_args()
    if asked.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("there is no card here that PyTorch sees: nothing was run")
    card = torch.cuda.get_device_name() if asked.device == "cuda" else "no card"
    before = load()
    for part in asked.part or parts:
        for row in parts[part]():
            seen = row._replace(against=f"{row.against}; {card}, torch {torch.__version__}")
            show("gpu", seen, before, asked.out if asked.device == "cuda" else None)


if __name__ == "__main__":
    main()
