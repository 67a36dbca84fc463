"""Bytes a peer and round for 4 to 64 peers, and what two-way aggregation costs in loss.

    python bench/scaling.py [--quick] [--only bytes|loss] [--seeds N] [--out FILE]

Bytes: real payloads of the real codecs for Gaussian changes of a GPT's tensors, counted without connections' own bytes.
Four ways to bring N payloads of m bytes together:
    all-gather            up (N-1) m                       down (N-1) m
    all-gather, relayed   up m                             down (N-1) m
    two-way               up = down = (N-1)/N (m + a)      a: bytes of all owners' answers (twoway.py)
    two-way, relayed      up m + a/N                       down (N-1)/N (m + a)
"Relayed": a payload goes up once, to a relay or store that serves the others (and auditors). "Constant" means within
5 % of the middle, for N from 4 to 64. The ring all-reduce of bf16, against which ratios are told, itself moves
2 (N-1)/N x 2 P bytes, so that a two-way exchange has the same ratio to it for every N.

Loss: peers of one small job in one process (bench/scaling/simulated.py), the same seeds for each way; nats a byte
more than the all-gather of the same uplink codec. Goal before two-way leaves its flag: under 0.02.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import twoway
from reporting import Row, at_most, load, show, told

sys.path.insert(1, str(Path(__file__).with_suffix("")))
from simulated import Peers, Trained, job, read
from twoway import TwoWayAggregation

from farflung.compress import kernels, registry
from farflung.compress.payload import ContributionKey
from farflung.compress.registry import Codec
from farflung.core.crypto import digest
from farflung.core.ids import PeerId
from farflung.core.tensor_layout import Float32, TensorLayout
from farflung.job.spec import ModelSpec
from farflung.train.flat_model import FlatModel
from farflung.train.models import gpt
from farflung.train.worker_messages import AcceptedPayload

COUNTS = (4, 8, 16, 32, 64)
ENCODED = 4  # peers whose payloads are made for each N; the others' are as long
COST = 0.02  # nats
LOSS = {False: ("sparse_loco", "muloco"), True: ("sparse_loco",)}  # methods, by whether it is quick
RATES = {"sparse_loco": {"optimizer.lr": "0.008", "sync.topk": "64"}, "muloco": {"optimizer.lr": "0.01"}}
CONSTANT = 1.05 / 0.95  # largest over smallest, when all lie within 5 % of the middle


def codec(kind: str = "topk", value_bits: int = 2, topk: int = 64, error_decay: float = 0.95) -> Codec:
    """A codec of the shelf."""
    return registry.make(
        kind, value_bits=value_bits, topk=topk, chunk=4096, transform="raw", rank=4, error_decay=error_decay
    )


class Traffic(NamedTuple):
    """Bytes of one peer in one round: the mean over peers."""

    up: float
    down: float


def ring(size: int, count: int) -> float:
    """Bytes that one peer of a bf16 ring all-reduce sends, and receives, in one step."""
    return 2 * (count - 1) / count * 2 * size


def all_gather(layout: TensorLayout, count: int, change: Float32, about: ContributionKey) -> dict[str, Traffic]:
    """What one payload's length gives."""
    m = len(codec().encode(None, change, layout, about)[1])
    return {"all-gather": Traffic((count - 1) * m, (count - 1) * m), "all-gather, relayed": Traffic(m, (count - 1) * m)}


def two_way(layout: TensorLayout, count: int, changes: list[Float32], about: ContributionKey) -> dict[str, Traffic]:
    """Payloads of some peers to all owners, and the owners' answers to them."""
    method = TwoWayAggregation(codec(), codec())
    peers = [PeerId(digest("bench/peer/1", i.to_bytes(4, "little"))) for i in range(count)]
    shards = twoway.shards(layout, digest("bench/job/1"), peers)
    sent = {p: method.send(None, c, shards, about._replace(peer=p))[1] for p, c in zip(peers, changes, strict=False)}
    whole = statistics.mean(sum(map(len, pieces.values())) for pieces in sent.values())
    answers = sum(
        len(method.combine(None, s, [AcceptedPayload(p, 1, sent[p][s.owner]) for p in sent], about)[1]) for s in shards
    )
    away = (count - 1) / count * (whole + answers)
    return {"two-way": Traffic(away, away), "two-way, relayed": Traffic(whole + answers / count, away)}


