"""Formats the output of `farflung plan --offers`: the best layouts, their costs and the next command (P1)."""

from __future__ import annotations

import shutil
from collections import Counter
from textwrap import wrap
from typing import Final

from farflung.advice import method_loss_table
from farflung.advice.hardware import hardware_text
from farflung.advice.hardware.admission import RuleState
from farflung.advice.job_work import JobWork
from farflung.advice.layouts import host_speed, machine_admission
from farflung.advice.layouts.checkpoint_policy import RESTART
from farflung.advice.layouts.energy_value import worth
from farflung.advice.layouts.layout_search import DOMINATED, Advice
from farflung.advice.layouts.replica_layouts import CHURN, RECOMPUTED, OfferAssumptions
from farflung.advice.layouts.training_options import DerivedFact, InfeasibleOption, LayoutKind, TrainingOption
from farflung.advice.offers.energy_terms import EnergyTerms
from farflung.advice.offers.offer_file import OfferedHost
from farflung.app.cli.plan_offers import NextCommand
from farflung.core.units import format_bytes, format_count, format_short
from farflung.job.text_files import DataAccount
from farflung.watch import data_text, phrases

STAGE: Final = 9
PIPELINED: Final = (LayoutKind.PIPELINE, LayoutKind.PIPELINES)
NARROWEST, USUAL, WIDEST = 50, 80, 120
DEEPER: Final = 3  # columns that what belongs to a numbered way stands further in
DAY: Final = 86_400.0
CURRENCY: Final = "credits"


def columns() -> int:
    """Of the terminal, within what can be read; 80 on a pipe."""
    return max(NARROWEST, min(WIDEST, shutil.get_terminal_size((USUAL, 24)).columns))


def lines(
    work: JobWork,
    advice: Advice,
    terms: EnergyTerms,
    command: NextCommand,
    data: DataAccount,
    *,
    explains: bool,
    width: int = USUAL,
) -> list[str]:
    """At most `width` columns. `command`: the next one; `data`: what is told of the job's."""
    rows = [*_say("Job", _job(work), width), *_left_out(data, width)]
    rows += _say("Offers", _offers(advice.hosts), width)
    for number, option in enumerate(advice.best, 1):
        named = f"{number}. {_headline(work, option)}" if len(advice.best) > 1 else _headline(work, option)
        rows += _say("Best" if number == 1 else "", named, width)
        for said in (*_body(option), *_worth(work, option, terms)):
            rows += _say("", said, width, DEEPER)
        if explains:
            for rule in _rules(option):
                rows += _say("", rule, width, 2 * DEEPER)
            for fact in option.derived:
                rows += _say("", _explained(fact), width, 2 * DEEPER)
    if advice.is_for_one and len(advice.hosts) > 1:
        rows += _say("Note", _enough(advice.best[0]), width)
    else:
        for (cause, helps), kinds in _reasons(advice.binding).items():
            rows += _say("Not", f"{', '.join(kinds)}: {cause}. It would take {helps}", width)
        for option in advice.dropped:
            worse = f"{phrases.shown_credits(option.price)}: more than {DOMINATED:g} times as long and as dear"
            rows += _say("Not", f"{option.kind}: {long(option.seconds)} and {worse} as a way above", width)
    if advice.useless:
        rows += _say("Left out", _useless(advice.useless), width)
    rows += _say("Assumed", _assumed(advice), width)
    return [*rows, *_next(advice, command, width)]


def _say(stage: str, text: str, width: int, deeper: int = 0) -> list[str]:
    rows = wrap(text, width - STAGE - deeper)
    return [f"{'' if at else stage:<{STAGE}}{' ' * deeper}{row}" for at, row in enumerate(rows)]


def _left_out(data: DataAccount, width: int) -> list[str]:
    return [row for text in data_text.lines(data) for row in _say("", phrases.clean(text, 4 * USUAL), width)]


def _job(work: JobWork) -> str:
    return (
        f"{format_count(work.parameters)} parameters, {format_count(work.tokens)} tokens in steps of"
        f" {work.sequences} sequences of {work.context:,}{f'; {work.model.kind}' if work.model.kind else ''}"
    )


