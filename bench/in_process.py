"""Trains several peers of one job in one process, round by round: the method without the network.

The same functions as in a worker (train.round_work, train.sync_arithmetic), hence the same bits as a run of as many
processes on this class of machine. For benchmarks, tests and questions about a method; nothing here is paid, audited
or secret.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from farflung.core.ids import PeerId
from farflung.core.tensor_layout import Float32
from farflung.job.dataset import Dataset, pack
from farflung.job.spec import JobSpec
from farflung.train import data_order, flat_model, loss_probe, round_work, worker_messages
from farflung.train.inner_state import InnerState
from farflung.train.public_state import PublicState
from farflung.train.round_work import WorkerJob
from farflung.train.sync_arithmetic import Sync
from farflung.train.worker_messages import AcceptedPayload


@dataclass
class InProcessRun:
    """`peers` train by turns. `public` and `inner` are the run's state; `sent` counts payload bytes of one peer."""

    job: WorkerJob
    public: PublicState
    inner: list[InnerState]
    sent: int = 0
    losses: list[float] = field(default_factory=list)

    @classmethod
    def of(cls, spec: JobSpec, data: Dataset, peers: int) -> InProcessRun:
        """A job before its first round. Raises what train.flat_model and compress.registry raise."""
        torch.set_flush_denormal(False)
        built = flat_model.build(spec, b"")
        start = flat_model.initial(spec, built)
        setup = worker_messages.SetupCommand(spec, pack(data), b"", 0, _peer(0))
        job = WorkerJob(setup, data, built, Sync.of(spec), start)
        return cls(job, job.sync.initial(start), [InnerState() for _ in range(peers)])

    def round(self, members: Sequence[int] | None = None) -> None:
        """One round of all peers, or of some."""
        parts, losses = list[AcceptedPayload](), list[float]()
        for member in range(len(self.inner)) if members is None else members:
            part, seen = self._one(member)
            parts.append(part)
            losses.append(seen)
        self.sent += max(len(part.payload) for part in parts)
        self.losses.append(float(np.mean(losses)))
        self.public = self.job.sync.apply(self.public, self.job.model.layout, parts)

    def _one(self, member: int) -> tuple[AcceptedPayload, float]:
        held, job = self.inner[member], replace(self.job, setup=_of_member(self.job, member))
        made = round_work.trained(job, self.public, held, job.batches(self.public.round, member), _quiet)
        sent = round_work.encoded(job, self.public, job.setup.peer, made.states[0], made.end)
        end = made.states[-1]
        self.inner[member] = InnerState(self.public.round + 1, end.step, end.vectors, sent.residual, sent.offset)
        return AcceptedPayload(job.setup.peer, job.spec.round_tokens, sent.payload), float(np.mean(made.losses))

    def heldout(self, tokens: int) -> float:
        """Mean loss in nats per token of the public weights on the first held-out tokens."""
        return heldout(self.job, self.public.params, tokens)


def heldout(job: WorkerJob, params: Float32, tokens: int) -> float:
    """Mean loss in nats per token of weights of shape (size,) on the first held-out tokens."""
    rows = data_order.windows(job.data.heldout, job.spec.model.context, tokens)
    return loss_probe.loss(job, params, rows, _quiet)


def _of_member(job: WorkerJob, member: int) -> worker_messages.SetupCommand:
    setup = job.setup
    return worker_messages.SetupCommand(setup.spec, setup.dataset, setup.module, member, _peer(member))


def _peer(member: int) -> PeerId:
    return PeerId(member.to_bytes(4, "little") * 8)


def _quiet() -> None:
    """Nobody waits for a sign of life."""
