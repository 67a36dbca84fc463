"""Computes a run's time: FLOP over the measured rate, process start-up, and each round's time beside training.

FLOP per token as in Kaplan et al. 2020 (6 per parameter) and Chowdhery et al. 2022 (12 L h T for attention).

Audits run beside the next round. With W core-seconds of training, A of audits, N members and c cores, training and
audits end after max(W / min(N, c), (W + A) / c): where cores are to spare they cost nothing but the last round's, for
which everybody waits. All constants below are for a machine that does nothing else.
"""

from __future__ import annotations

from typing import Final

import msgspec

from farflung.core import limits
from farflung.core.tensor_layout import TensorLayout
from farflung.core.units import Flop, Seconds
from farflung.job.spec import JobSpec
from farflung.plan import audit_costs
from farflung.plan.exchange_paths import HERE, RunLinks
from farflung.plan.line_seconds import waits
from farflung.plan.machine import MachineMeasurements
from farflung.plan.run_traffic import RunTraffic
from farflung.plan.state_vectors import FLOAT, carried_vectors, inner_vectors
from farflung.plan.worker_memory import RELAYS

EFFICIENCY: Final = 0.6  # of the sgemm rate, reached by forward, backward and optimizer on one core
START_NODE: Final = 2.5  # core-seconds to start one node: its agent, and a worker that imports torch
START_WORKER: Final = 2.0  # of it, the worker; the supervisor has one too
START_AGENT: Final = 0.5  # to start ledger, relay, requester or checker
START_NETWORK: Final = 2.0  # seconds for listeners, genesis, escrow and match
# Seconds of the profile run that are no training: the classes' set-up, distances in float64.
PROFILE: Final = 1.5
PROFILE_STEPS: Final = 48  # that it trains: three stretches of three in four classes, and four shortcuts
NEWTON_SCHULZ: Final = 5  # iterations of Muon in one step
BORDER: Final = 0.02  # share of training that hashing and keeping the states at the segments' borders adds
AUDIT: Final = 0.25  # core-seconds of one audit, whatever its size: messages, Merkle paths, files
AUDIT_BYTE: Final = 2e-8  # core-seconds to pack, seal, send, fetch, open, hash and write one byte of a state
ROUND_LATENCY: Final = 0.25  # seconds a round waits for messages, blocks and disks, whatever its size
ALONE_THREADS: Final = 4  # at most, of one machine that trains alone: small models gain nothing from more
SECOND_THREAD: Final = 0.5  # of the first thread's work, what each further one adds
PART_ELEMENT: Final = 5e-9  # core-seconds to decode one payload, per element of public state
CENTRED_ELEMENT: Final = 1.5e-7  # the same, where sync.merge = "centered" looks for the centre of all
MERGE_ELEMENT: Final = 1.5e-8  # core-seconds to apply, hash and store one element of public state
DECODE_BYTE: Final = 2e-8  # core-seconds to seal, send, fetch, open and decode one payload byte


ANSWER_LEAST: Final = 180.0  # seconds for an answer of a verifier: states on their way, a worker that starts
SERVED_MOST: Final = 3.0 * limits.OWED_SECONDS
# Times the seconds of the training: slower machines, and cores that others use as well.
ANSWER_TIMES: Final = 4


class RunDuration(msgspec.Struct, frozen=True):
    """Where the time goes. `flop` counts all members; evaluation is the requester's own."""

    flop: Flop
    start: Seconds
    compute: Seconds
    audit: Seconds  # that audits add to training, and the wait for the last ones
    evaluate: Seconds
    sync: Seconds
    # For which lines are waited for, beyond all that (plan.line_seconds): at the start, in rounds, for audits.
    arriving: Seconds = Seconds(0.0)
    exchanging: Seconds = Seconds(0.0)
    opening: Seconds = Seconds(0.0)

    @property
    def lines(self) -> Seconds:
        """All waiting for lines."""
        return Seconds(self.arriving + self.exchanging + self.opening)

    @property
    def total(self) -> Seconds:
        """The whole run, from command to result."""
        return Seconds(self.start + self.compute + self.audit + self.evaluate + self.sync + self.lines)


def forward_flop(spec: JobSpec, layout: TensorLayout) -> Flop:
    """FLOP of one token's forward pass; attention of a user's module is unknown and not counted."""
    model = spec.model
    attention = 4.0 * model.layers * model.width * model.context if model.kind == "gpt" else 0.0
    return Flop(2.0 * layout.size + attention)


def token_flop(spec: JobSpec, layout: TensorLayout) -> Flop:
    """FLOP of training on one token: a backward pass costs two forward ones, and blocks that are computed again one."""
    return Flop((4.0 if spec.model.recompute == "blocks" else 3.0) * forward_flop(spec, layout))


def train_flop(spec: JobSpec, layout: TensorLayout) -> Flop:
    """FLOP of the whole run, all members."""
    tokens = spec.round_tokens * spec.rounds * spec.network.providers
    steps = spec.steps * spec.network.providers
    return Flop(token_flop(spec, layout) * tokens + optimizer_flop(spec, layout) * steps)