def _offers(hosts: tuple[OfferedHost, ...]) -> str:
    counted = Counter[str]()
    for host in hosts:
        counted[host.card.name + (" (measured)" if host.card.measured else "")] += host.cards
    owners = len({host.owner for host in hosts})
    named = ", ".join(f"{count} {name}" for name, count in counted.most_common(6))
    more = f" and {len(counted) - 6} more kinds" if len(counted) > 6 else ""
    return f"{len(hosts)} host{'s' * (len(hosts) > 1)} of {owners} owner{'s' * (owners > 1)}: {named}{more}"


def _headline(work: JobWork, option: TrainingOption) -> str:
    if option.kind is LayoutKind.ALONE:
        who = f"{option.hosts[0].name} alone"
    elif option.kind is LayoutKind.PIPELINES:
        who = f"{option.ways} pipelines of {len(option.hosts) // option.ways} hosts"
    else:
        who = f"{option.kind} on {len(option.hosts)} hosts"
    marked = " [farflung run trains by this method]" if option.is_run_today else ""
    over = f", over the job's budget of {phrases.shown_credits(work.budget)}" if option.price > work.budget else ""
    return f"{who}: {long(option.seconds)}, {phrases.shown_credits(option.price)}{over}{marked}"


def _body(option: TrainingOption) -> list[str]:
    """What it is, what its time and money go to, who, and what memory and lines carry."""
    tight = option.worst
    have = tight.footprint.card + tight.spare
    busy = 1.0 - (option.exchange / option.step if option.step else 0.0)
    idle = "" if option.kind is LayoutKind.ALONE else f", of which the busiest host computes {_percent(busy)}"
    said = [f"how: {option.how}"] if option.how else []
    each = f"{option.steps:,} steps of {option.sequences:,} sequences, {long(option.step)} each{idle}"
    said += [
        f"{each}; {_percent(option.efficiency)} of the time counts after failures;"
        f" {phrases.shown_credits(option.price_of_million)} a million tokens",
        f"{'host' if len(option.hosts) == 1 else 'hosts'}: {_named(option)}; {_classes(option)}",
        f"memory: {format_bytes(tight.footprint.card)} of {format_bytes(have)} on the tightest"
        f" {'host' if option.hosts[0].cards > 1 and option.kind in PIPELINED else 'card'}"
        f" ({RECOMPUTED[option.recompute]}, micro-batches of {option.micro})",
    ]
    if option.up or option.down:
        said.append(f"busiest line: {format_bytes(option.up)} up and {format_bytes(option.down)} down a step")
    if option.stored is not None:
        size, every = option.stored
        said.append(f"checkpoints: {format_bytes(size)} up the slowest line, every {long(every)}")
    if option.ram:
        said.append(f"in each machine's memory: {format_bytes(option.ram)} for each card")
    if option.sync is not None:
        cost = method_loss_table.told(option.sync)
        said.append(f"loss: {cost}, of a small model (farflung plan --link has all methods)")
    if option.is_run_today:
        said.append(f"today `farflung run` trains so in float32 on processors{_not_today(option)}")
    elif option.kind is not LayoutKind.ALONE:
        said.append("planned only: `farflung run` trains in rounds, with whole replicas")
    return said


def _worth(work: JobWork, option: TrainingOption, terms: EnergyTerms) -> tuple[str, ...]:
    """What it draws, and what that is worth beside rented cards (docs/plan/cards.md)."""
    found = worth(work, option, terms)
    beside = hardware_text.beside(found, work.audited, CURRENCY, is_priced=terms.is_priced)
    return hardware_text.energy(found, terms.kilowatt_hour, CURRENCY), f"worth: {beside}"


def _rules(option: TrainingOption) -> list[str]:
    """Every rule of admission at the machine of the lowest class."""
    worst = max(machine_admission.admitted(option), key=lambda each: each.admission.grade)
    return [f"class {worst.admission.grade}: {row}" for row in hardware_text.admitted(worst.admission)]


def _useless(hosts: tuple[OfferedHost, ...]) -> str:
    kinds = ", ".join(sorted({host.card.name for host in hosts}))
    named = f"{len(hosts)} host{'s' * (len(hosts) > 1)} with {kinds}"
    return f"{named}: no CUDA, ROCm, MPS or XPU runs on it; if something does, say in a profile what was measured"


