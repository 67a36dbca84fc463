"""Money in configuration files: credits as exact text, or pico-credits as integers; floats are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from farflung.core.errors import UsageError
from farflung.core.money import CREDIT, MAX_CREDITS
from farflung.peers.network.card import NetworkRelayConfig
from farflung.peers.process.config import Count, Money, RoleConfig, read_role_config, write_role_config


class ShopConfig(RoleConfig, frozen=True):
    price: Money = 0
    pages: Count = 0
    relays: tuple[NetworkRelayConfig, ...] = ()
    main: NetworkRelayConfig | None = None


def read(folder: Path, text: str) -> ShopConfig:
    (folder / "shop.toml").write_text(text)
    return read_role_config(folder / "shop.toml", ShopConfig)


@pytest.mark.parametrize(
    ("said", "amount"),
    [
        ('"0.002"', 2 * 10**9),
        ('"0.000000000001"', 1),
        ('"12"', 12 * CREDIT),
        ('"9223372.036854775807"', MAX_CREDITS),
        ("20000000", 20_000_000),
    ],
)
def test_credits_are_read_to_the_last_digit(tmp_path: Path, said: str, amount: int) -> None:
    assert read(tmp_path, f"price = {said}").price == amount


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("price = 0.002", "0.002 is not exact"),
        ('price = "0.0000000000001"', "12 decimal places"),
        ('price = "-1"', "no sign"),
        ('price = "9223373"', "out of range"),
        ("price = -1", ">= 0"),
        ("price = true", "Expected `int`"),
        ('pages = "2"', "Expected `int`"),  # no money
        ('[main]\npeer = "00"\nhost = "x"\nport = 1\nprice = 0.5', "0.5 is not exact"),
    ],
)
def test_what_is_no_exact_amount_is_refused(tmp_path: Path, text: str, cause: str) -> None:
    with pytest.raises(UsageError, match="FF-APP-300") as refused:
        read(tmp_path, text)
    assert cause in refused.value.cause


def test_tables_within_take_credits_and_what_is_written_is_read_as_the_same(tmp_path: Path) -> None:
    relay = f'peer = "{"ab" * 32}"\nhost = "net.example"\nport = 1\nprice = "0.001"\n'
    found = read(tmp_path, f"[main]\n{relay}[[relays]]\n{relay}")
    assert found.main is not None
    assert [found.main.price, found.relays[0].price] == [CREDIT // 1000] * 2
    values: dict[str, Any] = {name: getattr(found, name) for name in found.__struct_fields__}
    assert read_role_config(write_role_config(tmp_path / "again.toml", values), ShopConfig) == found
