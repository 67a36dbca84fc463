"""Layouts in which every host trains the whole model: agreeing now and then, at every step, or sharing its states (T7).

    rounds         each host steps on its own; the method is the one that suits the crew's slowest line (plan.choose)
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

from farflung.core.units import Seconds, format_bytes, format_count, format_rate
from farflung.job.spec import SyncSpec
from farflung.plan import measured
from farflung.plan.advice import keeping, machines, routes, speed
from farflung.plan.advice.crews import SIMILAR
from farflung.plan.advice.offers import Host
from farflung.plan.advice.options import (
    Blocked,
    Fact,
    Found,
    Kind,
    Option,
    Share,
    held,
    mean_churn,
    memory_of,
    precise,
)
from farflung.plan.advice.room import Room, replica, room
from farflung.plan.advice.work import WIRE, Work
from farflung.plan.advise import describe_codec
from farflung.plan.choose import choose
from farflung.plan.footprint.parts import Place
from farflung.plan.footprint.states import Recipe, Split
from farflung.plan.links import Link
from farflung.plan.methods import TRIPS, Estimate, Setting, sync_of
from farflung.plan.parallel import timing
from farflung.plan.parallel.collectives import all_reduce, span
from farflung.plan.parallel.group import Group
from farflung.plan.parallel.shapes import Recompute
from farflung.plan.parallel.terms import Phase

BACKWARD: Final = 2 / 3  # of compute, behind which gradients go: a backward pass is two forward ones
CHURN: Final = (
    10 * 3600.0
)  # mean seconds until a host leaves that does not say: a home computer's (docs/plan/advise)
NO_TIME: Final = Seconds(0.0)
LIGHTEST: Final = sync_of(
    "muloco"
)  # of what plan.choose takes over lines, it keeps least: momentum and residual
SETTLED: Final = 3  # times that a method is chosen for the memory that the one before left


RECOMPUTED: Final = {
    Recompute.NONE: "nothing is recomputed",
    Recompute.SELECTIVE: "all but products is recomputed",
    Recompute.FULL: "all layers are recomputed",
}


class Assumed(msgspec.Struct, frozen=True):
    """What no offer says."""

    utilisation: float = speed.UTILISATION
    churn: float = CHURN


def rounds(work: Work, crew: Sequence[Host], assumed: Assumed) -> Found:
    """Whole replicas that agree every H steps; one host alone agrees with nobody and needs no outer step."""
    if len(crew) == 1:
        return _alone(work, crew, assumed)
    rooms = _rooms(Kind.ROUNDS, work, work.with_outer(LIGHTEST), crew, work.batch)
    for _ in range(
        SETTLED
    ):  # what a method keeps depends on the method, which depends on a step, and that on memory
        if isinstance(rooms, Blocked):
            return rooms
        step, facts = _slowest(work, crew, rooms, work.step_tokens, assumed)
        most = work.steps_most(len(crew), work.step_tokens)
        setting = Setting(work.layout, slowest_line(crew), len(crew), Seconds(step), most=most)
        choice = choose(setting)
        before, recipe = rooms, work.with_outer(choice.chosen.sync)
        rooms = _rooms(Kind.ROUNDS, work, recipe, crew, work.batch)
        if isinstance(rooms, Blocked) or [_shape(own) for own in rooms] == [_shape(own) for own in before]:
            break
    if isinstance(rooms, Blocked):
        return rooms
    found = choice.chosen
    if (short := _lacking_ram(work, crew, rooms, found.sync)) is not None:
        return short
    facts += agreeing(found, setting, choice.reasons)
    kept = keeping.renewed(*_lost(work, found, step, crew, assumed))
    if (blocked := keeping.blocked(Kind.ROUNDS, kept)) is not None:
        return blocked
    steps = found.sync.steps
    return _option(
        Kind.ROUNDS,
        f"{found.method} H={steps} {describe_codec(found.sync)}",
        work,
        crew,
        rooms,
        step=found.step,
        exchange=Seconds(found.step - step),
        steps=steps * math.ceil(work.tokens / (len(crew) * work.step_tokens * steps)),
        up=found.up,
        down=found.down,
        kept=kept,
        facts=facts,
        sequences=len(crew) * work.batch,
        sync=found.sync,
        tail=found.exchange if found.sync.delay else NO_TIME,
    )


def _lacking_ram(work: Work, crew: Sequence[Host], rooms: Sequence[Room], sync: SyncSpec) -> Blocked | None:
    """Public state lies in each machine's memory, where that is known to hold it."""
    public = work.public(sync)
    for host, own in zip(crew, rooms, strict=True):
        need = public + own.worst.footprint.at(Place.RAM) * host.cards
        have = own.worst.spare * host.cards if host.card.is_unified else host.memory_bytes
        if have is not None and need > have:
            return Blocked(
                Kind.ROUNDS,
                "memory",
                2,
                have / need,
                f"{host.name} has {format_bytes(have)} of RAM, and {format_bytes(need)} are needed"
                f" with {format_bytes(public)} of public state",
                f"machines with {format_bytes(need)} of RAM",
            )
    return None