def _not_today(option: TrainingOption) -> str:
    """What of a way is planned only."""
    *parts, last = option.only_planned
    return f"; {', '.join(parts)} and {last} are planned" if parts else f"; {last} is planned"


def _classes(option: TrainingOption) -> str:
    """The machines by their class for this job (docs/plan/admission.md), and the first reason for the worst."""
    judged = machine_admission.admitted(option)
    counted = Counter(each.admission.grade for each in judged)
    said = ", ".join(f"{counted[grade]} of class {grade}" for grade in sorted(counted))
    worst = max(judged, key=lambda each: each.admission.grade)
    if not worst.admission.warnings:
        return said
    first = min(worst.admission.warnings, key=lambda one: one.state is RuleState.OK)
    return f"{said} ({first.at}: {first.rule} {first.why})"


def _named(option: TrainingOption) -> str:
    """In the order of their stages, arrows between them; a few."""
    names = [host.name for host in option.hosts]
    if option.kind is LayoutKind.PIPELINES:
        stages = len(names) // option.ways
        ways = [" > ".join(names[at : at + stages]) for at in range(0, len(names), stages)]
        return "; ".join(ways) if len(names) <= 16 else f"{ways[0]}; and {option.ways - 1} more like it"
    between = " > " if option.kind is LayoutKind.PIPELINE else ", "
    return between.join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def _reasons(binding: tuple[InfeasibleOption, ...]) -> dict[tuple[str, str], list[str]]:
    """What binds and what it would take, each once, with the kinds that it keeps out."""
    found: dict[tuple[str, str], list[str]] = {}
    for blocked in binding:
        found.setdefault((blocked.cause, blocked.help), []).append(blocked.kind)
    return found


def _enough(alone: TrainingOption) -> str:
    if alone.seconds > RESTART:
        return (
            f"one host is enough: no layout over these lines is faster than {alone.hosts[0].name} alone by the"
            f" {long(RESTART)} that a network takes to stand"
        )
    return (
        f"this job is too small to gain from a network: {alone.hosts[0].name} alone takes {long(alone.seconds)}, and no"
        f" layout saves the {long(RESTART)} that a network takes to stand"
    )


def _explained(fact: DerivedFact) -> str:
    return f"{fact.name} = {fact.value}: {fact.formula} [{fact.source}]"


def _assumed(advice: Advice) -> str:
    usual = OfferAssumptions()
    return (
        f"cards reach {usual.utilisation:.0%} of their dense bfloat16 rate, and launch a kernel in"
        f" {1e6 * host_speed.LAUNCH:g} us at best; a host that does not say leaves after {CHURN / 3600:g} hours on the"
        f" average; of three hosts and more nobody lends more than a third. {advice.tried}"
        f" way{'s' * (advice.tried != 1)} estimated for the least {advice.goal};"
        " verifiers' pay is not in these prices (farflung audit-plan)"
    )


def _next(advice: Advice, command: NextCommand, width: int) -> list[str]:
    """A command to copy, or why there is none."""
    if not command.words:
        if command.lacking:
            return _say("Next", f"no `farflung run` trains as the way that is marked: {command.lacking}", width)
        if advice.is_for_one:
            return _say("Next", "train it on that host; `farflung run` is for 2 hosts and more", width)
        lacking = next((each.help for each in advice.binding if each.kind is LayoutKind.ROUNDS), "2 hosts and more")
        return _say("Next", f"nothing of this runs with `farflung run` today, which takes {lacking}", width)
    rows, row = [], f"{'Next':<{STAGE}}{command.words[0]}"
    for word in command.words[1:]:
        if len(row) + len(word) + 3 > width:
            rows.append(f"{row} \\")
            row = " " * STAGE + word
        else:
            row += f" {word}"
    tried = "tries the way that is marked on this computer, in test credits"
    unpaid = f"; {command.lacking}" if command.lacking else ""
    return [*rows, row, *_say("", f"({tried}{unpaid})", width)]


def _percent(share: float) -> str:
    """`12%`, `99.6%`: what is missing to all of it counts."""
    return f"{share:.1%}" if 0.9 < share < 0.9995 else f"{share:.0%}"


def long(seconds: float) -> str:
    """`0.35 ms`, `3 h 05 min`, `12.4 days`."""
    return f"{seconds / DAY:,.3g} days" if seconds >= 2 * DAY else format_short(seconds)
