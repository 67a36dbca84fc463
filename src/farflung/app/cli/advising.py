"""What `farflung plan --offers` prints: the best ways to train a job on what is offered, or what binds (P1)."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from textwrap import wrap
from typing import Any, Final

import msgspec

from farflung.app import preparation
from farflung.app.handed import read_file
from farflung.core import limits
from farflung.core.errors import FarflungError, PolicyError, UsageError
from farflung.core.money import format_credits
from farflung.core.units import format_bytes, format_count, format_seconds
from farflung.job.spec import JobSpec
from farflung.plan.advice import machines, offers, search
from farflung.plan.advice.offers import Host
from farflung.plan.advice.options import Fact, Option, memory_of
from farflung.plan.advice.replicas import CHURN, Assumed
from farflung.plan.advice.search import Advice, Goal
from farflung.plan.advice.work import Work, work
from farflung.plan.cards import text
from farflung.plan.cards.value import value
from farflung.plan.io import cards
from farflung.plan.parallel.shapes import Recompute

COLUMNS: Final = 80
STAGE: Final = 9
DEEPER: Final = 3  # columns that what belongs to a numbered way stands further in
DAY: Final = 86_400.0
RECOMPUTED: Final = {
    Recompute.NONE: "nothing is recomputed",
    Recompute.SELECTIVE: "attention is recomputed",
    Recompute.FULL: "all layers are recomputed",
}


def refuse_without_offers(goal: str | None, explains: bool) -> None:
    """Raises UsageError FF-APP-429 where something is said of offers, and none are named."""
    said = {"--goal": goal is not None, "--explain": explains}
    named = [option for option, is_said in said.items() if is_said]
    if named:
        raise UsageError(
            "FF-APP-429",
            f"{named[0]} is of a plan over offers, and none are named",
            cause="it is told with --offers",
            hint="farflung plan --offers examples/offers/six_hosts.toml",
        )


def plan(file: Path, goal: str | None, spec: JobSpec) -> tuple[Work, Advice]:
    """The advice on a job. Raises what `read` raises, and PolicyError FF-APP-428 (nothing fits)."""
    asks, hosts = read(file, spec)
    found = search.search(asks, hosts, Goal(goal or Goal.TIME))
    if not found.best:
        raise _refused(found)
    return asks, found


def read(file: Path, spec: JobSpec) -> tuple[Work, tuple[Host, ...]]:
    """A job and the hosts that are offered for it. Raises UsageError FF-APP-161, FF-APP-426 (the file), FF-PLAN-060 and
    -061 (what it says), FF-APP-427 (a model whose sizes are not known).
    """
    layout = preparation.known_layout(spec)
    if layout is None or spec.model.kind != "gpt":
        raise UsageError(
            "FF-APP-427",
            "hosts are planned for the built-in model only",
            cause="layers, width and heads of a module of your own are not known from its tensors",
            hint="describe it by its sizes: --set model.layers=32 --set model.width=4096",
        )
    return work(spec, layout), offers.parse(_text(file), cards.read())


def _text(path: Path) -> str:
    try:
        return read_file(path, 4 * limits.OFFERS_CHARACTERS).decode()
    except UnicodeDecodeError:
        raise UsageError(
            "FF-APP-426",
            f"{path.name} is no text",
            cause="offers are TOML, in UTF-8",
            hint="docs/plan/advise.md shows a file of offers",
        ) from None


def _refused(found: Advice) -> FarflungError:
    """None of all ways fits: the constraint that comes nearest, and what would lift it."""
    nearest = found.binding[0]
    return PolicyError(
        "FF-APP-428",
        f"none of {found.tried} ways to train this fits these {len(found.hosts)} hosts: {nearest.constraint} binds",
        cause=f"{nearest.kind}: {nearest.cause}",
        hint=f"what would make it fit: {nearest.help}",
    )


def lines(asks: Work, found: Advice, *, explains: bool) -> list[str]:
    """At most 80 columns."""
    rows = [*_say("Job", _job(asks)), *_say("Offers", _offers(found.hosts))]
    for number, option in enumerate(found.best, 1):
        rows += _say("Best" if number == 1 else "", f"{number}. {_headline(option)}")
        for said in _body(asks, option):
            rows += _say("", said, DEEPER)
        if explains:
            for fact in option.facts:
                rows += _say("", _explained(fact), 2 * DEEPER)
    for blocked in found.binding:
        rows += _say("Not", f"{blocked.kind}: {blocked.cause}. It would take {blocked.help}")
    return [*rows, *_say("Assumed", _assumed(found))]


def _say(stage: str, text: str, deeper: int = 0) -> list[str]:
    rows = wrap(text, COLUMNS - STAGE - deeper)
    return [f"{'' if at else stage:<{STAGE}}{' ' * deeper}{row}" for at, row in enumerate(rows)]


def _job(asks: Work) -> str:
    return (
        f"{format_count(asks.parameters)} parameters, {format_count(asks.tokens)} tokens in steps of"
        f" {asks.sequences} sequences of {asks.context:,}"
    )


def _offers(hosts: tuple[Host, ...]) -> str:
    counted = Counter[str]()
    for host in hosts:
        counted[host.card.name] += host.cards
    owners = len({host.owner for host in hosts})
    named = ", ".join(f"{count} {name}" for name, count in counted.most_common(6))
    more = f" and {len(counted) - 6} other kinds" if len(counted) > 6 else ""
    return f"{len(hosts)} hosts of {owners} owners: {named}{more}"


def _headline(option: Option) -> str:
    much = f"{long(option.seconds)}, {format_credits(option.price)} credits"
    if len(option.hosts) == 1:
        return f"one host alone: {much}"
    return f"{option.kind}, {option.how}, on {len(option.hosts)} hosts: {much}"


def _body(asks: Work, option: Option) -> list[str]:
    waits = option.exchange / option.step if option.step else 0.0
    tight = option.worst
    have = tight.footprint.card + tight.spare
    said = [
        f"{format_credits(option.price_of_million)} credits a million tokens; {option.steps:,} steps of"
        f" {long(option.step)}, {waits:.0%} of it waiting for lines; {option.efficiency:.1%} of the time"
        " is work that counts",
        f"hosts: {_named(option.hosts)}; {_classes(asks, option)}",
        f"memory: {format_bytes(tight.footprint.card)} of {format_bytes(have)} on the tightest card"
        f" ({RECOMPUTED[option.recompute]}, micro-batches of {option.micro}); lines: {format_bytes(option.up)} up and"
        f" {format_bytes(option.down)} down a step",
    ]
    return (
        said
        if option.is_run_today
        else [*said, "planned only: `farflung run` trains in rounds, with whole replicas"]
    )


def _classes(asks: Work, option: Option) -> str:
    """The machines by their class for this job (docs/plan/admission.md), and the first reason for the worst."""
    judged = machines.admitted(asks, option)
    counted = Counter(each.admission.grade for each in judged)
    said = ", ".join(f"{counted[grade]} of class {grade}" for grade in sorted(counted))
    worst = max(judged, key=lambda each: each.admission.grade)
    if not worst.admission.warnings:
        return said
    first = worst.admission.warnings[0]
    return f"{said} ({first.at}: {first.rule} {first.why})"


def _named(hosts: tuple[Host, ...]) -> str:
    shown = ", ".join(host.name for host in hosts[:8])
    return shown + (f" and {len(hosts) - 8} more" if len(hosts) > 8 else "")


def _explained(fact: Fact) -> str:
    return f"{fact.name} = {fact.value}: {fact.formula} [{fact.source}]"


def _assumed(found: Advice) -> str:
    usual = Assumed()
    return (
        f"cards reach {usual.utilisation:.0%} of their dense bfloat16 rate; a host that does not say leaves after"
        f" {CHURN / 3600:g} hours on the average. {found.tried} ways were reckoned, the {found.goal} counts; verifiers'"
        " pay is not in these prices (farflung audit-plan)"
    )


def long(seconds: float) -> str:
    """`0.35 ms`, `3 h 05 min`, `12.4 days`."""
    if seconds < 0.1:
        return f"{1e3 * seconds:.3g} ms"
    return f"{seconds / DAY:,.4g} days" if seconds >= 2 * DAY else format_seconds(seconds)


def json(asks: Work, found: Advice) -> str:
    """One line; bytes, seconds, micro-credits."""
    facts = {
        "parameters": asks.parameters,
        "tokens": asks.tokens,
        "goal": found.goal,
        "tried": found.tried,
        "best": [_option(option) for option in found.best],
        "binding": [msgspec.structs.asdict(blocked) for blocked in found.binding],
    }
    return msgspec.json.encode(facts).decode()


def _option(option: Option) -> dict[str, Any]:
    return {
        "kind": option.kind,
        "how": option.how,
        "hosts": [host.name for host in option.hosts],
        "seconds": option.seconds,
        "price": option.price,
        "price_of_million": option.price_of_million,
        "step_seconds": option.step,
        "exchange_seconds": option.exchange,
        "steps": option.steps,
        "efficiency": option.efficiency,
        "up_bytes": option.up,
        "down_bytes": option.down,
        "memory_bytes": option.worst.footprint.card,
        "memory_of": [memory_of(host) for host in option.hosts],
        "recompute": option.recompute,
        "micro_batch": option.micro,
        "is_run_today": option.is_run_today,
        "facts": [msgspec.structs.asdict(fact) for fact in option.facts],
    }


def cards_of(name: str, *, as_json: bool) -> list[str]:
    """The table of cards, or one card with its worth beside an A100. Raises UsageError FF-PLAN-031 and -032."""
    table = cards.read()
    found = (table.find(name),) if name else table.cards
    if as_json:
        return [msgspec.json.encode(msgspec.structs.asdict(card), enc_hook=sorted).decode() for card in found]
    if not name:
        return text.listing(found)
    return [*text.sheet(found[0]), "", *text.worth([value(found[0], text.best(found[0]))])]
