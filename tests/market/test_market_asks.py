"""Asks are sealed before they are read, and refused where a number makes no sense."""

from __future__ import annotations

import pytest
from market_stand import HOST, named, stand
from msgspec.structs import replace

from farflung.core.errors import UsageError
from farflung.market.asks import is_opened, market, seal

NONCE = bytes(range(32))


def test_a_seal_is_opened_by_its_ask_and_nonce_alone() -> None:
    ask = stand(1, 50).ask
    sealed = seal(ask, NONCE)
    assert is_opened(sealed, ask, NONCE)
    assert not is_opened(sealed, ask, bytes(32))


def test_every_field_of_an_ask_is_under_its_seal() -> None:
    ask = stand(1, 50).ask
    bounds = replace(ask.bounds, seconds=7)
    changes = {
        "peer": named(2), "owner": named(2), "price": 49, "until": ask.until + 1, "bounds": bounds, "minimum": 2,
        "most": 99, "hours": 1,
    }  # fmt: skip
    assert set(changes) == set(ask.__struct_fields__)
    sealed = seal(ask, NONCE)
    for name, value in changes.items():
        assert not is_opened(sealed, replace(ask, **{name: value}), NONCE)


def test_equal_asks_have_unequal_seals() -> None:
    assert seal(stand(1, 50).ask, NONCE) != seal(stand(1, 50).ask, bytes(32))


@pytest.mark.parametrize("size", [0, 16, 33])
def test_a_nonce_that_can_be_guessed_seals_nothing(size: int) -> None:
    with pytest.raises(UsageError) as error:
        seal(stand(1, 50).ask, bytes(size))
    assert error.value.code == "FF-MARK-016"
    assert not is_opened(seal(stand(1, 50).ask, NONCE), stand(1, 50).ask, bytes(size))


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
