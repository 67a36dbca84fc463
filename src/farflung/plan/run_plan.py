"""Plans a run before anything is spent: bytes, memory, time and price, or a refusal that says what to change."""

from __future__ import annotations

from typing import Final

import msgspec

from farflung.compress.codecs import check_bound
from farflung.core import limits
from farflung.core.errors import PolicyError
from farflung.core.events import PlanEvent
from farflung.core.money import parse_credits
from farflung.core.tensor_layout import TensorLayout
from farflung.core.units import Bytes, Seconds, Tokens, format_bytes, format_rate
from farflung.job import proof_class
from farflung.job.methods.registry import method_of
from farflung.job.spec import JobSpec, SyncSpec
from farflung.job.spec_checks import RANGES
from farflung.plan.committee_traffic import committee_bytes
from farflung.plan.exchange_paths import HERE, RunLinks
from farflung.plan.machine import MachineMeasurements
from farflung.plan.run_duration import RunDuration, alone_seconds, answer_seconds, duration
from farflung.plan.run_price import RunPrice, price
from farflung.plan.run_traffic import RunTraffic, lasting, traffic
from farflung.plan.state_vectors import (
    FLOAT,
    carried_vectors,
    codec_of,
    densities,
    inner_vectors,
    opened_bytes,
    outer_vectors,
    owed_rate,
)
from farflung.plan.worker_memory import StepMemory, WorkerMemory, memory

HEADROOM: Final = 0.95  # share of the machine's usable memory that a plan may fill


class PlannedFees(msgspec.Struct, frozen=True):
    """Pico-credits: `price` that relays are paid for a GiB, `planned` for what the plan sends through them, and the
    `most` that is put aside for them.
    """

    price: int
    planned: int
    most: int


class RunPlan(msgspec.Struct, frozen=True):
    """All estimates of a run. `event` is how screens and the event log see it."""

    spec: JobSpec
    parameters: int
    tokens: Tokens
    data_bytes: Bytes
    traffic: RunTraffic
    memory: WorkerMemory
    duration: RunDuration
    price: RunPrice
    cores: int
    alone: Seconds  # that one machine takes to train on all members' tokens
    answer: Seconds  # within which a verifier answers
    lines: str  # which lines this reckons with
    validators: int = 1  # of the ledger
    committee: Bytes = Bytes(0)  # of control: what is sent because there are several of them
    fees: PlannedFees | None = None  # None: relays carry for nothing, or there are none

    def event(self, run: str, at: float = 0.0, *, baseline: bool = False) -> PlanEvent:
        """The plan of run folder `run` as an event; `memory_bytes` is one worker's peak.

        `baseline`: one machine will be trained on the same tokens when the run is over.
        """
        spec = self.spec
        return PlanEvent(
            at=at,
            name=spec.name,
            run=run,
            model=describe_model(spec),
            parameters=self.parameters,
            rounds=spec.rounds,
            steps=spec.steps,
            peers=spec.network.providers,
            tokens=self.tokens,
            sync_bytes=self.traffic.sync,
            sync_most=self.traffic.sync_most,
            way=self.traffic.forecast.way.value,
            up_round=self.traffic.up_round,
            down_round=self.traffic.down_round,
            lines=self.lines,
            ring_bytes=self.traffic.ring,
            memory_bytes=self.memory.worker,
            seconds=self.duration.total,
            price=self.price.price,
            escrow=self.price.escrow,
            data_bytes=self.data_bytes,
            sync=describe_sync(spec),
            cores=self.cores,
            baseline_seconds=self.alone if baseline else 0.0,
            validators=self.validators,
            committee_bytes=self.committee,
            proof=proof_class.foreseen(spec),
            unit_price=parse_credits(spec.unit_price),
            is_text=spec.data.is_text,
        )


def describe_model(spec: JobSpec) -> str:
    """The model in a few words: `gpt 4x128, 4 heads, context 128`, or the user's `file.py:function`."""
    model = spec.model
    if model.kind == "module":
        return model.module
    return f"gpt {model.layers}x{model.width}, {model.heads} heads, context {model.context}"


def describe_sync(spec: JobSpec) -> str:
    """The sync method in a few words: `sparse_loco H=15 topk 256/4096 2-bit`."""
    sync = spec.sync
    hidden = ", a round late" if sync.delay else ""
    return f"{sync.method} H={sync.steps} {describe_codec(sync)}{hidden}"


def describe_codec(sync: SyncSpec) -> str:
    """The codec in a few words: `dense 2-bit`, `topk 32/4096 fp32 dct`, `low_rank 4`."""
    return method_of(sync.method).describe(sync)


