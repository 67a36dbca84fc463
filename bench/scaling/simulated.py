"""Peers of one job in one process, for benchmarks: the job engine's own steps, codecs, merge and outer step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import torch
import twoway

from farflung.core.crypto import digest
from farflung.core.ids import PeerId
from farflung.core.tensor_layout import Float32
from farflung.job import job_loader
from farflung.job.dataset import Dataset
from farflung.job.io.job_files import read_dataset
from farflung.job.spec import JobSpec
from farflung.train import data_order, flat_model, forward_passes, inner_steps
from farflung.train.public_state import PublicState
from farflung.train.segments import BorderState
from farflung.train.sync_arithmetic import Sync
from farflung.train.worker_messages import AcceptedPayload

SMALL = {
    "model.layers": "2", "model.width": "64", "model.heads": "4", "model.context": "64", "batch": "4",
    "data.limit": "4000000", "schedule.warmup": "30", "sync.steps": "15",
}  # fmt: skip


def job(method: str, rounds: int, seed: int, flags: Mapping[str, str] | None = None) -> JobSpec:
    """A small byte-level GPT (0.1 M parameters) by one sync method with its defaults, unless `flags` say otherwise."""
    given = {**SMALL, "sync.method": method, "rounds": str(rounds), "seed": str(seed), **(flags or {})}
    return job_loader.load(None, flags=given).spec


def read(spec: JobSpec) -> Dataset:
    """The tokens of a job, from this Python's own sources."""
    return read_dataset(spec.data, spec.model, Path.cwd())


class Trained(NamedTuple):
    """What a run gave: held-out loss in nats a byte, and the mean bytes of a peer's contribution to a round."""

    loss: float
    payload: float
    answer: float = 0.0  # bytes of all owners' answers to a round


Exchange = Callable[[Sync, PublicState, list[Float32]], tuple[Float32, float, float]]


class Peers:
    """`count` peers that train the same job from round 0."""

    def __init__(self, spec: JobSpec, data: Dataset, count: int) -> None:
        torch.set_num_threads(1)
        self.spec, self.data = spec, data
        self.model = flat_model.build(spec, b"")
        self.layout, self.sync = self.model.layout, Sync.of(spec)
        self.peers = [PeerId(bytes([i + 1]) * 32) for i in range(count)]
        self.state = self.sync.initial(flat_model.initial(spec, self.model))
        self.inner = [BorderState(0, 0) for _ in self.peers]
        self.weight = spec.round_tokens

    def round(self, exchange: Exchange) -> tuple[float, float]:
        """One round of everybody; `exchange` turns the peers' changes into the mean change."""
        changes = []
        for member, held in enumerate(self.inner):
            at = BorderState(self.state.round, held.step, self.state.params, held.vectors)
            steps = inner_steps.batches(self.data.train, self.spec, self.state.round, member)
            done = inner_steps.run_steps(
                self.model, self.spec, at, steps, member, range(self.spec.sync.steps), lambda: None
            )
            self.inner[member] = done.end
            assert done.end.params is not None
            changes.append(done.end.params - self.state.params)
        mean, payload, answer = exchange(self.sync, self.state, changes)
        self.state = self.sync.moved(self.state, self.layout, mean)
        return payload, answer

    def train(self, exchange: Exchange) -> Trained:
        """All rounds, and the loss after them."""
        sizes = [self.round(exchange) for _ in range(self.spec.rounds)]
        count = len(sizes)
        return Trained(self.loss(), sum(p for p, _ in sizes) / count, sum(a for _, a in sizes) / count)

    def loss(self) -> float:
        """Held-out loss of public state, on up to 32,768 bytes."""
        rows = data_order.windows(self.data.heldout, self.spec.model.context, 1 << 15)
        self.model.put(self.state.params)
        return forward_passes.mean_loss(self.model, self.spec.model, self.spec.batch, rows, lambda: None)

    def all_gather(self) -> Exchange:
        """Everybody decodes everybody's payload."""
        residuals: list[Float32 | None] = [None] * len(self.peers)

        def exchange(sync: Sync, state: PublicState, changes: list[Float32]) -> tuple[Float32, float, float]:
            parts = []
            for i, (peer, change) in enumerate(zip(self.peers, changes, strict=True)):
                about = sync.about(state, self.layout, peer)
                residuals[i], payload = sync.codec(state.round).encode(residuals[i], change, self.layout, about)
                parts.append(AcceptedPayload(peer, self.weight, payload))
            mean_bytes = sum(len(p.payload) for p in parts) / len(parts)
            return sync.merged(state, self.layout, parts).values, mean_bytes, 0.0

        return exchange

    def two_way(self, method: twoway.TwoWayAggregation) -> Exchange:
        """Owners sum and re-encode (bench/twoway.py)."""
        shards = twoway.shards(self.layout, digest("bench/job/1"), self.peers)
        residuals: list[Float32 | None] = [None] * len(self.peers)
        unsent: dict[PeerId, Float32 | None] = {shard.owner: None for shard in shards}

        def exchange(sync: Sync, state: PublicState, changes: list[Float32]) -> tuple[Float32, float, float]:
            at, sent = sync.about(state, self.layout, self.peers[0]), {}
            for i, (peer, change) in enumerate(zip(self.peers, changes, strict=True)):
                residuals[i], sent[peer] = method.send(residuals[i], change, shards, at._replace(peer=peer))
            answers = {}
            for shard in shards:
                parts = [AcceptedPayload(peer, self.weight, sent[peer][shard.owner]) for peer in self.peers]
                unsent[shard.owner], answers[shard.owner] = method.combine(unsent[shard.owner], shard, parts, at)
            up = sum(len(p) for mine in sent.values() for p in mine.values()) / len(self.peers)
            change = method.receive(self.layout, shards, answers, at)
            return change, up, float(sum(map(len, answers.values())))

        return exchange
