"""Cards, worth, prices and admissions as lines: within 80 columns, with what is not known said; and the docs' table."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from farflung.core.units import Bytes, Flop, Seconds, Tokens
from farflung.plan.cards import profile, text
from farflung.plan.cards.admission import Computer, Demand, Place, Slot, judge
from farflung.plan.cards.card import with_profile
from farflung.plan.cards.cost import Work, cost
from farflung.plan.cards.spread import Site
from farflung.plan.cards.value import value
from farflung.plan.io.cards import read

TABLE = read()
PAGE = Path(__file__).resolve().parents[2] / "docs" / "plan" / "cards.md"
BEGIN, END = "<!-- cards: begin -->\n\n", "\n<!-- cards: end -->"
RTX3090, M3 = TABLE.find("RTX 3090"), TABLE.find("M3 Max")


def test_every_listing_keeps_within_80_columns() -> None:
    worth = text.worth([value(card, hour=12.345, kilowatt_hour=0.25) for card in TABLE.cards])
    for line in [
        *text.listing(TABLE.cards),
        *worth,
        *(line for card in TABLE.cards for line in text.sheet(card)),
    ]:
        assert len(line) <= text.WIDTH, line


def test_a_row_shows_shaders_and_matrix_units_apart() -> None:
    head, *lines = text.listing([TABLE.find(name) for name in ("GTX 1660", "RTX 3090", "M3 Max")])
    assert head.split() == ["card", "GB", "GB/s", "FP32", "FP16", "mat16", "matB16", "W", "/W"]
    assert lines[0].split()[-7:] == ["192", "5.03", "10.1", "-", "-", "120", "0.107"][-7:]
    assert lines[1].split()[-7:] == ["936", "35.6", "35.6", "71.2", "71.2", "350", "0.261"]
    assert lines[2].split()[-4:] == ["-", "-", "?", "?"]


def test_a_matrix_rate_that_is_not_known_is_shown_so_and_not_as_none() -> None:
    unsure = msgspec.structs.replace(RTX3090, matrix_fp16=None)
    assert text.rows([unsure])[0][5] == "?"


def test_a_cards_sheet_says_where_each_figure_is_from() -> None:
    lines = "\n".join(text.sheet(TABLE.find("RTX 3060 12GB")))
    assert "FP32      12.7 TFLOP/s, vector (derived)" in lines
    assert "BF16      25.5 TFLOP/s, matrix (derived)" in lines
    assert "PCIe 4 x16, 31.5 GB/s each way" in lines
    assert "CUDA 8.6, bfloat16" in lines
    assert "product pages 2020-2022" in lines
    own = profile.parse('card = "RTX 3060 12GB"\nbf16_tflops = 19.5\nconditions = "60 s at 150 W"')
    measured = "\n".join(text.sheet(with_profile(TABLE.find("RTX 3060 12GB"), own)))
    assert "BF16      19.5 TFLOP/s, whole (measured)" in measured
    assert "measured  60 s at 150 W" in measured
    apple = "\n".join(text.sheet(M3))
    assert "power     not known\n" in apple
    assert "none: the memory is the processor's" in apple


def test_a_bill_names_price_reference_and_each_sites_part() -> None:
    sites = [Site("attic " * 20, ((RTX3090, 2),), 500, 60, 0.1, 0.3), Site("shed", ((M3, 1),))]
    lines = text.bill(cost(Work(Tokens(10**9), Flop(6e9), 0.1), sites), "EUR")
    whole = "\n".join(lines)
    assert all(len(line) <= text.WIDTH for line in lines), whole
    assert "EUR a million verified tokens" in whole.replace("\n        ", " ")
    assert "not known: shed: M3 Max 40-core: watts" in whole
    assert "not known: shed: spare power" in whole
    assert lines[-2].startswith("attic attic")
    assert lines[-1].split()[0] == "shed"


def test_an_admission_begins_with_its_class_and_what_is_missed() -> None:
    box = Computer(
        "a box with quite a long name of its own", (Slot(Bytes(24 * 10**9), 4, None),), 4, Bytes(30 * 10**9)
    )
    demand = Demand(memory_bytes=20e9, sent=1e6, round_seconds=Seconds(10.0))
    lines = text.admitted(judge(Place((box,), 1e5, None), demand))
    assert all(len(line) <= text.WIDTH for line in lines)
    assert lines[0] == "class C"
    starts = [line for line in lines[1:] if not line.startswith(" ")]
    assert [line[:9].strip() for line in starts] == ["missed", "not known", "ok", "ok"]
    told = " ".join(" ".join(lines).split())
    rules = [told.index(f": {rule}: ") for rule in ("up", "lanes", "memory", "cores")]
    assert rules == sorted(rules)  # of what is met, what is below its rule of thumb comes first
    assert "(the rule of thumb: 48 GB)" in told


@pytest.mark.parametrize(
    ("number", "shown"),
    [
        (0.0, "0"),
        (0.03046, "0.0305"),
        (6.175, "6.17"),
        (99.95, "100"),
        (1979.6, "1980"),
        (1.2e-7, "1.20e-07"),
    ],
)
def test_figures_have_three_digits(number: float, shown: str) -> None:
    assert text.figure(number) == shown


def test_the_page_holds_the_table_as_it_is() -> None:
    """To write it anew: put `text.page(read().cards)` between the two marks."""
    page = PAGE.read_text(encoding="utf-8")
    shown = page.split(BEGIN)[1].split(END)[0]
    assert shown == "\n".join(text.page(TABLE.cards)) + "\n"
