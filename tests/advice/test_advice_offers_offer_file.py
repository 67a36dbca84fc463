"""A file of offers: read as it was meant, or refused with the host and the key that is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farflung.advice.hardware.card import FactorPrecision, FigureOrigin
from farflung.advice.io import card_files
from farflung.advice.layouts import host_speed
from farflung.advice.offers import offer_file
from farflung.advice.offers.offer_file import HOUR, parse
from farflung.core.errors import FarflungError, UsageError
from farflung.core.money import CREDIT

TABLE = card_files.read()
WHOLE = """
[[host]]
name = "attic"
owner = "ann"
region = "eu"
card = "rtx 4090"
cards = 2
link = "40/250/20ms"
price = "0.35"
cores = 16
memory_gb = 64
lanes = 8
churn_hours = 30
stake = "20"
"""
LEAST = '[[host]]\nname = "den"\ncard = "RTX 3090"\nlink = "20/100"\nprice = "0"\n'


def test_a_host_is_what_is_written() -> None:
    (host,) = parse(WHOLE, TABLE)
    assert (host.name, host.owner, host.region, host.cards) == ("attic", "ann", "eu", 2)
    assert host.card.name == "GeForce RTX 4090"
    assert (host.link.up, host.link.down, host.link.round_trip) == (40e6, 250e6, 0.02)
    assert (host.price, host.cores, host.memory_bytes, host.lanes) == (350_000_000_000, 16, 64 * 10**9, 8)
    assert (host.churn, host.stake) == (30 * HOUR, 20 * CREDIT)


def test_what_is_not_said_is_not_known_and_never_zero() -> None:
    (host,) = parse(LEAST, TABLE)
    assert (host.owner, host.cards, host.stake) == ("den", 1, 0)
    assert (host.cores, host.memory_bytes, host.lanes, host.churn) == (None, None, None, None)


def test_the_example_is_a_file_of_offers() -> None:
    text = (Path(__file__).parents[2] / "examples" / "offers" / "six_hosts.toml").read_text()
    found = parse(text, TABLE)
    assert len(found) == len({host.owner for host in found}) == 6


def test_what_cannot_be_is_refused_by_its_name(subtests: pytest.Subtests) -> None:
    for text, code, words in [
        ("", "FF-PLAN-060", "[[host]] parts"),
        ("host = []", "FF-PLAN-060", "nobody offers anything"),
        ("x = [", "FF-PLAN-060", ""),
        ("[host]\nname = 'a'", "FF-PLAN-060", "[[host]] parts"),
        (LEAST + "[job]\n", "FF-PLAN-060", "nothing else"),
        (LEAST + LEAST, "FF-PLAN-061", "'den' is another host's, too"),
        (LEAST.replace('name = "den"\n', ""), "FF-PLAN-061", "it is missing"),
        (LEAST.replace('"den"', '" "'), "FF-PLAN-061", "it is empty"),
        (LEAST.replace('"den"', "7"), "FF-PLAN-061", "a text in quotes"),
        (LEAST + "card_count = 2", "FF-PLAN-061", "no host has that"),
        (LEAST.replace("RTX 3090", "RTX 3900"), "FF-PLAN-061", "no card is called"),
        (LEAST.replace("20/100", "20"), "FF-PLAN-061", "is no link"),
        (LEAST.replace('"0"', '"-1"'), "FF-PLAN-061", "not an amount of credits"),
        (LEAST + 'stake = "-2"', "FF-PLAN-061", "not an amount of credits"),
        (LEAST + "cards = 0", "FF-PLAN-061", "above 0"),
        (LEAST + "cards = 1.5", "FF-PLAN-061", "whole number"),
        (LEAST + "cards = true", "FF-PLAN-061", "above 0"),
        (LEAST + "memory_gb = -1", "FF-PLAN-061", "above 0"),
        (LEAST + "memory_gb = nan", "FF-PLAN-061", "above 0"),
        (LEAST + "memory_gb = inf", "FF-PLAN-061", "above 0"),
        (LEAST + "lanes = 17", "FF-PLAN-061", "at most 16"),
        (LEAST + "churn_hours = 0", "FF-PLAN-061", "above 0"),
        (LEAST + "utilisation = 1.1", "FF-PLAN-061", "at most 1"),
        (LEAST + "profile = 3", "FF-PLAN-061", "a text in quotes"),
        (LEAST + "profile = 'own.toml'", "FF-PLAN-061", "no profile 'own.toml' can be read here"),
        (LEAST + "profile = { bf16_tflops = 0 }", "FF-PLAN-061", "no profile of a card: bf16_tflops"),
        (LEAST + "profile = { speed = 1 }", "FF-PLAN-061", "no profile of a card: speed"),
        (LEAST + "profile = { card = 'RTX 4090' }", "FF-PLAN-061", "measured on GeForce RTX 4090"),
        (LEAST + "profile = { card = 'RTX 4900' }", "FF-PLAN-061", "no card is called"),
    ]:
        with subtests.test(text=text, code=code, words=words):
            with pytest.raises(UsageError) as raised:
                parse(text, TABLE)
            assert raised.value.code == code
            assert words in (raised.value.cause or "")


def test_a_misspelt_key_is_told_which_was_meant() -> None:
    with pytest.raises(UsageError, match="churn_hour") as raised:
        parse(LEAST + "churn_hour = 3", TABLE)
    assert raised.value.hint == 'did you mean "churn_hours"?'


def test_too_many_hosts_and_too_long_files_are_refused_before_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offer_file.limits, "OFFERED_HOSTS", 2)
    rows = "".join(LEAST.replace("den", f"den{number}") for number in range(3))
    with pytest.raises(UsageError, match="cannot be read") as raised:
        parse(rows, TABLE)
    assert "3 hosts, and at most 2" in (raised.value.cause or "")
    monkeypatch.setattr(offer_file.limits, "OFFERS_CHARACTERS", 10)
    with pytest.raises(UsageError) as raised:
        parse(LEAST, TABLE)
    assert "more than 10 characters" in (raised.value.cause or "")


@given(st.text(max_size=200))
def test_any_text_is_hosts_or_a_clear_refusal(text: str) -> None:
    try:
        parse(text, TABLE)
    except FarflungError as error:
        refused = error.code
    else:
        refused = ""
    assert refused in ("", "FF-PLAN-060", "FF-PLAN-061")


def test_what_was_measured_stands_before_the_table_in_place_or_from_a_file() -> None:
    """The same figures, and the table's for what was not measured."""
    table = TABLE.find("RTX 3090")
    own = 'bf16_tflops = 61.5, memory_gb = 23.5, conditions = "matmul 8192"'
    (inline,) = parse(f"{LEAST}profile = {{ {own} }}", TABLE)
    files = {"den.toml": 'card = "rtx 3090"\n' + own.replace(", ", "\n")}
    (named,) = parse(LEAST + 'profile = "den.toml"', TABLE, files.__getitem__)
    for host in (inline, named):
        found = host.card.rate(FactorPrecision.BF16)
        assert (found.flops, found.origin) == (61.5e12, FigureOrigin.MEASURED)
        assert host.card.memory[0] == 23.5e9
        assert host.card.bandwidth == table.bandwidth
        assert host.card.name == table.name


