"""How long a run takes: FLOP over the measured rate, plus starting processes, plus what a round costs beside training.

FLOP per token as in Kaplan et al. 2020 (6 per parameter) and Chowdhery et al. 2022 (12 L h T for attention).
"""

from __future__ import annotations

from typing import Final

import msgspec

from farflung.core.layout import Layout
from farflung.core.units import Flop, Seconds
from farflung.job.spec import JobSpec
from farflung.plan.machine import Machine
from farflung.plan.traffic import Traffic

EFFICIENCY: Final = 0.6  # of the sgemm rate, reached by forward, backward and optimizer on one core
START_PROCESS: Final = 2.5  # core-seconds to start an agent and a worker that imports torch
START_NETWORK: Final = 2.0  # seconds for listeners, genesis, escrow and match
ROUND_LATENCY: Final = 0.25  # seconds a round waits for messages, blocks and disks, whatever its size
PART_ELEMENT: Final = 5e-9  # core-seconds to decode one payload, per element of public state
MERGE_ELEMENT: Final = 1.5e-8  # core-seconds to apply, hash and store one element of public state
DECODE_BYTE: Final = 2e-8  # core-seconds to seal, send, fetch, open and decode one payload byte


class Duration(msgspec.Struct, frozen=True):
    """Where the time goes. `flop` counts all members; evaluation is the requester's own."""

    flop: Flop
    start: Seconds
    compute: Seconds
    evaluate: Seconds
    sync: Seconds

    @property
    def total(self) -> Seconds:
        """The whole run, from command to result."""
        return Seconds(self.start + self.compute + self.evaluate + self.sync)


def forward_flop(spec: JobSpec, layout: Layout) -> Flop:
    """FLOP of one token's forward pass; attention of a user's module is unknown and not counted."""
    model = spec.model
    attention = 4.0 * model.layers * model.width * model.context if model.kind == "gpt" else 0.0
    return Flop(2.0 * layout.size + attention)


def train_flop(spec: JobSpec, layout: Layout) -> Flop:
    """FLOP of the whole run, all members: a backward pass costs two forward ones."""
    tokens = spec.round_tokens * spec.rounds * spec.network.providers
    return Flop(3.0 * forward_flop(spec, layout) * tokens)


def evaluated_tokens(spec: JobSpec) -> int:
    """Held-out tokens judged: before the first round, every `every` rounds, and at the end."""
    every = spec.evaluate.every
    return (
        spec.evaluate.tokens * (1 + (spec.rounds // every if every > 0 else 0)) + spec.evaluate.final_tokens
    )


def duration(spec: JobSpec, layout: Layout, traffic: Traffic, machine: Machine) -> Duration:
    """Seconds on one machine that runs all members as single-threaded processes, time-shared over its cores."""
    members = spec.network.providers
    rate = machine.flops_per_core * EFFICIENCY
    shared = max(1, min(members, machine.cores))
    flop = train_flop(spec, layout)
    merge = (members + 1) * layout.size * (members * PART_ELEMENT + MERGE_ELEMENT)
    touched = traffic.sync_round * DECODE_BYTE
    return Duration(
        flop=flop,
        start=Seconds(START_NETWORK + (members + 1) * START_PROCESS / max(1, machine.cores)),
        compute=Seconds(flop / (shared * rate)),
        evaluate=Seconds(forward_flop(spec, layout) * evaluated_tokens(spec) / rate),
        sync=Seconds(spec.rounds * (ROUND_LATENCY + (merge + touched) / shared)),
    )
