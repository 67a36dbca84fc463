"""Evaluates layouts in which every host trains the whole model.

They exchange periodically, at every step, or shard their states (T7).

    rounds         each host steps on its own; the method is the one that suits the subset's slowest line
                   (advice.method_choice)
    data parallel  a ring all-reduce of bfloat16 gradients each step, behind the backward pass: two thirds of compute
    sharded        FSDP over all cards: parameters gathered forward and backward, gradients reduced, for each
                   micro-batch, behind compute (Zhao et al. 2023, section 3.3)

A round waits for its slowest member, a step for its slowest rank: similar cards only where they wait at every step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import msgspec

from farflung.advice import method_loss_table
from farflung.advice.job_work import WIRE, JobWork
from farflung.advice.layouts import checkpoint_policy, host_routes, host_speed, machine_admission
from farflung.advice.layouts.host_subsets import SIMILAR
from farflung.advice.layouts.memory_fit import MemoryFit, replica, room
from farflung.advice.layouts.training_options import (
    DerivedFact,
    Found,
    HostLoad,
    InfeasibleOption,
    LayoutKind,
    TrainingOption,
    held,
    mean_churn,
    memory_of,
    precise,
)
from farflung.advice.memory.breakdown import MemoryPlace
from farflung.advice.memory.model_states import StateRecipe, ZeroSplit
from farflung.advice.method_choice import DENSE, choose
from farflung.advice.method_costs import TRIPS, MethodEstimate, MethodSetting, sync_of
from farflung.advice.offers.offer_file import OfferedHost
from farflung.advice.traffic import collective_times
from farflung.advice.traffic.access_links import RankGroup
from farflung.advice.traffic.collectives import all_reduce, span
from farflung.advice.traffic.traffic_terms import TrafficPhase
from farflung.core.units import Seconds, format_bytes, format_count, format_rate
from farflung.job.spec import SyncSpec
from farflung.plan.link_syntax import Link
from farflung.plan.run_plan import describe_codec
from farflung.plan.step_trace import Recomputation

BACKWARD: Final = 2 / 3  # of compute, behind which gradients go: a backward pass is two forward ones
CHURN: Final = 10 * 3600.0  # mean seconds until a host leaves that does not say: a home computer's (docs/plan/advise)
NO_TIME: Final = Seconds(0.0)
LIGHTEST: Final = sync_of(DENSE)  # of what advice.method_choice takes over lines, it keeps least: momentum and residual
SETTLED: Final = 3  # times that a method is chosen for the memory that the one before left


RECOMPUTED: Final = {
    Recomputation.NONE: "nothing is recomputed",
    Recomputation.SELECTIVE: "all but products is recomputed",
    Recomputation.FULL: "all layers are recomputed",
}


class OfferAssumptions(msgspec.Struct, frozen=True):
    """What no offer says."""

    utilisation: float = host_speed.UTILISATION
    churn: float = CHURN


def rounds(work: JobWork, hosts: Sequence[OfferedHost], assumed: OfferAssumptions) -> Found:
    """Whole replicas that agree every H steps; one host alone agrees with nobody and needs no outer step."""
    if len(hosts) == 1:
        return _alone(work, hosts, assumed)
    rooms = _rooms(LayoutKind.ROUNDS, work, work.with_outer(LIGHTEST), hosts, work.batch)
    for _ in range(SETTLED):  # what a method keeps depends on the method, which depends on a step, and that on memory
        if isinstance(rooms, InfeasibleOption):
            return rooms
        step, facts = _slowest(work, hosts, rooms, work.step_tokens, assumed)
        most = work.steps_most(len(hosts), work.step_tokens)
        setting = MethodSetting(work.layout, slowest_line(hosts), len(hosts), Seconds(step), most=most)
        choice = choose(setting)
        before, recipe = rooms, work.with_outer(choice.chosen.sync)
        rooms = _rooms(LayoutKind.ROUNDS, work, recipe, hosts, work.batch)
        if isinstance(rooms, InfeasibleOption) or [_shape(own) for own in rooms] == [_shape(own) for own in before]:
            break
    if isinstance(rooms, InfeasibleOption):
        return rooms
    found = choice.chosen
    if (short := _lacking_ram(work, hosts, rooms, found.sync)) is not None:
        return short
    facts += agreeing(found, setting, choice.reasons)
    kept = checkpoint_policy.renewed(*_lost(work, found, step, hosts, assumed))
    if (blocked := checkpoint_policy.blocked(LayoutKind.ROUNDS, kept)) is not None:
        return blocked
    steps = found.sync.steps
    return _option(
        LayoutKind.ROUNDS,
        f"{found.method} H={steps} {describe_codec(found.sync)}",
        work,
        hosts,
        rooms,
        step=found.step,
        exchange=Seconds(found.step - step),
        steps=steps * math.ceil(work.tokens / (len(hosts) * work.step_tokens * steps)),
        up=found.up,
        down=found.down,
        kept=kept,
        facts=facts,
        sequences=len(hosts) * work.batch,
        sync=found.sync,
        tail=found.exchange if found.sync.delay else NO_TIME,
    )


def _lacking_ram(
    work: JobWork, hosts: Sequence[OfferedHost], fits: Sequence[MemoryFit], sync: SyncSpec
) -> InfeasibleOption | None:
    """Public state lies in each machine's memory, where that is known to hold it."""
    public = work.public(sync)
    for host, own in zip(hosts, fits, strict=True):
        need = public + own.worst.footprint.at(MemoryPlace.RAM) * host.cards
        have = own.worst.spare * host.cards if host.card.is_unified else host.memory_bytes
        if have is not None and need > have:
            return InfeasibleOption(
                LayoutKind.ROUNDS,
                "memory",
                2,
                have / need,
                f"{host.name} has {format_bytes(have)} of RAM, and {format_bytes(need)} are needed"
                f" with {format_bytes(public)} of public state",
                f"machines with {format_bytes(need)} of RAM",
            )
    return None