def _shape(own: Room) -> tuple[object, ...]:
    return own.recompute, own.micro, own.away


def agreeing(found: Estimate, setting: Setting, reasons: Sequence[str]) -> list[Fact]:
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
    above = measured.above(sync)
    return [
        Fact("exchange of a round", precise(found.exchange), formula, "plan/methods"),
        Fact("a step of a round", precise(found.step), whole, "plan/methods"),
        *(Fact("method", found.method, reason, "plan/choose") for reason in reasons),
        Fact(
            "loss",
            "-" if above is None else f"+{above:g} %",
            f"{found.method}: {measured.told(sync)}",
            measured.CONDITION,
        ),
    ]


def _lost(
    work: Work, found: Estimate, step: float, crew: Sequence[Host], assumed: Assumed
) -> tuple[float, float, str]:
    """Of a member's time, when it leaves: half of its round, and what comes instead fetches the public state."""
    public = work.public(found.sync)
    again = max(keeping.restart(public, host.link) for host in crew)
    half = found.sync.steps * step / 2
    text = f"H t / 2 = {half:.4g} s of a round, R = {again:.4g} s until another stands with {format_bytes(public)}"
    return half + again, mean_churn(crew, assumed.churn), text


def _alone(work: Work, crew: Sequence[Host], assumed: Assumed) -> Found:
    """With the host goes all that it has trained since it wrote it down elsewhere."""
    rooms = _rooms(Kind.ALONE, work, work.recipe, crew, work.batch)
    if isinstance(rooms, Blocked):
        return rooms
    step, facts = _slowest(work, crew, rooms, work.step_tokens, assumed)
    mean = mean_churn(crew, assumed.churn)
    size = keeping.states(work.recipe, work.parameters)
    kept = keeping.checkpointed([size], crew, mean)
    if (blocked := keeping.blocked(Kind.ALONE, kept)) is not None:
        return blocked
    return _option(
        Kind.ALONE, "", work, crew, rooms, step=Seconds(step), exchange=Seconds(0.0),
        steps=math.ceil(work.tokens / work.step_tokens), up=0.0, down=0.0, kept=kept,
        facts=facts, sequences=work.batch,
    )  # fmt: skip


def data(work: Work, crew: Sequence[Host], assumed: Assumed) -> Found:
    """A ring all-reduce of gradients at every step."""
    if (blocked := _unlike(Kind.DATA, crew) or _too_many(Kind.DATA, work, crew)) is not None:
        return blocked
    each = math.ceil(work.sequences / len(crew))
    rooms = _rooms(Kind.DATA, work, work.recipe, crew, each)
    if isinstance(rooms, Blocked):
        return rooms
    compute, facts = _slowest(work, crew, rooms, each * work.context, assumed)
    size = float(WIRE * work.parameters)
    taken = timing.ring(Group(tuple(routes.line(host, crew) for host in crew)), size)
    term = all_reduce(span(len(crew)), size).term("gradients", Phase.BACKWARD, "Li et al. 2020, section 3")
    n = len(crew)
    facts += [
        Fact("gradients", format_bytes(term.sent), f"2 x {n - 1} / {n} x {format_bytes(size)}", term.source),
        Fact("all-reduce", precise(taken), "rank by rank, over lines of their own", "plan/parallel/timing"),
    ]
    exchange = max(0.0, taken - BACKWARD * compute)
    text = f"max(0, {precise(taken)} - 2 / 3 x {precise(compute)}); gradients go behind the backward pass"
    facts.append(Fact("waiting of a step", precise(exchange), text, term.source))
    return _in_step(
        Kind.DATA, "bf16 ring all-reduce", work, crew, rooms, compute, exchange, term.sent, facts, assumed
    )


