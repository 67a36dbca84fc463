"""Cards, worth, prices and admissions as lines: within 80 columns, with what is not known said."""

from __future__ import annotations

import msgspec
import pytest

from farflung.advice.hardware import card_profile, hardware_text
from farflung.advice.hardware.admission import CardDemand, CardSlot, ComputerSite, SiteComputer, judge
from farflung.advice.hardware.card import FactorPrecision, with_profile
from farflung.advice.hardware.run_cost import RunCost, VerifiedWork, cost
from farflung.advice.hardware.value_per_watt import A100, ReferenceCard, prices_of, value
from farflung.advice.hardware.work_split import PowerSite
from farflung.advice.io.card_files import read
from farflung.core.units import Bytes, Flop, Seconds, Tokens

TABLE = read()
RTX3090, M3 = TABLE.find("RTX 3090"), TABLE.find("M3 Max")


def test_every_listing_keeps_within_80_columns() -> None:
    worth = hardware_text.worth([value(card, hour=12.345, kilowatt_hour=0.25) for card in TABLE.cards])
    for line in [
        *hardware_text.listing(TABLE.cards),
        *worth,
        *(line for card in TABLE.cards for line in hardware_text.sheet(card)),
    ]:
        assert len(line) <= hardware_text.WIDTH, line


def test_a_row_shows_shaders_and_matrix_units_apart() -> None:
    head, *lines = hardware_text.listing([TABLE.find(name) for name in ("GTX 1660", "RTX 3090", "M3 Max")])
    assert head.split() == ["card", "GB", "GB/s", "FP32", "FP16", "mat16", "matB16", "W", "/W"]
    assert lines[0].split()[-7:] == ["192", "5.03", "10.1", "-", "-", "120", "0.107"][-7:]
    assert lines[1].split()[-7:] == ["936", "35.6", "35.6", "71.2", "71.2", "350", "0.261"]
    assert lines[2].split()[-4:] == ["-", "-", "?", "?"]


def test_a_matrix_rate_that_is_not_known_is_shown_so_and_not_as_none() -> None:
    unsure = msgspec.structs.replace(RTX3090, matrix_fp16=None)
    assert hardware_text.rows([unsure])[0][5] == "?"


def test_a_cards_sheet_says_where_each_figure_is_from() -> None:
    lines = "\n".join(hardware_text.sheet(TABLE.find("RTX 3060 12GB")))
    assert "FP32      12.7 TFLOP/s, vector (derived)" in lines
    assert "BF16      25.5 TFLOP/s, matrix (derived)" in lines
    assert "PCIe 4 x16, 31.5 GB/s each way" in lines
    assert "CUDA 8.6, bfloat16" in lines
    assert "product pages 2020-2022" in lines
    own = card_profile.parse('card = "RTX 3060 12GB"\nbf16_tflops = 19.5\nconditions = "60 s at 150 W"')
    measured = "\n".join(hardware_text.sheet(with_profile(TABLE.find("RTX 3060 12GB"), own)))
    assert "BF16      19.5 TFLOP/s, whole (measured)" in measured
    assert "measured  60 s at 150 W" in measured
    apple = "\n".join(hardware_text.sheet(M3))
    assert "power     not known\n" in apple
    assert "none: the memory is the processor's" in apple


def priced(*sites: PowerSite, beside: ReferenceCard = A100) -> RunCost:
    return cost(VerifiedWork(Tokens(10**9), Flop(6e9), 0.1), sites, reference=beside)


def test_a_runs_energy_is_told_with_its_price_and_where_it_is_drawn() -> None:
    found = priced(
        PowerSite("attic", ((RTX3090, 2),), 500, 60, 0.1, 0.3), PowerSite("shed", ((RTX3090, 1),), None, 0, 0.1, 0.3)
    )
    kwh, paid = hardware_text.figure(found.energy), hardware_text.figure(found.power)
    told = hardware_text.energy(found, 0.3, "EUR")
    assert told.startswith(
        f"energy: {kwh} kWh with its cards at full power, {paid} EUR at 0.3 a kWh; drawn in attic 59%"
    )
    assert sum(hardware_text.drawn(found).values()) == pytest.approx(1)
    alone = hardware_text.energy(priced(PowerSite("attic", ((RTX3090, 2),))), None, "EUR")
    assert "EUR" not in alone
    assert "drawn in" not in alone
    assert hardware_text.energy(priced(PowerSite("shed", ((M3, 1),))), 0.3, "EUR") == (
        "energy: not known, for shed: M3 Max 40-core says no watts"
    )


def test_a_verified_tokens_price_and_the_reference_stand_with_the_loss_that_there_is() -> None:
    sites = PowerSite("attic", ((RTX3090, 2),), hour=0.1)
    found = priced(sites, beside=ReferenceCard(hour=1.71))
    told = hardware_text.beside(found, 0.1, "EUR", is_priced=True)
    assert told.startswith(
        f"{hardware_text.figure(found.per_token * 1e6)} EUR a million verified tokens, of which audits repeat 10%"
    )
    assert f"beside A100s {hardware_text.figure(found.per_watt or 0)} of the work for a watt" in told
    assert "they at 1.71 an hour" in told
    assert "20% of what the cards could do is lost" in told
    assert "money" not in hardware_text.beside(found, 0.1, "EUR", is_priced=False)
    assert "none of them audited" in hardware_text.beside(found, 0.0, "EUR", is_priced=False)


def test_a_cards_worth_says_what_it_was_reckoned_with() -> None:
    plain, said = prices_of(""), prices_of("0.35/0.30/0.1/1.71")
    told = hardware_text.at_prices(plain.value(RTX3090, FactorPrecision.BF16), plain.reference)
    assert "5.12 an hour, 3,686.40 a month; 20% of the work lost" in told[0]
    assert "the source article's claim" in " ".join(told)
    assert "NAME@HOUR/KWH/LOSS/A100" in " ".join(told)
    told = hardware_text.at_prices(said.value(RTX3090, FactorPrecision.BF16), said.reference)
    assert "1.71 an hour" in told[0]
    assert "10% of the work lost" in told[0]
    old = prices_of("0.01/0.30/0.2/1.71")
    assert "not even its electricity" in " ".join(
        hardware_text.at_prices(old.value(TABLE.find("RX 580"), FactorPrecision.FP16), old.reference)
    )


def test_an_admission_begins_with_what_is_missed() -> None:
    box = SiteComputer(
        "a box with quite a long name of its own", (CardSlot(Bytes(24 * 10**9), 4, None),), 4, Bytes(30 * 10**9)
    )
    demand = CardDemand(memory_bytes=20e9, sent=1e6, received=1e6, round_seconds=Seconds(10.0))
    rows = hardware_text.admitted(judge(ComputerSite((box,), 1e5, None), demand))
    assert [row.split(":")[0] for row in rows] == ["missed", "not known", "not known", "ok", "ok"]
    told = " ".join(rows)
    rules = [told.index(f": {rule}: ") for rule in ("up", "lanes", "down", "memory", "cores")]
    assert rules == sorted(rules)  # of what is met, what is below its rule of thumb comes first
    assert "(the rule of thumb: 48 GB)" in told


@pytest.mark.parametrize(
    ("number", "shown"),
    [(0.0, "0"), (0.03046, "0.0305"), (6.175, "6.17"), (99.95, "100"), (1979.6, "1980"), (1.2e-7, "1.20e-07")],
)
def test_figures_have_three_digits(number: float, shown: str) -> None:
    assert hardware_text.figure(number) == shown