def advise(
    spec: JobSpec,
    layout: TensorLayout,
    dataset_bytes: int,
    machine: MachineMeasurements,
    network: RunLinks = HERE,
    validators: int = 1,
    step: StepMemory | None = None,
) -> RunPlan:
    """Plans a local run, with its traced `step` where there is one.

    Raises PolicyError FF-PLAN-001 (budget), FF-PLAN-002 (memory), FF-PLAN-003 (a state is too large for a store),
    FF-PLAN-004 (lines are too slow to open one), FF-COMP-023 (a payload is too long).
    """
    _refuse_too_large_states(spec, layout)
    _refuse_too_slow_lines(spec, layout, network)
    sent = traffic(spec, layout, dataset_bytes, codec_of(spec.sync, spec.rounds), network)
    need = memory(spec, layout, dataset_bytes, step, machine.torch)
    _refuse_too_little_memory(need, spec, machine)
    cost = price(spec)
    took = duration(spec, layout, sent, machine, network)
    sent = lasting(sent, spec, took.total, is_apart=network.is_apart)
    agreed = committee_bytes(spec, validators)
    sent = msgspec.structs.replace(sent, control=Bytes(sent.control + agreed))
    return RunPlan(
        spec=spec,
        parameters=layout.size,
        tokens=cost.units,
        data_bytes=Bytes(dataset_bytes),
        traffic=sent,
        memory=need,
        duration=took,
        lines=network.told,
        price=cost,
        cores=machine.cores,
        alone=alone_seconds(spec, layout, machine),
        answer=answer_seconds(spec, layout, machine),
        validators=validators,
        committee=agreed,
    )


def _refuse_too_large_states(spec: JobSpec, layout: TensorLayout) -> None:
    """Each state is one object of a store, and so is each payload. Raises PolicyError FF-PLAN-003, FF-COMP-023."""
    method = method_of(spec.sync.method)
    for topk in densities(spec.sync, spec.rounds):
        check_bound(method.codec(spec.sync, topk), layout)
    vectors = max(1 + outer_vectors(spec.sync), 1 + inner_vectors(spec) + carried_vectors(spec.sync))
    size = FLOAT * layout.size * vectors + limits.MIB  # with its head
    if size > limits.OBJECT_BYTES:
        raise PolicyError(
            "FF-PLAN-003",
            f"a state of this run has {format_bytes(size)}, and a store takes {format_bytes(limits.OBJECT_BYTES)}",
            cause=f"{layout.size:,} parameters, and {vectors - 1} more vectors as long as they are",
            hint=f"take a model of {(limits.OBJECT_BYTES - limits.MIB) // (FLOAT * vectors):,} parameters or fewer",
        )


def _refuse_too_slow_lines(spec: JobSpec, layout: TensorLayout, network: RunLinks) -> None:
    """Who sends a state too slowly is found to withhold it: no line may make an honest provider guilty."""
    needed, had = 8 * owed_rate(spec, layout), network.member.up
    if network.is_apart and had < needed:
        raise PolicyError(
            "FF-PLAN-004",
            f"audits need providers that send {format_rate(needed)}, and their lines have {format_rate(had)}",
            cause=f"a state of {format_bytes(opened_bytes(spec, layout))} has to come within an hour",
            hint="take a smaller model, hire providers with faster lines, or set audit.rate = 0",
        )


def _refuse_too_little_memory(need: WorkerMemory, spec: JobSpec, machine: MachineMeasurements) -> None:
    usable = int(machine.memory_bytes * HEADROOM)
    if need.network <= usable:
        return
    fit = need.members_in(usable, spec.network.providers)
    if fit >= RANGES["network.providers"].low:
        changes = [f"set network.providers = {fit}"]
    else:
        changes = ["set fewer network.verifiers"] * bool(need.verifiers) + ["take a smaller model"]
    if spec.pass_rows > 1:
        less = f"batch below its present value ({format_bytes(need.activations)} of a worker are activations)"
        changes += [less, f"accumulate = {spec.batch}"]
    if spec.model == msgspec.structs.replace(spec.model, kind="gpt", recompute="none"):
        changes.append('model.recompute = "blocks"')
    raise PolicyError(
        "FF-PLAN-002",
        f"the run needs {format_bytes(need.network)} of memory, this machine has {format_bytes(usable)} to use",
        cause=f"{need.workers} workers of {format_bytes(need.worker)}, and {format_bytes(need.agents)} for agents",
        hint=", or ".join(changes),
    )