def sharded(work: Work, crew: Sequence[Host], assumed: Assumed) -> Found:
    """FSDP over all cards of all hosts."""
    if (blocked := _unlike(Kind.SHARDED, crew) or _too_many(Kind.SHARDED, work, crew)) is not None:
        return blocked
    each = math.ceil(work.sequences / len(crew))
    cards = sum(host.cards for host in crew)
    rooms = _rooms(Kind.SHARDED, work, work.recipe, crew, each, Split(3, cards))
    if isinstance(rooms, Blocked):
        return rooms
    compute, facts = _slowest(work, crew, rooms, each * work.context, assumed, len(crew))
    micros = max(math.ceil(each / own.micro) for own in rooms)
    size, group = float(WIRE * work.parameters), Group(tuple(routes.line(host, crew) for host in crew))
    taken = 3 * micros * timing.ring(group, size, rounds=1)
    moved = 3 * micros * (len(crew) - 1) / len(crew) * size
    n, source = len(crew), "Zhao et al. 2023, section 3.2"
    exchange = max(0.0, taken - compute)
    text = (
        f"3 x {micros} x {n - 1} / {n} x {format_bytes(size)}; each way, for each of {micros} micro-batches"
    )
    facts += [
        Fact("parameters and gradients", format_bytes(moved), text, source),
        Fact("gathers", precise(taken), "rank by rank, over lines of their own", "plan/parallel/timing"),
        Fact(
            "waiting of a step", precise(exchange),
            f"max(0, {precise(taken)} - {precise(compute)}); beside compute", source,
        ),
    ]  # fmt: skip
    return _in_step(
        Kind.SHARDED, f"FSDP over {cards} cards", work, crew, rooms, compute, exchange, moved, facts, assumed
    )


def _rooms(
    kind: Kind, work: Work, recipe: Recipe, crew: Sequence[Host], batch: int, split: Split | None = None
) -> list[Room] | Blocked:
    """How each host holds its replica; what the worst card lacks."""
    found = [room(work, recipe, host, split or replica(host), batch) for host in crew]
    tight = min(range(len(crew)), key=lambda at: found[at].worst.spare)
    if found[tight].fits:
        return found
    need, have = found[tight].worst.footprint.card, memory_of(crew[tight])
    named = f"{crew[tight].name} ({crew[tight].card.name})"
    return Blocked(
        kind,
        "memory",
        2,
        have / need,
        f"a card of {named} has {format_bytes(have)}, and {format_bytes(need)} are needed at the least"
        f" ({RECOMPUTED[found[tight].recompute]}, micro-batches of {found[tight].micro})",
        f"cards of {format_bytes(need)}{', more hosts' if split else ''}, or a model of at most"
        f" {format_count(work.parameters * have / need)} parameters",
    )


def _unlike(kind: Kind, crew: Sequence[Host]) -> Blocked | None:
    """Ranks that wait for each other at every step are alike."""
    rates = [speed.rate(host) for host in crew]
    if max(rates) <= SIMILAR * min(rates):
        return None
    fast, slow = crew[rates.index(max(rates))], crew[rates.index(min(rates))]
    return Blocked(
        kind,
        "similarity",
        0,
        SIMILAR * min(rates) / max(rates),
        f"{fast.name} is {max(rates) / min(rates):.3g} times as fast as {slow.name}, and all wait at every step",
        f"hosts within a factor {SIMILAR:g}",
    )


def _too_many(kind: Kind, work: Work, crew: Sequence[Host]) -> Blocked | None:
    if len(crew) <= work.sequences:
        return None
    return Blocked(
        kind,
        "batch",
        1,
        work.sequences / len(crew),
        f"a step has {work.sequences} sequences for {len(crew)} hosts",
        "a larger batch",
    )