def test_a_profile_changes_what_a_host_is_reckoned_with() -> None:
    (plain,), (measured,) = (
        parse(LEAST + more, TABLE) for more in ("", "profile = { bf16_tflops = 30.0 }\nutilisation = 0.5")
    )
    assert host_speed.rate(measured, 0.4) == 30e12 * 0.5
    assert host_speed.rate(plain, 0.4) == TABLE.find("RTX 3090").rate(FactorPrecision.BF16).flops * 0.4


def test_a_profile_that_is_not_there_names_the_host() -> None:
    def read(name: str) -> str:
        raise UsageError("FF-APP-161", "no such file", cause=name)

    with pytest.raises(UsageError, match="den") as raised:
        parse(LEAST + 'profile = "gone.toml"', TABLE, read)
    assert raised.value.code == "FF-PLAN-061"


# What stands beside the hosts


def test_electricity_and_what_the_hosts_are_held_against_stand_beside_them() -> None:
    said = offer_file.terms_of(LEAST + "[energy]\nkwh = 0.3\n[reference]\ncard = 'H100 SXM 80GB'\nprice = 2.4", TABLE)
    assert (said.kilowatt_hour, said.is_priced) == (0.3, True)
    assert (said.reference.watts, said.reference.hour, said.reference.name) == (700, 2.4, "H100 SXM 80GB")
    assert said.reference.rate == pytest.approx(989.4e12, rel=0.001)
    plain = offer_file.terms_of(LEAST, TABLE)
    assert (plain.kilowatt_hour, plain.is_priced, plain.reference.name) == (None, False, "A100")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[energy]\nkWh = 0.3", "known are kwh"),
        ("[energy]\nkwh = -1", "kwh is -1"),
        ("[energy]\nkwh = '0.3'", "without quotes"),
        ("[energy]\nkwh = true", "without quotes"),
        ("[reference]\ncard = 'M3 Max'", "not known"),
        ("[reference]\ncard = 3", "a text in quotes"),
        ("[reference]\ncard = 'RTX 4900'", "no card is called"),
        ("[reference]\nprice = 0", "price is 0"),
        ("[reference]\nprice = nan", "price is nan"),
    ],
)
def test_terms_that_cannot_be_are_refused_by_their_key(text: str, words: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse(LEAST + text, TABLE)
    assert raised.value.code == "FF-PLAN-061"
    assert words in raised.value.cause


def at(name: str, link: str = "40/90", more: str = "") -> str:
    return f'[[host]]\nname = "{name}"\ncard = "RTX 3090"\nlink = "{link}"\nprice = "0"\n{more}\n'


def test_hosts_of_one_site_have_equal_parts_of_its_line() -> None:
    site = "site = 'street 7'"
    one, two, own = parse(at("a", more=site) + at("b", more=site) + at("c"), TABLE)
    assert one.link.up == two.link.up == 20e6
    assert one.line is not None
    assert (one.line.up, one.line.down, own.line) == (40e6, 90e6, None)
    assert own.site == "c"
    with pytest.raises(UsageError, match="FF-PLAN-061") as raised:
        parse(at("a", more=site) + at("b", "50/90", site), TABLE)
    assert "share a line" in raised.value.cause


def test_spare_power_is_the_part_of_the_time_that_a_host_computes() -> None:
    half, whole = parse(at("a", more="spare_watts = 175") + at("b", more="spare_watts = 900"), TABLE)
    assert (half.duty, whole.duty) == (0.5, 1.0)
    assert host_speed.rate(half) == pytest.approx(host_speed.rate(whole) / 2)
    (less,) = parse(at("a", more="spare_watts = 175\nbase_watts = 70"), TABLE)
    assert less.duty == pytest.approx(0.3)
    with pytest.raises(UsageError, match="FF-PLAN-061"):
        parse(at("a", more="spare_watts = 70\nbase_watts = 70"), TABLE)
    with pytest.raises(UsageError) as raised:
        parse(at("a", more="spare_watts = 9").replace("RTX 3090", "M3 Max"), TABLE)
    assert "say its watts in a profile" in raised.value.cause
