"""Formats cards, their value, a run's energy and cost, and an admission as text."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from typing import Final

from farflung.advice.hardware.admission import MachineAdmission, RuleState
from farflung.advice.hardware.card import GIGA, TERA, Card, FactorPrecision, FigureOrigin, software
from farflung.advice.hardware.run_cost import RunCost
from farflung.advice.hardware.value_per_watt import CLAIMED_LOSS, CardValue, ReferenceCard, month_price, value
from farflung.core.units import format_bytes, format_multiple

WIDTH: Final = 80
NAME: Final = 28  # characters of a place
PLACES: Final = 4  # that are named
UNKNOWN: Final = "?"
NONE: Final = "-"
_MARKS: Final = {RuleState.OK: "ok", RuleState.UNKNOWN: "not known", RuleState.FAILED: "missed"}
HEAD: Final = ("card", "GB", "GB/s", "FP32", "FP16", "mat16", "matB16", "W", "/W")


def rows(cards: Iterable[Card]) -> list[tuple[str, ...]]:
    """Name, memory, bandwidth, shaders' FP32 and FP16, matrix FP16 and BF16 in TFLOP/s, W, and worth per W of an A100.

    The worth is in BF16 where the card has it in hardware, else in FP16, without any loss to the network.
    """
    return [
        (
            card.name,
            figure(card.memory[0] / GIGA),
            f"{card.speed[0] / GIGA:.0f}",
            figure(card.vector_fp32 / TERA),
            figure(card.vector_fp16 / TERA),
            _rate(card.matrix_fp16),
            _rate(card.matrix_bf16),
            _known(card.power[0]),
            _known(value(card, best(card), loss=0.0).per_watt),
        )
        for card in cards
    ]


def best(card: Card) -> FactorPrecision:
    """The 16-bit format that a card computes fastest in: bfloat16 where the hardware has it. Where one was measured,
    no rate of a data sheet stands against it.
    """
    both = (FactorPrecision.BF16, FactorPrecision.FP16)
    measured = tuple(one for one in both if card.rate(one).origin is FigureOrigin.MEASURED)
    return max(measured or both, key=lambda one: card.rate(one).flops)


def listing(cards: Iterable[Card]) -> list[str]:
    """`rows` under their head."""
    return aligned([HEAD, *rows(cards)])


def aligned(table: Sequence[Sequence[str]], gap: str = "  ") -> list[str]:
    """Columns as wide as they need, the first one to the left, the others to the right."""
    widths = [max(len(row[at]) for row in table) for at in range(len(table[0]))]
    return [
        gap.join(
            text.rjust(width) if at else text.ljust(width)
            for at, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in table
    ]


def sheet(card: Card) -> list[str]:
    """All that is known of one card, each figure with where it is from."""
    memory, speed, watts = card.memory, card.speed, card.power
    bus = "none: the memory is the processor's" if card.is_unified else f"PCIe {card.pcie} x{card.lanes}"
    lines = [f"{card.name}: {card.maker} {card.family}, {card.kind}, {card.year}"]
    lines.append(_line("memory", f"{format_bytes(memory[0])} at {format_bytes(speed[0])}/s", speed[1]))
    for precision in FactorPrecision:
        rate = card.rate(precision)
        told = f"{figure(rate.flops / TERA)} TFLOP/s, {rate.units}"
        lines.append(_line(precision.value.upper(), told, rate.origin))
    vectors = f"FP32 {figure(card.vector_fp32 / TERA)}, FP16 {figure(card.vector_fp16 / TERA)} TFLOP/s"
    lines.append(_line("shaders", f"{card.shaders} at {card.boost / 1e6:.0f} MHz: {vectors}"))
    lines.append(_line("power", "not known") if watts[0] is None else _line("power", f"{watts[0]:g} W", watts[1]))
    lines.append(_line("bus", bus if card.is_unified else f"{bus}, {format_bytes(card.link)}/s each way"))
    lines.append(_line("software", software(card) + {True: ", bfloat16", False: "", None: ""}[card.has_bf16]))
    lines += textwrap.wrap(card.source, WIDTH, initial_indent="  source    ", subsequent_indent=" " * 12)
    if card.measured is not None and card.measured.conditions:
        told = card.measured.conditions
        lines += textwrap.wrap(told, WIDTH, initial_indent="  measured  ", subsequent_indent=" " * 12)
    return lines


def _line(label: str, told: str, origin: FigureOrigin | None = None) -> str:
    return f"  {label:<9} {told}" + (f" ({origin})" if origin else "")


def worth(values: Sequence[CardValue]) -> list[str]:
    """Cards beside the reference: relative rate, per watt, per money, level price and electricity of an hour."""
    head = ("card", "TFLOP/s", "by", "of A100", "/W", "/money", "level/h", "power/h")
    table = [
        (
            one.card.name,
            figure(one.rate.flops / TERA),
            one.rate.units.value,
            figure(one.relative),
            _known(one.per_watt),
            _known(one.per_money),
            f"{one.level:.3f}",
            NONE if one.power is None else f"{one.power:.3f}",
        )
        for one in values
    ]
    return aligned([head, *table], gap=" ")


def at_prices(found: CardValue, reference: ReferenceCard) -> list[str]:
    """What a row of `worth` was calculated with, and what follows for whoever owns the card."""
    claimed = "the source article's claim" if found.loss == CLAIMED_LOSS else "as said"
    said = [
        f"beside {reference.name} at {figure(reference.hour)} an hour, {month_price(reference.hour):,.2f} a month;"
        f" {found.loss:.0%} of the work lost to the network: {claimed}"
    ]
    if found.is_below_power:
        said.append("at the level price not even its electricity would be paid")
    if found.per_money is None:
        said.append("prices of your own, in any one currency: NAME@HOUR/KWH/LOSS/A100, like @0.35/0.30/0.1/5.12")
    return [row for one in said for row in textwrap.wrap(one, WIDTH)]


def energy(cost: RunCost, kilowatt_hour: float | None, currency: str) -> str:
    """A run's kWh, what its owners pay for them where that is said, and where they are drawn."""
    dark = sorted({told for told in cost.unknown if told.endswith(": watts")})
    if dark:
        return f"energy: not known, for {dark[0].removesuffix(': watts')} says no watts"
    paid = "" if kilowatt_hour is None else f", {figure(cost.power)} {currency} at {kilowatt_hour:g} a kWh"
    return f"energy: {figure(cost.energy)} kWh with its cards at full power{paid}{_spread(cost)}"