def _shape(fit: MemoryFit) -> tuple[object, ...]:
    return fit.recompute, fit.micro, fit.away


def agreeing(found: MethodEstimate, setting: MethodSetting, reasons: Sequence[str]) -> list[DerivedFact]:
    """An exchange and a step with their numbers, why it is this method, and what that was measured to cost in loss."""
    sync, link = found.sync, setting.link
    formula = (
        f"max(8 x {format_bytes(found.up * sync.steps)} / {format_rate(link.up)},"
        f" 8 x {format_bytes(found.down * sync.steps)} / {format_rate(link.down)})"
        f" + {TRIPS} x {precise(link.round_trip)}; up, down, and round trips"
    )
    part = f"{precise(found.exchange)} / {sync.steps}"
    own = precise(setting.step)
    whole = f"max({own}, {part}); the exchange comes a round late" if sync.delay else f"{own} + {part}"
    above = method_loss_table.above(sync)
    return [
        DerivedFact("exchange of a round", precise(found.exchange), formula, "advice/method_costs"),
        DerivedFact("a step of a round", precise(found.step), whole, "advice/method_costs"),
        *(DerivedFact("method", found.method, reason, "advice/method_choice") for reason in reasons),
        DerivedFact(
            "loss",
            "-" if above is None else f"+{above:g} %",
            f"{found.method}: {method_loss_table.told(sync)}",
            method_loss_table.CONDITION,
        ),
    ]


def _lost(
    work: JobWork, found: MethodEstimate, step: float, hosts: Sequence[OfferedHost], assumed: OfferAssumptions
) -> tuple[float, float, str]:
    """Of a member's time, when it leaves: half of its round, and what comes instead fetches the public state."""
    public = work.public(found.sync)
    again = max(checkpoint_policy.restart(public, host.link) for host in hosts)
    half = found.sync.steps * step / 2
    text = f"H t / 2 = {half:.4g} s of a round, R = {again:.4g} s until another stands with {format_bytes(public)}"
    return half + again, mean_churn(hosts, assumed.churn), text


