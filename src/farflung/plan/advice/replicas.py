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

from farflung.core.units import Seconds, format_bytes, format_count, format_short
from farflung.job.spec import SyncSpec
from farflung.plan.advice import routes, speed
from farflung.plan.advice.offers import Host
from farflung.plan.advice.options import Blocked, Fact, Found, Kind, Option, mean_churn, memory_of
from farflung.plan.advice.room import Room, replica, room
from farflung.plan.advice.work import WIRE, Work
from farflung.plan.advise import describe_codec
from farflung.plan.choose import choose
from farflung.plan.footprint.states import Recipe, Split
from farflung.plan.links import Link
from farflung.plan.methods import Setting
from farflung.plan.parallel import failures, timing
from farflung.plan.parallel.collectives import all_reduce, span
from farflung.plan.parallel.group import Group
from farflung.plan.parallel.terms import Phase, explained

SIMILAR: Final = 1.25
BACKWARD: Final = 2 / 3  # of compute, behind which gradients go: a backward pass is two forward ones
CHURN: Final = (
    10 * 3600.0
)  # mean seconds until a host leaves that does not say: a home computer's (docs/plan/advise)
DISK: Final = 500e6  # bytes/s at which a checkpoint is written (assumed)
RESTART: Final = 60.0  # seconds until processes stand again (assumed)
REPLICA: Final = "one host at least holds the whole model"


class Assumed(msgspec.Struct, frozen=True):
    """What no offer says."""

    utilisation: float = speed.UTILISATION
    churn: float = CHURN


def rounds(work: Work, crew: Sequence[Host], assumed: Assumed) -> Found:
    """Whole replicas that agree every H steps; one host alone agrees with nobody and needs no outer step."""
    kind, recipe = (Kind.ROUNDS, work.with_outer()) if len(crew) > 1 else (Kind.ALONE, work.recipe)
    rooms = _rooms(kind, work, recipe, crew, work.batch)
    if isinstance(rooms, Blocked):
        return rooms
    each = [
        _computing(work, host, own, work.step_tokens, assumed) for host, own in zip(crew, rooms, strict=True)
    ]
    slowest = max(range(len(crew)), key=each.__getitem__)
    facts = [speed.fact(work, crew[slowest], rooms[slowest], work.step_tokens, assumed.utilisation)]
    step, exchange, up, down, how, sync = each[slowest], 0.0, 0.0, 0.0, "", None
    mean = mean_churn(crew, assumed.churn)
    if len(crew) == 1:  # with the host goes all that it has trained since it wrote it down elsewhere
        whole = work.recipe.whole * work.parameters
        kept = failures.best(whole / DISK, mean, RESTART + 8 * whole / crew[0].link.down)
        efficiency = max(kept.efficiency, 1e-9)
        facts.append(Fact("checkpoint interval", format_short(kept.work), kept.formula, kept.source))
    else:
        choice = choose(Setting(work.layout, slowest_line(crew), len(crew), Seconds(step)))
        found = choice.chosen
        step, exchange, up, down = found.step, found.step - step, found.up, found.down
        sync, how = found.sync, f"{found.method} H={found.sync.steps} {describe_codec(found.sync)}"
        facts += [
            Fact("exchange of a round", format_short(found.exchange), reason, "plan/choose")
            for reason in choice.reasons
        ]
        efficiency = 1.0 - failures.elastic_loss(sync.steps, step, mean)
        text = f"H t / 2 is lost when a host leaves, each once in {format_short(mean)} on the average"
        facts.append(Fact("checkpoint interval", "a round", text, "half of it is lost: Daly 2006, section 2"))
    facts.append(Fact("work that counts", f"{efficiency:.1%}", "the same", facts[-1].source))
    return _option(
        kind,
        how,
        work,
        crew,
        rooms,
        step=Seconds(step),
        exchange=Seconds(exchange),
        steps=math.ceil(work.tokens / (len(crew) * work.step_tokens)),
        up=up,
        down=down,
        efficiency=efficiency,
        facts=facts,
        sync=sync,
    )


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
    facts += [
        Fact("gradients", format_short(taken), line, "alpha-beta: plan/parallel/timing")
        for line in explained([term])
    ]
    exchange = max(0.0, taken - BACKWARD * compute)
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
    compute, facts = _slowest(work, crew, rooms, each * work.context, assumed)
    micros = max(math.ceil(each / own.micro) for own in rooms)
    size, group = float(WIRE * work.parameters), Group(tuple(routes.line(host, crew) for host in crew))
    taken = 3 * micros * timing.ring(group, size, rounds=1)
    moved = 3 * micros * (len(crew) - 1) / len(crew) * size
    text = f"3 a (n - 1)/n S: a = {micros}, n = {len(crew)}, S = {format_bytes(size)} -> {format_bytes(moved)} each way"
    facts.append(Fact("parameters and gradients", format_short(taken), text, "Zhao et al. 2023, section 3.2"))
    exchange = max(0.0, taken - compute)
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
        f"a card of {named} has {format_bytes(have)}, and {format_bytes(need)} are needed even with"
        f" {found[tight].recompute} recomputation and micro-batches of {found[tight].micro}",
        f"cards of {format_bytes(need)}, or a model of at most"
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


def _computing(work: Work, host: Host, own: Room, tokens: float, assumed: Assumed) -> float:
    return speed.computing(work, host, own, tokens, assumed.utilisation)


def _slowest(
    work: Work, crew: Sequence[Host], rooms: Sequence[Room], tokens: float, assumed: Assumed
) -> tuple[float, list[Fact]]:
    each = [_computing(work, host, own, tokens, assumed) for host, own in zip(crew, rooms, strict=True)]
    at = max(range(len(crew)), key=each.__getitem__)
    return each[at], [speed.fact(work, crew[at], rooms[at], tokens, assumed.utilisation)]


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
) -> Option:  # fmt: skip
    """An option whose hosts stop together: failures roll all of them back."""
    whole = work.recipe.whole * work.parameters
    each = whole / len(crew) if kind is Kind.SHARDED else whole
    mean = mean_churn(crew, assumed.churn) / len(crew)
    found = failures.best(each / DISK, mean, RESTART + 8 * each / slowest_line(crew).down)
    facts.append(Fact("checkpoint interval", format_short(found.work), found.formula, found.source))
    facts.append(Fact("work that counts", f"{found.efficiency:.1%}", "the same", found.source))
    return _option(
        kind, how, work, crew, rooms, step=Seconds(compute + exchange), exchange=Seconds(exchange),
        steps=math.ceil(work.tokens / (work.sequences * work.context)), up=moved, down=moved,
        efficiency=max(found.efficiency, 1e-9), facts=facts,
    )  # fmt: skip


def _option(
    kind: Kind, how: str, work: Work, crew: Sequence[Host], rooms: Sequence[Room], *, step: Seconds,
    exchange: Seconds, steps: int, up: float, down: float, efficiency: float, facts: Sequence[Fact],
    sync: SyncSpec | None = None,
) -> Option:  # fmt: skip
    tight = min(rooms, key=lambda own: own.worst.spare)
    parts = [
        Fact(part.name, format_bytes(part.bytes), part.formula, part.source)
        for part in tight.worst.footprint.parts
    ]
    return Option(
        kind=kind, how=how, hosts=tuple(crew), recompute=tight.recompute, micro=tight.micro, step=step,
        exchange=exchange, steps=steps, up=up, down=down, efficiency=efficiency, worst=tight.worst,
        tokens=work.tokens, facts=(*facts, *parts), sync=sync,
    )  # fmt: skip
