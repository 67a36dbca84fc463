"""Cards, their worth, a run's price and an admission as lines of at most 80 columns; and the table of the docs."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from typing import Final

from farflung.core.units import format_bytes, format_multiple, format_seconds
from farflung.plan.cards.admission import Admission, State
from farflung.plan.cards.card import GIGA, TERA, Card, Origin, Precision, software
from farflung.plan.cards.cost import Cost
from farflung.plan.cards.value import Value, value

WIDTH: Final = 80
NAME: Final = 28  # of a site, in a table
UNKNOWN: Final = "?"
NONE: Final = "-"
_MARKS: Final = {State.OK: "ok", State.UNKNOWN: "not known", State.FAILED: "missed"}
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


def best(card: Card) -> Precision:
    """The 16-bit format that a card computes fastest in: bfloat16 where the hardware has it. Where one was measured,
    no rate of a data sheet stands against it.
    """
    both = (Precision.BF16, Precision.FP16)
    measured = tuple(one for one in both if card.rate(one).origin is Origin.MEASURED)
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
    for precision in Precision:
        rate = card.rate(precision)
        told = f"{figure(rate.flops / TERA)} TFLOP/s, {rate.units}"
        lines.append(_line(precision.value.upper(), told, rate.origin))
    vectors = f"FP32 {figure(card.vector_fp32 / TERA)}, FP16 {figure(card.vector_fp16 / TERA)} TFLOP/s"
    lines.append(_line("shaders", f"{card.shaders} at {card.boost / 1e6:.0f} MHz: {vectors}"))
    lines.append(
        _line("power", "not known") if watts[0] is None else _line("power", f"{watts[0]:g} W", watts[1])
    )
    lines.append(_line("bus", bus if card.is_unified else f"{bus}, {format_bytes(card.link)}/s each way"))
    lines.append(_line("software", software(card) + {True: ", bfloat16", False: "", None: ""}[card.has_bf16]))
    lines += textwrap.wrap(card.source, WIDTH, initial_indent="  source    ", subsequent_indent=" " * 12)
    if card.measured is not None and card.measured.conditions:
        told = card.measured.conditions
        lines += textwrap.wrap(told, WIDTH, initial_indent="  measured  ", subsequent_indent=" " * 12)
    return lines


def _line(label: str, told: str, origin: Origin | None = None) -> str:
    return f"  {label:<9} {told}" + (f" ({origin})" if origin else "")


def worth(values: Sequence[Value]) -> list[str]:
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


def bill(cost: Cost, currency: str = "") -> list[str]:
    """A run's time, energy and price, and what each site does of it."""
    unit = f" {currency}" if currency else ""
    each = f"{figure(cost.per_token * 1e6)}{unit} a million verified tokens"
    lines = [
        f"time    {format_seconds(cost.seconds)}",
        f"energy  {figure(cost.energy)} kWh",
        f"price   {figure(cost.price)}{unit}: rent {figure(cost.rent)}, power {figure(cost.power)}; {each}",
        f"A100    {figure(cost.reference)}{unit} for the same work: {format_multiple(cost.ratio)} of it is paid here",
    ]
    lines = [part for line in lines for part in textwrap.wrap(line, WIDTH, subsequent_indent=" " * 8)]
    for told in cost.unknown:
        lines += textwrap.wrap(f"not known: {told}", WIDTH, subsequent_indent="  ")
    head = ("site", "share", "tokens", "W", "cards")
    table = [
        (
            share.site.name[:NAME],
            f"{100 * share.share:.1f} %",
            f"{tokens}",
            f"{share.watts:.0f}",
            figure(share.busy),
        )
        for share, tokens in zip(cost.shares, cost.tokens, strict=True)
    ]
    return lines + aligned([head, *table])


def admitted(admission: Admission) -> list[str]:
    """The class, then a line for each rule; those that are met come last."""
    order = (State.FAILED, State.UNKNOWN, State.OK)
    lines = [f"class {admission.grade}"]
    for one in sorted(admission.findings, key=lambda one: (order.index(one.state), not one.is_below_thumb)):
        told = f"{_MARKS[one.state]:<9} {one.at}: {one.rule}: {one.why}"
        lines += textwrap.wrap(told, WIDTH, subsequent_indent=" " * 10)
    return lines


def page(cards: Iterable[Card]) -> list[str]:
    """The table as Markdown: a row a card, with year, bus and software; sources stand in the file."""
    head = ("card", "year", *HEAD[1:], "PCIe", "software")
    lines = ["| " + " | ".join(head) + " |", "|---|" + "--:|" * (len(HEAD)) + "---|---|"]
    for card, row in zip(kept := list(cards), rows(kept), strict=True):
        bus = NONE if card.is_unified else f"{card.pcie} x{card.lanes}"
        lines.append("| " + " | ".join((row[0], str(card.year), *row[1:], bus, software(card))) + " |")
    return lines


def figure(number: float) -> str:
    """Three digits, plainly: `0.0305`, `6.17`, `35.6`, `1980`."""
    if number >= 100:
        return f"{number:.0f}"
    return f"{number:.3g}" if abs(number) >= 1e-4 or number == 0 else f"{number:.2e}"


def _rate(flops: float | None) -> str:
    return UNKNOWN if flops is None else figure(flops / TERA) if flops else NONE


def _known(number: float | None) -> str:
    return UNKNOWN if number is None else figure(number)