def _alone(work: JobWork, hosts: Sequence[OfferedHost], assumed: OfferAssumptions) -> Found:
    """With the host goes all that it has trained since it wrote it down elsewhere."""
    rooms = _rooms(LayoutKind.ALONE, work, work.recipe, hosts, work.batch)
    if isinstance(rooms, InfeasibleOption):
        return rooms
    step, facts = _slowest(work, hosts, rooms, work.step_tokens, assumed)
    mean = mean_churn(hosts, assumed.churn)
    size = checkpoint_policy.states(work.recipe, work.parameters)
    kept = checkpoint_policy.checkpointed([size], hosts, mean)
    if (blocked := checkpoint_policy.blocked(LayoutKind.ALONE, kept)) is not None:
        return blocked
    return _option(
        LayoutKind.ALONE, "", work, hosts, rooms, step=Seconds(step), exchange=Seconds(0.0),
        steps=math.ceil(work.tokens / work.step_tokens), up=0.0, down=0.0, kept=kept,
        facts=facts, sequences=work.batch,
    )  # fmt: skip


def data(work: JobWork, hosts: Sequence[OfferedHost], assumed: OfferAssumptions) -> Found:
    """A ring all-reduce of gradients at every step."""
    if (blocked := _unlike(LayoutKind.DATA, hosts) or _too_many(LayoutKind.DATA, work, hosts)) is not None:
        return blocked
    each = math.ceil(work.sequences / len(hosts))
    rooms = _rooms(LayoutKind.DATA, work, work.recipe, hosts, each)
    if isinstance(rooms, InfeasibleOption):
        return rooms
    compute, facts = _slowest(work, hosts, rooms, each * work.context, assumed)
    size = float(WIRE * work.parameters)
    taken = collective_times.ring(RankGroup(tuple(host_routes.line(host, hosts) for host in hosts)), size)
    term = all_reduce(span(len(hosts)), size).term("gradients", TrafficPhase.BACKWARD, "Li et al. 2020, section 3")
    n = len(hosts)
    facts += [
        DerivedFact("gradients", format_bytes(term.sent), f"2 x {n - 1} / {n} x {format_bytes(size)}", term.source),
        DerivedFact(
            "all-reduce", precise(taken), "rank by rank, over lines of their own", "advice/traffic/collective_times"
        ),
    ]
    exchange = max(0.0, taken - BACKWARD * compute)
    text = f"max(0, {precise(taken)} - 2 / 3 x {precise(compute)}); gradients go behind the backward pass"
    facts.append(DerivedFact("waiting of a step", precise(exchange), text, term.source))
    return _in_step(
        LayoutKind.DATA, "bf16 ring all-reduce", work, hosts, rooms, compute, exchange, term.sent, facts, assumed
    )


