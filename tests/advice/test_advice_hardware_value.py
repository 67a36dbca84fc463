"""What a card is worth beside an A100, a user's own profile, and a run's price over sites with spare power."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.advice.hardware import card_profile
from farflung.advice.hardware.card import Card, ComputeUnits, FactorPrecision, FigureOrigin, with_profile
from farflung.advice.hardware.run_cost import VerifiedWork, audited, cost
from farflung.advice.hardware.value_per_watt import A100, ReferenceCard, month_price, prices_of, value
from farflung.advice.hardware.work_split import PowerSite, SiteShare, alone, spread
from farflung.advice.io.card_files import read, read_profile
from farflung.core import limits
from farflung.core.errors import UsageError
from farflung.core.units import Flop, Tokens
from farflung.job.spec import AuditSpec, JobSpec, NetworkSpec

TABLE = read()
A100_CARD = TABLE.find("A100 SXM 80GB")
RTX4090, RTX3090, RTX3060 = (TABLE.find(name) for name in ("RTX 4090", "RTX 3090", "RTX 3060 12GB"))
GTX1660, RX580, M3 = (TABLE.find(name) for name in ("GTX 1660", "RX 580", "M3 Max"))
SPOT = ReferenceCard(hour=1.71)  # a price of September 2026 (research: orchestrate, section 5)


# Reference values


def test_a_month_of_one_of_eight_cards_at_40_96_an_hour_is_3686_40() -> None:
    assert month_price() == pytest.approx(3686.40, abs=0.005)
    assert A100.hour * 720 == pytest.approx(3686.40, abs=0.005)


def test_an_a100_beside_itself_is_worth_1_less_the_loss() -> None:
    found = value(A100_CARD, hour=5.12)
    assert found.relative == 1
    assert found.per_watt == pytest.approx(0.8)
    assert found.per_money == pytest.approx(0.8)
    assert found.level == pytest.approx(0.8 * 5.12)
    assert value(A100_CARD, loss=0.0).per_watt == 1


def test_worth_per_watt_is_that_of_the_research(subtests: pytest.Subtests) -> None:
    for name, expected in [
        ("RTX 4090", 0.35),
        ("RTX 3090", 0.20),
        ("RTX 3060 12GB", 0.14),
        ("RTX 4060", 0.25),
        ("RTX 2080 Ti", 0.21),
        ("RTX 5090", 0.35),
        ("RX 7900 XTX", 0.33),
        ("GTX 1660", 0.08),
        ("RX 580", 0.03),
        ("RX 6800 XT", 0.13),
    ]:
        with subtests.test(name=name, expected=expected):
            pcie = ReferenceCard(watts=300)
            found = value(TABLE.find(name), FactorPrecision.FP16, loss=0.0, reference=pcie)
            assert found.per_watt == pytest.approx(expected, abs=0.006)
            lossy = value(TABLE.find(name), FactorPrecision.FP16, reference=pcie)
            assert lossy.per_watt == pytest.approx(0.8 * found.per_watt)


@pytest.mark.parametrize(
    ("card", "most"), [(RTX4090, 0.73), (RTX3060, 0.112), (GTX1660, 0.0442)], ids=lambda one: str(one)[:12]
)
def test_a_card_draws_level_at_the_price_of_the_research(card: Card, most: float) -> None:
    found = value(card, FactorPrecision.FP16, reference=SPOT, kilowatt_hour=0.25)
    assert found.level == pytest.approx(most, rel=0.015)


def test_a_gtx_1660_at_the_level_price_hardly_pays_its_electricity_and_an_rx_580_does_not() -> None:
    old = value(GTX1660, FactorPrecision.FP16, reference=SPOT, kilowatt_hour=0.25)
    assert old.power == pytest.approx(0.03)
    assert old.is_below_power is False
    assert value(RX580, FactorPrecision.FP16, reference=SPOT, kilowatt_hour=0.25).is_below_power is True
    assert value(GTX1660, FactorPrecision.FP16, reference=SPOT).is_below_power is None


def test_no_card_for_consumers_reaches_an_a100_per_watt_in_16_bit_products_and_new_ones_do_in_fp32() -> None:
    consumers = [card for card in TABLE.cards if card.kind == "consumer" and card.power[0]]
    best = max(value(card, FactorPrecision.FP16, loss=0.0).per_watt or 0 for card in consumers)
    assert 0.8 < best < 1
    shaders = ReferenceCard(rate=19.5e12)
    assert (value(RTX4090, FactorPrecision.FP32, loss=0.0, reference=shaders).per_watt or 0) > 2


# Properties


@given(
    card=st.sampled_from(TABLE.cards),
    precision=st.sampled_from(FactorPrecision),
    losses=st.tuples(st.floats(0, 0.9), st.floats(0.001, 0.09)),
    hour=st.floats(0.001, 100),
)
@settings(max_examples=80, deadline=None)
def test_more_loss_or_a_higher_price_is_never_worth_more(
    card: Card, precision: FactorPrecision, losses: tuple[float, float], hour: float
) -> None:
    less, more = losses[0], sum(losses)
    one = value(card, precision, loss=less, hour=hour)
    lossy = value(card, precision, loss=more, hour=hour)
    dear = value(card, precision, loss=less, hour=2 * hour)
    assert lossy.level < one.level
    assert one.per_money
    assert dear.per_money == pytest.approx(one.per_money / 2)
    assert (one.per_watt is None) == (card.watts is None)
    at_level = value(card, precision, loss=less, hour=one.level)
    assert at_level.per_money == pytest.approx(1)


def test_power_that_is_not_known_is_not_zero() -> None:
    assert M3.watts is None
    found = value(M3, kilowatt_hour=0.25)
    assert (found.per_watt, found.power, found.is_below_power) == (None, None, None)


@pytest.mark.parametrize("number", [-0.1, 1.0, math.nan, math.inf])
def test_a_loss_that_is_no_share_is_refused(number: float) -> None:
    with pytest.raises(UsageError, match="loss is") as caught:
        value(RTX3090, loss=number)
    assert caught.value.code == "FF-PLAN-035"


@pytest.mark.parametrize(
    ("field", "number"),
    [
        ("hour", 0.0),
        ("hour", -1.0),
        ("hour", math.nan),
        ("hour", 1e12),
        ("kilowatt_hour", -0.1),
        ("kilowatt_hour", math.inf),
    ],
)
def test_a_price_that_is_none_is_refused_by_its_name(field: str, number: float) -> None:
    wrong: dict[str, Any] = {field: number}
    with pytest.raises(UsageError, match=f"FF-PLAN-035: {field} is"):
        value(RTX3090, **wrong)


def test_a_reference_that_is_none_is_refused_by_its_name(subtests: pytest.Subtests) -> None:
    for field in ["rate", "watts", "hour"]:
        for number in [0.0, -1.0, math.nan, math.inf]:
            with subtests.test(field=field, number=number):
                with pytest.raises(UsageError, match=f"FF-PLAN-035: {field} is"):
                    ReferenceCard(**{field: number})


# What a user measured


MEASURED = """
card = "RTX 3090"
conditions = "matmul 8192, 60 s, 280 W limit"
fp16_tflops = 61.5
bandwidth_gb_s = 812.0
watts = 280
"""


def test_a_measured_profile_stands_before_the_table_and_says_so() -> None:
    own = with_profile(RTX3090, card_profile.parse(MEASURED))
    assert own.rate(FactorPrecision.FP16) == (61.5e12, ComputeUnits.WHOLE, FigureOrigin.MEASURED)
    assert own.rate(FactorPrecision.BF16) == RTX3090.rate(FactorPrecision.BF16)  # not measured
    assert own.speed == (812e9, FigureOrigin.MEASURED)
    assert own.power == (280, FigureOrigin.MEASURED)
    assert own.memory == (24e9, FigureOrigin.TABLE)
    assert with_profile(RTX3090, card_profile.parse('card = "x"\nmemory_gb = 20.5')).memory == (
        20_500_000_000,
        FigureOrigin.MEASURED,
    )
    found = value(own, FactorPrecision.FP16, loss=0.0)
    assert found.rate.origin is FigureOrigin.MEASURED
    assert found.watts_origin is FigureOrigin.MEASURED
    assert found.per_watt == pytest.approx(61.5 / 312 / (280 / 400))


def test_a_profile_gives_power_to_a_card_whose_own_is_not_known() -> None:
    own = with_profile(M3, card_profile.parse('card = "M3 Max"\nwatts = 78.0'))
    assert value(own).per_watt == pytest.approx(14.31 / 312 / (78 / 400) * 0.8, rel=0.001)


def test_a_profile_that_makes_no_sense_is_refused_by_its_field(subtests: pytest.Subtests) -> None:
    for text, field in [
        ("fp16_tflops = 61.5", "card"),
        ('card = ""', "card"),
        ("card = 3090", "card"),
        ('card = "x"\nconditions = 4', "conditions"),
        ('card = "x"\nfp16 = 61.5', "fp16"),
        ('card = "x"\nfp16_tflops = "61.5"', "fp16_tflops"),
        ('card = "x"\nfp16_tflops = true', "fp16_tflops"),
        ('card = "x"\nfp32_tflops = 0', "fp32_tflops"),
        ('card = "x"\nbf16_tflops = -3.0', "bf16_tflops"),
        ('card = "x"\nbf16_tflops = 1e-9', "bf16_tflops"),
        ('card = "x"\nmemory_gb = 1e-6', "memory_gb"),
        ('card = "x"\nwatts = nan', "watts"),
        ('card = "x"\nwatts = inf', "watts"),
        ('card = "x"\nfp16_tflops = 61500000000000', "fp16_tflops"),
        ('card = "x"\nmemory_gb = 25769803776', "memory_gb"),
        ('card = "x"\nbandwidth_gb_s = 1e20', "bandwidth_gb_s"),
        ("card = ", "the file"),
        ("#" * (limits.CARD_PROFILE_CHARACTERS + 1), "the file"),
    ]:
        with subtests.test(text=text, field=field):
            with pytest.raises(UsageError) as caught:
                card_profile.parse(text)
            assert caught.value.code == "FF-PLAN-033"
            assert caught.value.message.endswith(f": {field}")


def test_a_profile_is_read_from_a_file_and_one_that_cannot_be_is_named(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(MEASURED, encoding="utf-8")
    assert read_profile(file).fp16 == 61.5e12
    file.write_bytes(b"\xff\xfe\x00")
    for path in (file, tmp_path / "gone.toml", tmp_path):
        with pytest.raises(UsageError, match="FF-PLAN-038"):
            read_profile(path)
    file.write_bytes(b"#" * (1 << 20))
    with pytest.raises(UsageError, match="FF-PLAN-033"):
        read_profile(file)


# Work over sites with spare power


def site(*cards: tuple[Card, int], watts: float | None = None, **fields: Any) -> PowerSite:
    return PowerSite("home", tuple(cards), watts, **fields)


def test_a_site_within_its_spare_power_runs_all_its_cards() -> None:
    found = alone(site((RTX3090, 2), watts=800, base_watts=100), FactorPrecision.FP16)
    assert found.rate == pytest.approx(2 * 71.16e12, rel=0.001)
    assert (found.watts, found.busy, found.unknown) == (800, 2, ())


def test_spare_power_is_given_first_to_who_does_most_for_a_watt() -> None:
    found = alone(site((RTX3090, 1), (RTX4090, 1), watts=625), FactorPrecision.FP16)
    assert found.rate == pytest.approx(165.2e12 + 0.5 * 71.16e12, rel=0.001)
    assert found.busy == pytest.approx(1.5)
    assert found.watts == pytest.approx(625)


def test_what_machines_draw_themselves_comes_off_the_spare_power() -> None:
    full = alone(site((RTX3090, 1), watts=350), FactorPrecision.FP16)
    less = alone(site((RTX3090, 1), watts=350, base_watts=70), FactorPrecision.FP16)
    assert less.rate == pytest.approx(0.8 * full.rate)
    none = alone(site((RTX3090, 1), watts=50, base_watts=70), FactorPrecision.FP16)
    assert (none.rate, none.watts) == (0, 0)


def test_power_that_is_not_known_neither_stops_a_site_nor_passes_silently() -> None:
    open_ended = alone(site((RTX3090, 1), (M3, 1)), FactorPrecision.FP16)
    assert open_ended.busy == 2
    assert open_ended.unknown == ("M3 Max 40-core: watts", "spare power")
    bounded = alone(site((RTX3090, 1), (M3, 1), watts=1000), FactorPrecision.FP16)
    assert bounded.busy == 1
    assert bounded.unknown == ("M3 Max 40-core: watts",)


LOTS = st.lists(
    st.tuples(st.sampled_from([card for card in TABLE.cards if card.watts]), st.integers(0, 4)),
    min_size=1, max_size=4, unique_by=lambda lot: lot[0].name,
)  # fmt: skip


WATTS = st.floats(0, 3000, allow_subnormal=False)  # of which there are no parts


@given(lots=LOTS, watts=WATTS, parts=st.lists(st.floats(0, 1), min_size=4, max_size=4))
@settings(max_examples=80, deadline=None)
def test_no_other_use_of_the_same_power_does_more(
    lots: list[tuple[Card, int]], watts: float, parts: list[float]
) -> None:
    found = alone(site(*lots, watts=watts), FactorPrecision.FP16)
    assert found.watts <= watts * (1 + 1e-9)
    use = [part * count for part, (_, count) in zip(parts, lots, strict=False)]
    drawn = sum(part * (card.watts or 0) for part, (card, _) in zip(use, lots, strict=True))
    scale = min(1.0, watts / drawn) if drawn else 0.0
    other = sum(scale * part * card.rate(FactorPrecision.FP16).flops for part, (card, _) in zip(use, lots, strict=True))
    assert other <= found.rate * (1 + 1e-9)


@given(lots=LOTS, watts=st.floats(1, 3000), more=st.floats(0, 1000))
@settings(max_examples=50, deadline=None)
def test_more_spare_power_never_does_less(lots: list[tuple[Card, int]], watts: float, more: float) -> None:
    less = alone(site(*lots, watts=watts), FactorPrecision.BF16)
    assert alone(site(*lots, watts=watts + more), FactorPrecision.BF16).rate >= less.rate * (1 - 1e-12)
    assert alone(site(*lots), FactorPrecision.BF16).rate >= less.rate * (1 - 1e-12)


def test_sites_share_work_as_they_share_the_rate_and_so_end_together() -> None:
    shares = spread([site((RTX4090, 1)), site((RTX3090, 2), watts=350), site((RTX3060, 4))])
    assert sum(one.share for one in shares) == pytest.approx(1)
    times = {round(one.share / one.rate * 1e16, 6) for one in shares}
    assert len(times) == 1


@pytest.mark.parametrize(
    ("sites", "cause"),
    [
        ([], "there are no sites"),
        ([site()], "home: no cards"),
        ([site((RTX3090, 0))], "home: no cards"),
        ([site((RTX3090, 1), watts=10, base_watts=40)], "home: 10 W are spare"),
        ([site((M3, 1), watts=100)], "home: not known are M3 Max 40-core: watts"),
        ([site()] * (limits.SITES + 1), "sites, and at most"),
    ],
)
def test_where_nobody_can_work_it_is_said_why(sites: list[PowerSite], cause: str) -> None:
    with pytest.raises(UsageError) as caught:
        spread(sites)
    assert caught.value.code == "FF-PLAN-037"
    assert cause in caught.value.cause


def test_a_site_with_a_number_that_is_none_is_refused_by_its_field(subtests: pytest.Subtests) -> None:
    for field in ["spare_watts", "base_watts", "hour", "kilowatt_hour"]:
        for number in [-1.0, math.nan, math.inf]:
            with subtests.test(field=field, number=number):
                with pytest.raises(UsageError, match=f"FF-PLAN-035: home: {field} is"):
                    PowerSite("home", ((RTX3090, 1),), **{field: number})
                with pytest.raises(UsageError, match="FF-PLAN-035: home: count is -1"):
                    site((RTX3090, -1))


# A run's price


WORK = VerifiedWork(Tokens(10**9), Flop(6e9), 0.125)


def test_a_runs_time_energy_and_price_are_those_of_its_formulas() -> None:
    sites = [
        site((RTX4090, 1), watts=600, base_watts=50, hour=0.30, kilowatt_hour=0.25),
        site((RTX3090, 1), watts=175, hour=0.10, kilowatt_hour=0.40),
    ]
    found = cost(WORK, sites, utilisation=0.5, loss=0.2)
    rate = 165.16e12 + 71.16e12 / 2
    seconds = 1e9 * 6e9 * 1.125 / (rate * 0.5 * 0.8)
    assert found.seconds == pytest.approx(seconds, rel=0.001)
    assert found.energy == pytest.approx((500 + 175) * seconds / 3.6e6, rel=0.001)
    assert found.rent == pytest.approx((0.30 + 0.5 * 0.10) * seconds / 3600, rel=0.001)
    assert found.power == pytest.approx((0.5 * 0.25 + 0.175 * 0.40) * seconds / 3600, rel=0.001)
    assert found.per_token == found.rent / 1e9
    assert found.per_watt == pytest.approx(rate / 312e12 / (675 / 400) * 0.8, rel=0.001)
    assert found.reference == pytest.approx(1e9 * 6e9 / (312e12 * 0.5) / 3600 * 5.12)
    assert found.ratio == found.rent / found.reference


def test_a_card_at_its_level_price_costs_what_the_reference_does() -> None:
    """Both formulas of the page say the same: without audits, at the level price, price and reference agree."""
    level = value(RTX3090, loss=0.2).level
    found = cost(msgspec.structs.replace(WORK, audited=0.0), [site((RTX3090, 3), hour=level)], loss=0.2)
    assert found.ratio == pytest.approx(1)


@given(audit=st.floats(0, 2), more=st.floats(0.01, 1), loss=st.floats(0, 0.8))
@settings(max_examples=60, deadline=None)
def test_a_verified_token_costs_more_with_more_audits_or_more_loss(audit: float, more: float, loss: float) -> None:
    sites = [site((RTX4090, 1), hour=0.3)]
    one = cost(msgspec.structs.replace(WORK, audited=audit), sites, loss=loss)
    checked = cost(msgspec.structs.replace(WORK, audited=audit + more), sites, loss=loss)
    lossy = cost(msgspec.structs.replace(WORK, audited=audit), sites, loss=min(0.99, loss + more / 10))
    assert checked.per_token / one.per_token == pytest.approx((1 + audit + more) / (1 + audit))
    assert lossy.per_token > one.per_token


def test_what_is_not_known_of_sites_is_told_with_the_price() -> None:
    found = cost(WORK, [site((M3, 1)), site((RTX3090, 1), watts=400)])
    assert found.unknown == ("home: M3 Max 40-core: watts", "home: spare power")


@pytest.mark.parametrize(
    ("fields", "name"),
    [({"tokens": 0}, "tokens"), ({"tokens": -5}, "tokens"), ({"flop": 0.0}, "flop"), ({"flop": math.nan}, "flop"),
     ({"audited": -0.1}, "audited"), ({"audited": math.inf}, "audited"), ({"tokens": 10**19}, "tokens")],
)  # fmt: skip
def test_work_that_is_none_is_refused_by_its_field(fields: dict[str, Any], name: str) -> None:
    with pytest.raises(UsageError, match=f"FF-PLAN-035: {name} is"):
        VerifiedWork(**{"tokens": Tokens(1), "flop": Flop(1.0), **fields})


def test_a_utilisation_that_is_no_share_is_refused() -> None:
    for number in (0.0, 1.5, -1.0, math.nan):
        with pytest.raises(UsageError, match="FF-PLAN-035: utilisation is"):
            cost(WORK, [site((RTX3090, 1))], utilisation=number)


def test_the_audited_share_of_a_job_is_what_its_plan_pays_for() -> None:
    job = JobSpec(rounds=16, audit=AuditSpec(4, 0.25, 0), network=NetworkSpec(providers=4, verifiers=2), budget="1000")
    assert audited(job) == pytest.approx(0.25 / 4, rel=0.01)  # a quarter of contributions, one of four segments
    assert audited(msgspec.structs.replace(job, network=NetworkSpec(providers=4, verifiers=0))) == 0


def test_a_share_says_nothing_of_unknowns_that_there_are_not() -> None:
    assert SiteShare(site(), 0.0, 0.0, 0.0).unknown == ()


# Prices as somebody types them


def test_prices_after_a_cards_name_are_up_to_four_and_empty_ones_are_not_said() -> None:
    found = prices_of("0.35/0.30/0.1/1.71")
    assert (found.hour, found.kilowatt_hour, found.loss, found.reference.hour) == (0.35, 0.30, 0.1, 1.71)
    some = prices_of("/0.3")
    assert (some.hour, some.kilowatt_hour, some.loss, some.reference) == (None, 0.3, 0.2, A100)
    assert prices_of(" ") == prices_of("")


@pytest.mark.parametrize(("text", "code"), [("much", "039"), ("1/2/0.1/4/5", "039"), ("1/2/0.1/0", "035")])
def test_prices_that_are_none_are_refused(text: str, code: str) -> None:
    with pytest.raises(UsageError, match=f"FF-PLAN-{code}"):
        prices_of(text)