def _spread(cost: RunCost) -> str:
    """Of the power that is drawn, each place's share; a few."""
    places = drawn(cost)
    if len(places) < 2:
        return ""
    named = [f"{name[:NAME]} {share:.0%}" for name, share in list(places.items())[:PLACES]]
    rest = len(places) - PLACES
    return f"; drawn in {', '.join(named)}" + (f" and {rest} more places" if rest > 0 else "")


def drawn(cost: RunCost) -> dict[str, float]:
    """Each place's share of the power, the largest first."""
    whole = sum(share.watts for share in cost.shares)
    found: dict[str, float] = {}
    for share in cost.shares:
        found[share.site.name] = found.get(share.site.name, 0.0) + (share.watts / whole if whole else 0.0)
    return dict(sorted(found.items(), key=lambda each: (-each[1], each[0])))


def beside(cost: RunCost, audited: float, currency: str, *, is_priced: bool) -> str:
    """A verified token's price, and work for a watt and for money beside the reference, with the loss that there is."""
    checked = f", of which audits repeat {audited:.0%}" if audited else ", none of them audited"
    rows = [f"{figure(cost.per_token * 1e6)} {currency} a million verified tokens{checked}"]
    of = f"beside {cost.beside.name}s"
    if cost.per_watt is not None:
        rows.append(f"{of} {figure(cost.per_watt)} of the work for a watt")
        of = "and"
    if is_priced:
        rows.append(f"{of} {format_multiple(cost.ratio)} times the money, they at {figure(cost.beside.hour)} an hour")
    lost = f"{cost.loss:.0%} of what the cards could do is lost to lines, waiting and failures (the article: 20%)"
    return f"{', '.join(rows)}; {lost}"


def admitted(admission: MachineAdmission) -> list[str]:
    """A row for each rule, those that are met last."""
    order = (RuleState.FAILED, RuleState.UNKNOWN, RuleState.OK)
    ordered = sorted(admission.findings, key=lambda one: (order.index(one.state), not one.is_below_thumb))
    return [f"{_MARKS[one.state]}: {one.at}: {one.rule}: {one.why}" for one in ordered]


def figure(number: float) -> str:
    """Three digits, plainly: `0.0305`, `6.17`, `35.6`, `1980`."""
    if number >= 100:
        return f"{number:.0f}"
    return f"{number:.3g}" if abs(number) >= 1e-4 or number == 0 else f"{number:.2e}"


def _rate(flops: float | None) -> str:
    return UNKNOWN if flops is None else figure(flops / TERA) if flops else NONE


def _known(number: float | None) -> str:
    return UNKNOWN if number is None else figure(number)
