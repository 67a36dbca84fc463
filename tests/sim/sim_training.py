"""Real training in simulated rounds: peers with text of their own, who come and go, and any order of arrival.

Each peer does what the job engine does (train.inner_steps, train.sync_arithmetic); only the network between them
is missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
import torch

from farflung.core.ids import Hash, PeerId
from farflung.job import job_loader
from farflung.job.spec import JobSpec
from farflung.train import data_order, flat_model, inner_steps
from farflung.train.public_state import PublicState
from farflung.train.segments import BorderState
from farflung.train.sync_arithmetic import Sync
from farflung.train.worker_messages import AcceptedPayload

JOB = {
    "model.layers": "1", "model.width": "16", "model.heads": "2", "model.context": "16", "batch": "8",
    "rounds": "12", "sync.steps": "8", "schedule.warmup": "8", "audit.segments": "1",
}  # fmt: skip
RATE = {"sparse_loco": "0.02", "muloco": "0.02"}
LETTERS = b"abcdefghijklmnopqrstuvwxyz"
HELDOUT = 2048  # of each domain: nobody trains on it


def job(method: str, **said: str) -> JobSpec:
    """A tiny GPT by one method with its defaults; what is said as section__key."""
    dotted = {name.replace("__", "."): value for name, value in said.items()}
    flags = {**JOB, "sync.method": method, "optimizer.lr": RATE[method], **dotted}
    return job_loader.load(None, flags=flags).spec


def domain(number: int, size: int = 6000) -> np.ndarray:
    """A language of its own: random sentences of 16 words that no other domain has, over the same letters."""
    generator = np.random.Generator(np.random.Philox(key=number))
    letters = np.frombuffer(LETTERS, np.uint8)
    words = [bytes(generator.choice(letters, 4)) + b" " for _ in range(16)]
    text = b"".join(words[i] for i in generator.integers(0, len(words), size // 5))
    return np.frombuffer(text, np.uint8).copy()


def peer_id(number: int) -> PeerId:
    return PeerId(bytes([number + 1]) * 32)


@dataclass
class Peer:
    """One peer: its text, and its private state, which nobody else needs."""

    number: int
    tokens: np.ndarray
    weight: int
    inner: BorderState = field(default_factory=lambda: BorderState(0, 0))
    residual: np.ndarray | None = None

    @property
    def id(self) -> PeerId:
        return peer_id(self.number)


class Training:
    """One job's public state, and the arithmetic that everybody shares."""

    def __init__(self, spec: JobSpec) -> None:
        torch.set_num_threads(1)
        self.spec, self.sync = spec, Sync.of(spec)
        self.model = flat_model.build(spec, b"")
        self.layout = self.model.layout
        self.state = self.sync.initial(flat_model.initial(spec, self.model))

    def peers(self, weights: Sequence[int]) -> list[Peer]:
        """Peer i reads domain i; `weights` in rounds' tokens."""
        return [Peer(i, domain(i)[HELDOUT:], weight * self.spec.round_tokens) for i, weight in enumerate(weights)]

    def contribute(self, peer: Peer) -> AcceptedPayload:
        """H inner steps from public state on the peer's own text; its private state moves on."""
        state = self.state
        begin = BorderState(state.round, peer.inner.step, state.params, peer.inner.vectors)
        batches = inner_steps.batches(peer.tokens, self.spec, state.round, peer.number)
        steps = range(self.spec.sync.steps)
        peer.inner = inner_steps.run_steps(self.model, self.spec, begin, batches, peer.number, steps, lambda: None).end
        assert peer.inner.params is not None
        sent = self.sync.encode(state, peer.residual, None, peer.inner.params, self.layout, peer.id)
        peer.residual = sent.residual
        return AcceptedPayload(peer.id, peer.weight, sent.payload)

    def merge(self, parts: Iterable[AcceptedPayload]) -> Hash:
        """Everybody's next public state; returns its root."""
        self.state = self.sync.apply(self.state, self.layout, list(parts))
        return self.state.root(self.layout)

    def round(self, peers: Iterable[Peer]) -> Hash:
        """One round of these peers."""
        return self.merge([self.contribute(peer) for peer in peers])

    def alone(self, peer: Peer) -> np.ndarray:
        """The same number of steps by one peer, who agrees with nobody: weights after it."""
        at = BorderState(0, 0, self.state.params)
        for number in range(self.spec.rounds):
            begin = BorderState(number, at.step, at.params, at.vectors)
            batches = inner_steps.batches(peer.tokens, self.spec, number, peer.number)
            steps = range(self.spec.sync.steps)
            at = inner_steps.run_steps(self.model, self.spec, begin, batches, peer.number, steps, lambda: None).end
        assert at.params is not None
        return at.params

    def loss(self, params: np.ndarray, domains: Iterable[int]) -> float:
        """Mean validation loss in nats a byte over these domains."""
        self.model.put(params)
        losses = []
        with torch.no_grad():
            for number in domains:
                x_NT, y_NT = data_order.windows(domain(number)[:HELDOUT], self.spec.model.context, HELDOUT)
                x_NT, y_NT = inner_steps.tensors((x_NT.astype(np.int64), y_NT.astype(np.int64)))
                losses.append(float(self.model.loss(x_NT, y_NT)))
        return float(np.mean(losses))


def copied(state: PublicState) -> PublicState:
    """The same public state, as a peer that joins gets it."""
    return PublicState(state.round, state.params.copy(), {n: v.copy() for n, v in state.vectors.items()})


def with_rounds(spec: JobSpec, rounds: int) -> JobSpec:
    return msgspec.structs.replace(spec, rounds=rounds)