def optimizer_flop(spec: JobSpec, layout: TensorLayout) -> Flop:
    """FLOP of one step of the inner optimizer, where they count: Muon's products (Jordan et al. 2024).

    Each of NEWTON_SCHULZ iterations on a matrix of sides n <= m makes x x^T, its square, and their product with x:
    4 n^2 m + 2 n^3. Tables that a token looks up (a side is the vocabulary or the context) are AdamW's.
    """
    if spec.optimizer.name != "muon":
        return Flop(0.0)
    tables = {spec.model.vocabulary, spec.model.context}
    sides = [
        sorted((tensor.shape[0], tensor.size // tensor.shape[0]))
        for tensor in layout.tensors
        if len(tensor.shape) >= 2 and tensor.shape[0] not in tables
    ]
    return Flop(NEWTON_SCHULZ * float(sum(4 * n * n * m + 2 * n**3 for n, m in sides)))


def step_seconds(spec: JobSpec, layout: TensorLayout, machine: MachineMeasurements) -> Seconds:
    """One local step of one peer on one core of `machine`, which has nothing else to do."""
    tokens = spec.batch * spec.model.context
    flop = token_flop(spec, layout) * tokens + optimizer_flop(spec, layout)
    return Seconds(flop / (machine.flops_per_core * EFFICIENCY))


def evaluated_tokens(spec: JobSpec) -> int:
    """Validation tokens judged: before the first round and at the end the same, and every `every` rounds between."""
    every = spec.evaluate.every
    between = (spec.rounds - 1) // every if every > 0 else 0
    return 2 * spec.evaluate.final_tokens + between * spec.evaluate.tokens


def start_seconds(spec: JobSpec, layout: TensorLayout, machine: MachineMeasurements) -> float:
    """From the command to the first round: all processes over the cores; the profile run when there is an audit."""
    verifiers = spec.verifiers
    agents = 3 + (RELAYS if spec.hidden else 0)
    nodes = (spec.network.providers + verifiers) * START_NODE
    started = (nodes + START_WORKER + agents * START_AGENT) / max(1, machine.cores)
    if not verifiers:
        return START_NETWORK + started
    tokens = PROFILE_STEPS * spec.batch * spec.model.context
    trained = token_flop(spec, layout) * tokens / (machine.flops_per_core * EFFICIENCY)
    return START_NETWORK + started + PROFILE + trained


def alone_seconds(spec: JobSpec, layout: TensorLayout, machine: MachineMeasurements) -> Seconds:
    """One machine that trains alone on all members' tokens, and is judged as often as the run."""
    flop = train_flop(spec, layout) + forward_flop(spec, layout) * evaluated_tokens(spec)
    gain = 1.0 + SECOND_THREAD * (min(max(1, machine.cores), ALONE_THREADS) - 1)
    return Seconds(flop / (machine.flops_per_core * EFFICIENCY * gain))


def audit_work(spec: JobSpec, layout: TensorLayout, traffic: RunTraffic, rate: float) -> float:
    """Core-seconds of all audits that are expected: work repeated or scored at `rate` FLOP/s, and moved states."""
    count, scored = audit_costs.expected(spec).count, audit_costs.scores(spec)
    tokens = count * spec.round_tokens / spec.segments + float(scored.rounds * scored.units)
    return token_flop(spec, layout) * tokens / rate + count * AUDIT + traffic.audit * AUDIT_BYTE


def answer_seconds(spec: JobSpec, layout: TensorLayout, machine: MachineMeasurements) -> Seconds:
    """Within which a verifier answers, before the next one is asked.

    At worst it trains a round's longest segment of every member again, one after the other: ANSWER_TIMES what one core
    of this machine takes for that, and peers serve it states as slowly as they may. What a verifier says of its own
    machine has no part in it.
    """
    tokens = spec.network.providers * audit_costs.longest(spec)
    trained = token_flop(spec, layout) * tokens / (machine.flops_per_core * EFFICIENCY)
    return Seconds(max(ANSWER_LEAST, ANSWER_TIMES * trained + min(served_seconds(spec, layout), SERVED_MOST)))


def served_seconds(spec: JobSpec, layout: TensorLayout) -> Seconds:
    """What a peer may take for what it owes in one half of an audit: a state that is sealed, and two that are moved."""
    vectors = 1 + inner_vectors(spec) + carried_vectors(spec.sync)
    return Seconds(3.0 * FLOAT * layout.size * vectors / limits.OWED_RATE)


def duration(
    spec: JobSpec, layout: TensorLayout, traffic: RunTraffic, machine: MachineMeasurements, network: RunLinks = HERE
) -> RunDuration:
    """Seconds on one machine that runs all members as single-threaded processes, time-shared over its cores.

    `network`: the lines between them, which are waited for where members are apart.
    """
    members, cores = spec.network.providers, max(1, machine.cores)
    rate = machine.flops_per_core * EFFICIENCY
    shared = min(members, cores)
    flop = train_flop(spec, layout)
    work = flop / rate * (1.0 + BORDER)
    audited, count = audit_work(spec, layout, traffic, rate), audit_costs.expected(spec).count
    beside = max(0.0, (work + audited) / cores - work / shared)
    part = PART_ELEMENT + CENTRED_ELEMENT * (spec.sync.merge == "centered")
    merge = (members + 1) * layout.size * (members * part + MERGE_ELEMENT)
    touched = traffic.sync_round * DECODE_BYTE
    sync = spec.rounds * (ROUND_LATENCY + (merge + touched) / shared)
    opened = audit_costs.moved(spec, audit_costs.expected(spec), lambda vectors: FLOAT * layout.size * vectors)
    one = token_flop(spec, layout) * spec.round_tokens / spec.segments / rate
    waited = waits(spec, network, traffic, opened / count if count else 0.0, one)
    within = (work / shared + beside + sync + waited.exchange) / spec.rounds
    return RunDuration(
        flop=flop,
        start=Seconds(start_seconds(spec, layout, machine)),
        compute=Seconds(work / shared),
        audit=Seconds(beside + (audited / count if count else 0.0)),
        evaluate=Seconds(forward_flop(spec, layout) * evaluated_tokens(spec) / rate),
        sync=Seconds(sync),
        arriving=waited.start,
        exchanging=waited.exchange,
        opening=Seconds(waited.beyond(within)),
    )
