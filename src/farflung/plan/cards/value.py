"""What a card is worth beside an A100: per watt, per unit of money, and the price at which it draws level (P3).

    relative = rate / 312e12                         dense BF16 of an A100 (NVIDIA, A100 data sheet 2021)
    per watt = (rate / 312e12) / (watts / 400) (1 - loss)         400 W: A100 SXM, the same sheet
    per money = relative (1 - loss) / (price / reference price)
    level = reference price x relative x (1 - loss)

The first and second are the source article's (research: plan, section 2), with its claim that the network costs a
fifth of the work; here `loss` is a parameter, to be replaced by what was measured. Its price, 3,686.40 a card and
month, is 40.96 an hour for eight cards, of which a month has 720. Which rate is meant decides everything: by FP32 of
its shaders a new card beats an A100 per watt, by matrix products in 16 bits no card for consumers does.
"""

from __future__ import annotations

from typing import Final

import msgspec

from farflung.plan.cards.amounts import MOST_PRICE, MOST_WATTS, checked, positive, whole
from farflung.plan.cards.card import Card, Origin, Precision, Rate

CLAIMED_LOSS: Final = 0.2  # of the work, to the network: the source article's claim
HOURS: Final = 720.0  # of a month of 30 days
EIGHT: Final = 40.96  # an hour of eight A100


def month_price(hour: float = EIGHT, cards: int = 8) -> float:
    """The price of one card for 30 days where `cards` of them cost `hour` an hour: 3,686.40."""
    return checked("hour", hour, 0.0, MOST_PRICE) / whole("cards", cards, 1, 1 << 20) * HOURS


class Reference(msgspec.Struct, frozen=True):
    """What cards are held against: FLOP/s, W, and a currency unit of any kind for one card for an hour."""

    rate: float = 312e12
    watts: float = 400.0
    hour: float = EIGHT / 8
    name: str = "A100"

    def __post_init__(self) -> None:
        positive("rate", self.rate, 1e18)
        positive("watts", self.watts, MOST_WATTS)
        positive("hour", self.hour, MOST_PRICE)


A100: Final = Reference()


class Value(msgspec.Struct, frozen=True):
    """A card beside the reference; None where something is not known.

    `level`: the price of a card and hour at which it does as much for the same money. `power`: what its electricity
    costs in an hour at full work.
    """

    card: Card
    rate: Rate
    loss: float
    relative: float
    per_watt: float | None
    per_money: float | None
    level: float
    power: float | None
    watts_origin: Origin

    @property
    def is_below_power(self) -> bool | None:
        """Whether at the level price the owner would not even have the electricity paid; None: not known."""
        return None if self.power is None else self.level < self.power


def value(
    card: Card,
    precision: Precision = Precision.BF16,
    *,
    loss: float = CLAIMED_LOSS,
    hour: float | None = None,
    kilowatt_hour: float | None = None,
    reference: Reference = A100,
) -> Value:
    """A card beside the reference, in products of that precision (of the reference: the rate that it names).

    `hour`: what the card costs an hour; `kilowatt_hour`: what electricity does; both in the reference's currency. A
    rate that was measured is held against a data sheet's, which nothing reaches: give a measured reference as well.
    Raises UsageError FF-PLAN-035 that names the argument: negative, absurd, not a number.
    """
    kept = 1 - checked("loss", loss, 0.0, 0.999)
    rate = card.rate(precision)
    watts, origin = card.power
    relative = rate.flops / reference.rate
    price = None if hour is None else positive("hour", hour, MOST_PRICE)
    tariff = None if kilowatt_hour is None else checked("kilowatt_hour", kilowatt_hour, 0.0, MOST_PRICE)
    return Value(
        card=card,
        rate=rate,
        loss=loss,
        relative=relative,
        per_watt=None if watts is None else relative / (watts / reference.watts) * kept,
        per_money=None if price is None else relative * kept / (price / reference.hour),
        level=reference.hour * relative * kept,
        power=None if watts is None or tariff is None else watts / 1000 * tariff,
        watts_origin=origin,
    )