def sharded(work: JobWork, hosts: Sequence[OfferedHost], assumed: OfferAssumptions) -> Found:
    """FSDP over all cards of all hosts."""
    if (blocked := _unlike(LayoutKind.SHARDED, hosts) or _too_many(LayoutKind.SHARDED, work, hosts)) is not None:
        return blocked
    each = math.ceil(work.sequences / len(hosts))
    cards = sum(host.cards for host in hosts)
    rooms = _rooms(LayoutKind.SHARDED, work, work.recipe, hosts, each, ZeroSplit(3, cards))
    if isinstance(rooms, InfeasibleOption):
        return rooms
    compute, facts = _slowest(work, hosts, rooms, each * work.context, assumed, len(hosts))
    micros = max(math.ceil(each / own.micro) for own in rooms)
    size, group = (float(WIRE * work.parameters), RankGroup(tuple(host_routes.line(host, hosts) for host in hosts)))
    taken = 3 * micros * collective_times.ring(group, size, rounds=1)
    moved = 3 * micros * (len(hosts) - 1) / len(hosts) * size
    n, source = len(hosts), "Zhao et al. 2023, section 3.2"
    exchange = max(0.0, taken - compute)
    text = f"3 x {micros} x {n - 1} / {n} x {format_bytes(size)}; each way, for each of {micros} micro-batches"
    facts += [
        DerivedFact("parameters and gradients", format_bytes(moved), text, source),
        DerivedFact(
            "gathers", precise(taken), "rank by rank, over lines of their own", "advice/traffic/collective_times",
        ),
        DerivedFact(
            "waiting of a step", precise(exchange),
            f"max(0, {precise(taken)} - {precise(compute)}); beside compute", source,
        ),
    ]  # fmt: skip
    return _in_step(
        LayoutKind.SHARDED, f"FSDP over {cards} cards", work, hosts, rooms, compute, exchange, moved, facts, assumed
    )


def _rooms(
    kind: LayoutKind,
    work: JobWork,
    recipe: StateRecipe,
    hosts: Sequence[OfferedHost],
    batch: int,
    split: ZeroSplit | None = None,
) -> list[MemoryFit] | InfeasibleOption:
    """How each host holds its replica; what the worst card lacks."""
    found = [room(work, recipe, host, split or replica(host), batch) for host in hosts]
    tight = min(range(len(hosts)), key=lambda at: found[at].worst.spare)
    if found[tight].fits:
        return found
    need, have = found[tight].worst.footprint.card, memory_of(hosts[tight])
    named = f"{hosts[tight].name} ({hosts[tight].card.name})"
    return InfeasibleOption(
        kind,
        "memory",
        2,
        have / need,
        f"a card of {named} has {format_bytes(have)}, and {format_bytes(need)} are needed at the least"
        f" ({RECOMPUTED[found[tight].recompute]}, micro-batches of {found[tight].micro})",
        f"cards of {format_bytes(need)}{', more hosts' if split else ''}, or a model of at most"
        f" {format_count(work.parameters * have / need)} parameters",
    )


def _unlike(kind: LayoutKind, hosts: Sequence[OfferedHost]) -> InfeasibleOption | None:
    """Ranks that wait for each other at every step are alike."""
    rates = [host_speed.rate(host) for host in hosts]
    if max(rates) <= SIMILAR * min(rates):
        return None
    fast, slow = hosts[rates.index(max(rates))], hosts[rates.index(min(rates))]
    return InfeasibleOption(
        kind,
        "similarity",
        0,
        SIMILAR * min(rates) / max(rates),
        f"{fast.name} is {max(rates) / min(rates):.3g} times as fast as {slow.name}, and all wait at every step",
        f"hosts within a factor {SIMILAR:g}",
    )


def _too_many(kind: LayoutKind, work: JobWork, hosts: Sequence[OfferedHost]) -> InfeasibleOption | None:
    if len(hosts) <= work.sequences:
        return None
    return InfeasibleOption(
        kind,
        "batch",
        1,
        work.sequences / len(hosts),
        f"a step has {work.sequences} sequences for {len(hosts)} hosts",
        "a larger batch",
    )


def _slowest(
    work: JobWork,
    hosts: Sequence[OfferedHost],
    fits: Sequence[MemoryFit],
    tokens: float,
    assumed: OfferAssumptions,
    ways: int = 1,
) -> tuple[float, list[DerivedFact]]:
    """A step of the slowest; `ways`: hosts that share out the optimizer's work."""
    each = [
        host_speed.computing(work, host, own, tokens, assumed.utilisation, ways)
        for host, own in zip(hosts, fits, strict=True)
    ]
    at = max(range(len(hosts)), key=each.__getitem__)
    return each[at], list(host_speed.facts(work, hosts[at], fits[at], tokens, assumed.utilisation, ways))


