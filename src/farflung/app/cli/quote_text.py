"""Formats the output of `farflung quote`: price, hired hosts, supply, lost hosts, recent prices (P1, J3)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from textwrap import wrap
from typing import Any, Final

import msgspec

from farflung.advice.layouts import host_speed
from farflung.advice.offer_file_market import HostPace, OfferedJob, asked
from farflung.advice.offers.offer_file import OfferedHost
from farflung.app.cli import check_text
from farflung.app.cli.plan_offers_text import long
from farflung.core.ids import PeerId
from farflung.core.money import Credits, format_credits, rounded_credits, times
from farflung.core.units import format_count
from farflung.market.bids import Bid, cap_of
from farflung.market.quote import ConstraintLoss, Quote
from farflung.market.work_units import token_price

STAGE: Final = 9
SHOWN: Final = 12  # hosts that are named
UNIT: Final = "10^15 FLOP"
SCALE: Final = "Those jobs name their own price of a token, however few FLOP it takes: no measure of the offers"


class JobQuote(msgspec.Struct, frozen=True):
    """A job on offers, what it bids, and the answer."""

    found: OfferedJob
    bid: Bid
    answer: Quote

    @property
    def hired(self) -> tuple[OfferedHost, ...]:
        """Cheapest first."""
        return tuple(self.found.hosts[each] for each in self.answer.hired)

    @property
    def paces(self) -> tuple[HostPace, ...]:
        """Of those who are hired."""
        return tuple(self.found.paces[each] for each in self.answer.hired)

    @property
    def seconds(self) -> float | None:
        """Of all rounds: each waits for its slowest member. None: nobody is hired."""
        if not self.answer.hired:
            return None
        return self.found.spec.rounds * max(pace.round for pace in self.paces)

    @property
    def waiting(self) -> float:
        """The share of that time in which the slowest member waits for its line."""
        slowest = max(self.paces, key=lambda pace: pace.round)
        return slowest.exchange / slowest.round

    @property
    def million(self) -> int | None:
        """Pico-credits for a million accepted tokens, up."""
        price = self.answer.price
        return None if price is None else math.ceil(price * 10**6 / self.found.spec.round_tokens)

    @property
    def token(self) -> Credits | None:
        """Pico-credits for one token, as a lease can hold it."""
        price = self.answer.price
        return None if price is None else token_price(price, self.found.spec.round_tokens)

    @property
    def leased(self) -> Credits | None:
        """Pico-credits for all units at that price."""
        tokens = self.bid.units * self.found.spec.round_tokens
        return None if self.token is None else times(self.token, tokens)

    @property
    def is_leased_above(self) -> bool:
        """Whether that is more than the budget, though the clearing price is not."""
        return self.leased is not None and self.leased > self.found.order.budget


def lines(told: JobQuote) -> list[str]:
    """No wider than the terminal, and than 80 columns."""
    columns = min(80, check_text.width())
    rows: list[str] = []
    for stage, text in _said(told):
        rows += _say(stage, text, columns)
    at = next(number for number, row in enumerate(rows) if row.startswith("Last day"))
    return [*rows[:at], *_funnel(told.answer, columns), *rows[at:]]


def _say(stage: str, text: str, columns: int) -> list[str]:
    rows = wrap(text, columns - STAGE)
    return [f"{'' if at else stage:<{STAGE}}{row}" for at, row in enumerate(rows)]


def _said(told: JobQuote) -> Iterator[tuple[str, str]]:
    yield "Job", _job(told)
    yield "Asked", _asked(told)
    yield "Offers", _offers(told)
    if told.answer.ask is not None:
        yield "Price", _price(told)
        yield "Lease", _lease(told)
        yield "Hired", _hired(told)
        yield "Time", _time(told)
    else:
        yield "Nobody", _nobody(told)
    yield "Supply", _supply(told)
    yield "Last day", _day(told)
    yield "Assumed", _assumed()


def _job(told: JobQuote) -> str:
    spec, work, bid = told.found.spec, told.found.work, told.bid
    return (
        f"{format_count(work.parameters)} parameters; each member makes {spec.rounds:,} rounds of {spec.sync.steps}"
        f" steps and {spec.round_tokens:,} tokens: {bid.work.flop / 1e15:,.4g} x {UNIT}"
    )


def _asked(told: JobQuote) -> str:
    order, bid = told.found.order, told.bid
    within = "any time" if order.deadline is None else f"within {long((order.deadline - order.start) / 1000)}"
    more = [
        f"class {order.grade} of machine" if order.grade is not None else "",
        f"a stake of {format_credits(order.stake)}" if order.stake else "",
        " or ".join(order.cards),
    ]
    beside = "".join(f", {each}" for each in more if each)
    return (
        f"{_count(order.members, 'member')} and {_count(order.spares, 'spare')} of similar speed, {within}{beside}; at"
        f" most {format_credits(order.budget)} credits in all and {format_credits(order.unit_price)} a token, so at"
        f" most {rounded_credits(bid.reserve)} for {UNIT}; at most {cap_of(order.members)} of one owner"
    )


def _count(number: int, word: str) -> str:
    return f"{number or 'no'} {word}{'' if number == 1 else 's'}"


def _offers(told: JobQuote) -> str:
    hosts = told.found.hosts.values()
    asks = sorted(asked(host) for host in hosts)
    return (
        f"{_count(len(hosts), 'host')} of {_count(len({host.owner for host in hosts}), 'owner')}, at"
        f" {rounded_credits(asks[0])} to {rounded_credits(asks[-1])} credits for {UNIT}"
    )


def _price(told: JobQuote) -> str:
    answer = told.answer
    assert answer.ask is not None
    assert answer.price is not None
    assert answer.total is not None
    assert answer.setter is not None
    assert told.million is not None
    return (
        f"{rounded_credits(answer.ask)} credits for {UNIT}, the ask of {told.found.hosts[answer.setter].name}, who is"
        f" not hired; {rounded_credits(answer.price)} for one member's round, {rounded_credits(told.million)} for a"
        f" million tokens, {rounded_credits(answer.total)} for all"
    )


def _lease(told: JobQuote) -> str:
    assert told.token is not None
    assert told.leased is not None
    above = f", above the budget of {format_credits(told.found.order.budget)}" if told.is_leased_above else ""
    return (
        f"the ledger's leases hold the price of a token: {format_credits(told.token)} each,"
        f" {format_credits(told.leased)} credits for all{above}"
    )


def _hired(told: JobQuote) -> str:
    names = _named([host.name for host in told.hired])
    counted = Counter(pace.admission.grade for pace in told.paces)
    classes = ", ".join(f"{counted[grade]} of class {grade}" for grade in sorted(counted))
    draw = " (which of them begin and which are spares is drawn)" if told.found.order.spares else ""
    return f"{names}{draw}; {classes}{_reason(told)}"


def _reason(told: JobQuote) -> str:
    """The first thing that is missed by the machine of the lowest class."""
    both = zip(told.hired, told.paces, strict=True)
    host, pace = max(both, key=lambda each: each[1].admission.grade)
    if not pace.admission.warnings:
        return ""
    first = pace.admission.warnings[0]
    return f" ({host.name}: {first.rule} {first.why})"


def _named(names: list[str]) -> str:
    rest = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {rest} more" if rest > 0 else "")


def _time(told: JobQuote) -> str:
    assert told.seconds is not None
    said = f"{long(told.seconds)} at the pace of the slowest"
    if told.waiting:
        said += f", {told.waiting:.0%} of it waiting for its line: the price is for work and pays no waiting"
    return said


def _nobody(told: JobQuote) -> str:
    beyond = told.answer.beyond
    money = "" if beyond is None else f"; {rounded_credits(beyond)} credits for {UNIT} would do it"
    return f"{told.answer.hint}{money}"


def _supply(told: JobQuote) -> str:
    points = [
        f"{_count(point.members, 'member')} cannot be had"
        if point.ask is None
        else f"{_count(point.members, 'member')} at {rounded_credits(point.ask)}"
        for point in told.answer.curve
    ]
    return f"credits for {UNIT}, whatever the budget: {', '.join(points)}"


def _funnel(answer: Quote, columns: int) -> list[str]:
    """Each constraint that keeps anybody out: how many are left, how many it removed, and whom it alone keeps out."""
    left = dict(answer.funnel.steps)
    rows = _say("Funnel", "hosts left, those that a constraint removes, and those that it alone keeps out", columns)
    rows.append(_row("", "left", "removes", "alone"))
    rows.append(_row("offers", left["offers"]))
    for loss in (one for one in answer.losses if one.removed):
        rows += _beside(_row(loss.name, left[loss.name], loss.removed, loss.alone), loss, columns)
    similar = left["similar"]
    return [*rows, _row("similar speed", similar, answer.funnel.steps[-2][1] - similar)]


def _row(name: str, left: object, removed: object = "", alone: object = "") -> str:
    return f"{'':<{STAGE}}{name:<19}{left!s:>5}{removed!s:>8}{alone!s:>6}".rstrip()


def _beside(head: str, loss: ConstraintLoss, columns: int) -> list[str]:
    """What is asked of each, beside the numbers where there is room, else below."""
    if len(head) + 2 + len(loss.value) <= columns:
        return [f"{head}  {loss.value}"]
    indent = " " * (STAGE + 2)
    return [head, *(indent + row for row in wrap(loss.value, columns - len(indent)))]


def _day(told: JobQuote) -> str:
    day, order = told.answer.day, told.found.order
    if day is None:
        return f"this computer hired {'no ' + ' or '.join(order.cards) if order.cards else 'nobody'} in the last 24 h"
    where = f"{_count(day.bundles, 'run')} on this computer's own processor"
    if day.low == day.high:
        said = f"{rounded_credits(day.low)} test credits for {UNIT}, {_count(day.hosts, 'host')} in {where}"
    else:
        said = (
            f"{rounded_credits(day.low)} to {rounded_credits(day.high)} test credits for {UNIT}, half of {day.hosts}"
            f" hosts at {rounded_credits(day.median)} or below, in {where}"
        )
    return f"{said}. {SCALE}"


def _assumed() -> str:
    return (
        f"an ask is an hour's price over what the host's cards compute in it, {host_speed.UTILISATION:.0%} of their"
        f" dense bfloat16 rate; each member holds the whole model and trains in rounds; verifiers' pay is not in it"
        " (farflung audit-plan)"
    )


def step(told: JobQuote) -> str:
    """What to try where nobody can be hired."""
    if told.answer.beyond is not None:
        total = told.bid.total(told.answer.beyond)
        tokens = told.bid.units * told.found.spec.round_tokens
        return f"--budget {format_credits(total)} --price {format_credits(-(-total // tokens))}"
    return "fewer --members or --spares, other constraints, or more offers"


def json(told: JobQuote) -> str:
    """One line; pico-credits, bytes, seconds."""
    answer, bid, order = told.answer, told.bid, told.found.order
    facts = {
        "members": order.members,
        "spares": order.spares,
        "deadline_seconds": None if order.deadline is None else (order.deadline - order.start) / 1000,
        "class": order.grade or "any",
        "cards": order.cards,
        "calibrated_units": bid.work.flop / 1e15,
        "rounds": bid.work.units,
        "unit_flop": bid.work.each.flop,
        "memory_bytes": bid.memory_bytes,
        "reserve": bid.reserve,
        "ask": answer.ask,
        "price_of_round": answer.price,
        "price_of_million": told.million,
        "total": answer.total,
        "lease_price_of_token": told.token,
        "lease_total": told.leased,
        "lease_is_above_budget": told.is_leased_above,
        "hired": [host.name for host in told.hired],
        "classes": [pace.admission.grade for pace in told.paces],
        "setter": None if answer.setter is None else told.found.hosts[answer.setter].name,
        "seconds": told.seconds,
        "waiting": told.waiting if told.hired else None,
        "beyond": answer.beyond,
        "hint": answer.hint,
        "curve": [msgspec.structs.asdict(point) for point in answer.curve],
        "funnel": [{"constraint": name, "left": left} for name, left in answer.funnel.steps],
        "losses": [msgspec.structs.asdict(loss) for loss in answer.losses],
        "last_day": None if answer.day is None else msgspec.structs.asdict(answer.day),
        "offers": [_offer(told, each) for each in told.found.hosts],
    }
    return msgspec.json.encode(facts).decode()


def _offer(told: JobQuote, each: PeerId) -> dict[str, Any]:
    host, pace = told.found.hosts[each], told.found.paces[each]
    return {
        "host": host.name,
        "owner": host.owner,
        "card": host.card.name,
        "ask": asked(host),
        "speed": host_speed.rate(host),
        "round_seconds": pace.round,
        "class": pace.admission.grade,
    }