def _slowest(
    work: Work, crew: Sequence[Host], rooms: Sequence[Room], tokens: float, assumed: Assumed, ways: int = 1
) -> tuple[float, list[Fact]]:
    """A step of the slowest; `ways`: hosts that share out the optimizer's work."""
    each = [
        speed.computing(work, host, own, tokens, assumed.utilisation, ways)
        for host, own in zip(crew, rooms, strict=True)
    ]
    at = max(range(len(crew)), key=each.__getitem__)
    return each[at], list(speed.facts(work, crew[at], rooms[at], tokens, assumed.utilisation, ways))


def slowest_line(crew: Sequence[Host]) -> Link:
    """What an exchange among all waits for, in which each sends to each."""
    links = [routes.line(host, crew, len(crew) - 1) for host in crew]
    return Link(
        min(link.up for link in links),
        min(link.down for link in links),
        Seconds(max(link.round_trip for link in links)),
    )


def _in_step(
    kind: Kind, how: str, work: Work, crew: Sequence[Host], rooms: Sequence[Room], compute: float,
    exchange: float, moved: float, facts: list[Fact], assumed: Assumed,
) -> Found:  # fmt: skip
    """An option whose hosts stop together: where each holds all states the others go on, else they are written down."""
    size = keeping.states(work.recipe, work.parameters)
    mean = mean_churn(crew, assumed.churn) / len(crew)
    if kind is Kind.SHARDED:
        kept = keeping.checkpointed([size / len(crew)] * len(crew), crew, mean)
    else:
        again = max(keeping.restart(size, host.link) for host in crew)
        why = f"until another stands with the states that the others hold, {format_bytes(size)}"
        kept = keeping.renewed(again, mean, why)
    if (blocked := keeping.blocked(kind, kept)) is not None:
        return blocked
    return _option(
        kind, how, work, crew, rooms, step=Seconds(compute + exchange), exchange=Seconds(exchange),
        steps=math.ceil(work.tokens / (work.sequences * work.context)), up=moved, down=moved,
        kept=kept, facts=facts, sequences=work.sequences,
    )  # fmt: skip


def _shares(
    work: Work, crew: Sequence[Host], rooms: Sequence[Room], sync: SyncSpec | None, up: float, down: float,
    computes: float, tokens: float,
) -> tuple[Share, ...]:  # fmt: skip
    def cores(host: Host, own: Room) -> float | None:
        if own.away.states.optimizer is not Place.CARD or (sync is None and len(crew) > 1):
            return None  # what an optimizer in RAM and collectives take of a processor was not measured
        if sync is None:
            return 1.0
        return machines.feeding(work, len(crew), host.cards, down, sync.steps, computes)

    return tuple(
        Share(
            own.worst.footprint.at(Place.RAM) + (work.public(sync) / host.cards if sync else 0.0),
            speed.crossing(work, host, own, tokens),
            up,
            down,
            cores(host, own),
        )
        for host, own in zip(crew, rooms, strict=True)
    )


def _option(
    kind: Kind, how: str, work: Work, crew: Sequence[Host], rooms: Sequence[Room], *, step: Seconds,
    exchange: Seconds, steps: int, up: float, down: float, kept: keeping.Kept, facts: Sequence[Fact],
    sequences: int, sync: SyncSpec | None = None, tail: Seconds = NO_TIME,
) -> Option:  # fmt: skip
    tight = min(rooms, key=lambda own: own.worst.spare)
    return Option(
        kind=kind, how=how, hosts=tuple(crew), recompute=tight.recompute, micro=tight.micro, step=step,
        exchange=exchange, steps=steps, up=up, down=down, efficiency=kept.efficiency, stored=kept.stored,
        worst=tight.worst, tokens=work.tokens, facts=(*facts, *kept.facts, *held(tight.worst)), sync=sync,
        sequences=sequences, tail=tail,
        shares=_shares(
            work, crew, rooms, sync, up, down, step - exchange, math.ceil(sequences / len(crew)) * work.context
        ),
    )  # fmt: skip
