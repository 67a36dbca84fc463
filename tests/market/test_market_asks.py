"""Asks and machines are refused where a number makes no sense."""

from __future__ import annotations

import pytest
from market_stand import HOST, stand
from msgspec.structs import replace

from farflung.core.errors import UsageError
from farflung.market.asks import market


def test_an_absurd_ask_is_refused_and_the_field_is_named(subtests: pytest.Subtests) -> None:
    for name, value in [
        ("peer", b"short"),
        ("owner", bytes(33)),
        ("price", -1),
        ("price", 1 << 63),
        ("price", 0.5),
        ("until", -1),
        ("minimum", 0),
        ("most", 0),
        ("most", 1 << 41),
        ("hours", 0),
        ("hours", 1 << 24),
        ("price", float("nan")),
    ]:
        with subtests.test(name=name, value=value):
            with pytest.raises(UsageError) as error:
                replace(stand(1, 50).ask, **{name: value})
            assert error.value.code == "FF-MARK-014"
            assert name in error.value.cause


def test_an_absurd_machine_is_refused_and_the_field_is_named(subtests: pytest.Subtests) -> None:
    for name in [name for name in HOST.__struct_fields__ if name != "card"]:
        for value in [-1, 1 << 63, 2.5, None]:
            with subtests.test(name=name, value=value):
                with pytest.raises(UsageError) as error:
                    replace(HOST, **{name: value})
                assert error.value.code == "FF-MARK-015"
                assert name in error.value.cause


def test_a_machine_of_no_class_or_without_speed_is_refused() -> None:
    for changes in ({"card": ""}, {"card": "x" * 65}, {"speed": 0}):
        with pytest.raises(UsageError):
            replace(HOST, **changes)


def test_every_fact_of_an_offer_is_in_the_book() -> None:
    one = stand(1, 50, minimum=3, most=9, hours=7, up=11, reliability=900)
    found = market([one]).asks
    facts = {name: int(column[0]) for name, column in found.facts.items()}
    assert facts == {
        "card": 0, "until": one.ask.until, "minimum": 3, "most": 9, "hours": 7, "memory": HOST.memory_bytes,
        "disk": HOST.disk_bytes, "cores": HOST.cores, "up": 11, "down": HOST.down, "reliability": 900,
        "stake": HOST.stake, "most steps": one.ask.bounds.steps, "most flop": one.ask.bounds.flop,
        "most up_bytes": one.ask.bounds.up_bytes, "most down_bytes": one.ask.bounds.down_bytes,
        "most memory_bytes": one.ask.bounds.memory_bytes, "most seconds": one.ask.bounds.seconds,
    }  # fmt: skip
    assert (int(found.prices[0]), int(found.speeds[0])) == (50, HOST.speed)