def bytes_table(quick: bool) -> list[Row]:
    """Bytes up and down for each N and way, then the goals."""
    sizes = ModelSpec(layers=6, width=384, heads=6) if quick else ModelSpec(layers=8, width=768, heads=12)
    layout = FlatModel(gpt.build(sizes)).layout
    generator = np.random.Generator(np.random.Philox(key=1))
    changes = [generator.standard_normal(layout.size, np.float32) for _ in range(2 if quick else ENCODED)]
    about = ContributionKey(0, 0, digest("bench/root/1"), PeerId(bytes(32)))
    counts = (COUNTS[0], COUNTS[-1]) if quick else COUNTS
    found: dict[str, dict[int, Traffic]] = {}
    rows = []
    for count in counts:
        ways = all_gather(layout, count, changes[0], about) | two_way(layout, count, changes, about)
        for way, traffic in ways.items():
            found.setdefault(way, {})[count] = traffic
            whole = ring(layout.size, count)
            against = f"bf16 ring, N = {count}: {whole:.0f} B up and as many down, {whole / max(traffic):.1f} times"
            rows += [
                told(f"{way}, N = {count}, {name}", getattr(traffic, name), "B", against) for name in ("up", "down")
            ]
    return rows + _growth(layout, found, counts)


def _growth(layout: TensorLayout, found: dict[str, dict[int, Traffic]], counts: tuple[int, ...]) -> list[Row]:
    rows = []
    first, last = counts[0], counts[-1]
    for way, traffic in found.items():
        both = {n: t.up + t.down for n, t in traffic.items()}
        growth = max(both.values()) / min(both.values())
        case = f"{way}: up and down together, most over least"
        if way.startswith("two-way"):
            rows.append(at_most(case, growth, "ratio", CONSTANT, f"constant within 5 %, N = {first} to {last}"))
            shares = [both[n] / ring(layout.size, n) for n in counts]
            against = "constant within 5 %: the same share of the bf16 ring at the same N"
            rows.append(
                at_most(
                    f"{way}: share of the ring, most over least", max(shares) / min(shares), "ratio", CONSTANT, against
                )
            )
        else:
            rows.append(told(case, growth, "ratio", f"(N-1) grows {(last - 1) / (first - 1):.0f} times"))
    return rows


def exact() -> dict[str, Codec]:
    """Answers without any loss: what is left is that shards are clipped one by one."""
    return {"answers dense, 32 bits": codec("dense", 32)}


def downlinks(uplink: Codec) -> dict[str, Codec]:
    """What owners may answer with."""
    return {
        "answers as the uplink": uplink,
        "answers top 256, 2 bits": codec(topk=256),
        "answers dense, 2 bits": codec("dense", 2, error_decay=1.0),
        "answers dense, 4 bits": codec("dense", 4, error_decay=1.0),
    }


def loss_table(quick: bool, seeds: int) -> list[Row]:
    """Loss of two-way aggregation over that of the all-gather."""
    return [row for method in LOSS[quick] for row in _method_losses(method, quick, seeds)]


def _method_losses(method: str, quick: bool, seeds: int) -> list[Row]:
    flat: list[Trained] = []
    runs: dict[str, list[Trained]] = {}
    for seed in range(1, seeds + 1):
        spec = job(method, 4 if quick else 32, seed, RATES[method])
        data = read(spec)
        one = Peers(spec, data, 4)
        uplink = one.sync.codec(0)
        flat.append(one.train(one.all_gather()))
        for name, downlink in (({} if quick else downlinks(uplink)) | exact()).items():
            one = Peers(spec, data, 4)
            runs.setdefault(name, []).append(one.train(one.two_way(TwoWayAggregation(uplink, downlink))))
    mean = statistics.mean(r.loss for r in flat)
    payload = statistics.mean(r.payload for r in flat)
    yardstick = f"{seeds} seeds, 4 peers, {payload:.0f} B a payload"
    rows = [told(f"{method}, all-gather: held-out loss", mean, "nats/byte", yardstick)]
    for name, several in runs.items():
        costs = [two.loss - one.loss for two, one in zip(several, flat, strict=True)]
        case, cost = f"{method}, two-way, {name}: loss", statistics.mean(costs)
        against = (
            f"all-gather, same seeds ({min(costs):+.4f} to {max(costs):+.4f}); "
            f"{several[0].payload:.0f} B up, {several[0].answer:.0f} B of answers"
        )
        rows.append(told(case, cost, "nats", against) if quick else at_most(case, cost, "nats", COST, against))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smaller model, N = 4 and 64 only, one short training")
    parser.add_argument("--only", choices=("bytes", "loss"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="a results file to add to")
    asked = parser.parse_args()
    before = load()
    if kernels.installed():
        kernels.use("numba")
    if asked.only != "loss":
        for row in bytes_table(asked.quick):
            show("scaling", row, before, asked.out)
    if asked.only != "bytes":
        for row in loss_table(asked.quick, 1 if asked.quick else asked.seeds):
            show("scaling", row, before, asked.out)


if __name__ == "__main__":
    main()