def slowest_line(hosts: Sequence[OfferedHost]) -> Link:
    """What an exchange among all waits for, in which each sends to each."""
    links = [host_routes.line(host, hosts, len(hosts) - 1) for host in hosts]
    return Link(
        min(link.up for link in links),
        min(link.down for link in links),
        Seconds(max(link.round_trip for link in links)),
    )


def _in_step(
    kind: LayoutKind, how: str, work: JobWork, hosts: Sequence[OfferedHost], fits: Sequence[MemoryFit], compute: float,
    exchange: float, moved: float, facts: list[DerivedFact], assumed: OfferAssumptions,
) -> Found:  # fmt: skip
    """An option whose hosts stop together: where each holds all states the others go on, else they are written down."""
    size = checkpoint_policy.states(work.recipe, work.parameters)
    mean = mean_churn(hosts, assumed.churn) / len(hosts)
    if kind is LayoutKind.SHARDED:
        kept = checkpoint_policy.checkpointed([size / len(hosts)] * len(hosts), hosts, mean)
    else:
        again = max(checkpoint_policy.restart(size, host.link) for host in hosts)
        why = f"until another stands with the states that the others hold, {format_bytes(size)}"
        kept = checkpoint_policy.renewed(again, mean, why)
    if (blocked := checkpoint_policy.blocked(kind, kept)) is not None:
        return blocked
    return _option(
        kind, how, work, hosts, fits, step=Seconds(compute + exchange), exchange=Seconds(exchange),
        steps=math.ceil(work.tokens / (work.sequences * work.context)), up=moved, down=moved,
        kept=kept, facts=facts, sequences=work.sequences,
    )  # fmt: skip


def _shares(
    work: JobWork, hosts: Sequence[OfferedHost], fits: Sequence[MemoryFit], sync: SyncSpec | None,
    up: float, down: float, computes: float, tokens: float,
) -> tuple[HostLoad, ...]:  # fmt: skip
    def cores(host: OfferedHost, fit: MemoryFit) -> float | None:
        if fit.away.states.optimizer is not MemoryPlace.CARD or (sync is None and len(hosts) > 1):
            return None  # what an optimizer in RAM and collectives take of a processor was not measured
        if sync is None:
            return 1.0
        return machine_admission.feeding(work, len(hosts), host.cards, down, sync.steps, computes)

    return tuple(
        HostLoad(
            own.worst.footprint.at(MemoryPlace.RAM) + (work.public(sync) / host.cards if sync else 0.0),
            host_speed.crossing(work, host, own, tokens),
            up,
            down,
            cores(host, own),
        )
        for host, own in zip(hosts, fits, strict=True)
    )


def _option(
    kind: LayoutKind, how: str, work: JobWork, hosts: Sequence[OfferedHost], fits: Sequence[MemoryFit], *,
    step: Seconds, exchange: Seconds, steps: int, up: float, down: float, kept: checkpoint_policy.CheckpointEfficiency,
    facts: Sequence[DerivedFact], sequences: int, sync: SyncSpec | None = None, tail: Seconds = NO_TIME,
) -> TrainingOption:  # fmt: skip
    tight = min(fits, key=lambda own: own.worst.spare)
    return TrainingOption(
        kind=kind, how=how, hosts=tuple(hosts), recompute=tight.recompute, micro=tight.micro, step=step,
        exchange=exchange, steps=steps, up=up, down=down, efficiency=kept.efficiency, stored=kept.stored,
        worst=tight.worst, tokens=work.tokens, facts=(*facts, *kept.facts, *held(tight.worst)), sync=sync,
        sequences=sequences, tail=tail,
        shares=_shares(
            work, hosts, fits, sync, up, down, step - exchange, math.ceil(sequences / len(hosts)) * work.context
        ),
    )  # fmt: skip
