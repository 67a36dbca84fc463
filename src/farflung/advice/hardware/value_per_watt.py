"""Compares a card with an A100: per watt, per unit of money, and the price at which it breaks even (P3).

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

from farflung.advice.hardware.card import Card, CardRate, FactorPrecision, FigureOrigin
from farflung.advice.hardware.number_checks import MOST_PRICE, MOST_WATTS, checked, positive
from farflung.core.errors import UsageError

CLAIMED_LOSS: Final = 0.2  # of the work, to the network: the source article's claim
MOST_LOSS: Final = 1 - 1e-9  # who loses all of the work does none
HOURS: Final = 720.0  # of a month of 30 days
EIGHT: Final = 40.96  # an hour of eight A100


class ReferenceCard(msgspec.Struct, frozen=True):
    """What cards are held against: FLOP/s, W, and a currency unit of any kind for one card for an hour."""

    rate: float = 312e12
    watts: float = 400.0
    hour: float = EIGHT / 8
    name: str = "A100"

    def __post_init__(self) -> None:
        positive("rate", self.rate, 1e18)
        positive("watts", self.watts, MOST_WATTS)
        positive("hour", self.hour, MOST_PRICE)


A100: Final = ReferenceCard()


def month_price(hour: float = A100.hour) -> float:
    """The price of a card for 30 days that costs so much an hour: 3,686.40 of one of eight at 40.96."""
    return checked("hour", hour, 0.0, MOST_PRICE) * HOURS


def worth_of_watt(rate: float, watts: float, loss: float, reference: ReferenceCard) -> float:
    """Work for a watt beside the reference, of FLOP/s that draw so many W and lose a share of the work."""
    return rate / reference.rate / (watts / reference.watts) * (1 - loss)


class CardValue(msgspec.Struct, frozen=True):
    """A card beside the reference; None where something is not known.

    `level`: the price of a card and hour at which it does as much for the same money. `power`: what its electricity
    costs in an hour at full work.
    """

    card: Card
    rate: CardRate
    loss: float
    relative: float
    per_watt: float | None
    per_money: float | None
    level: float
    power: float | None
    watts_origin: FigureOrigin

    @property
    def is_below_power(self) -> bool | None:
        """Whether at the level price the owner would not even have the electricity paid; None: not known."""
        return None if self.power is None else self.level < self.power


def value(
    card: Card,
    precision: FactorPrecision = FactorPrecision.BF16,
    *,
    loss: float = CLAIMED_LOSS,
    hour: float | None = None,
    kilowatt_hour: float | None = None,
    reference: ReferenceCard = A100,
) -> CardValue:
    """A card beside the reference, in products of that precision (of the reference: the rate that it names).

    `hour`: what the card costs an hour; `kilowatt_hour`: what electricity does; both in the reference's currency. A
    rate that was measured is held against a data sheet's, which nothing reaches: give a measured reference as well.
    Raises UsageError FF-PLAN-035 that names the argument: negative, absurd, not a number.
    """
    kept = 1 - checked("loss", loss, 0.0, MOST_LOSS)
    rate = card.rate(precision)
    watts, origin = card.power
    relative = rate.flops / reference.rate
    price = None if hour is None else positive("hour", hour, MOST_PRICE)
    tariff = None if kilowatt_hour is None else checked("kilowatt_hour", kilowatt_hour, 0.0, MOST_PRICE)
    return CardValue(
        card=card,
        rate=rate,
        loss=loss,
        relative=relative,
        per_watt=None if watts is None else worth_of_watt(rate.flops, watts, loss, reference),
        per_money=None if price is None else relative * kept / (price / reference.hour),
        level=reference.hour * relative * kept,
        power=None if watts is None or tariff is None else watts / 1000 * tariff,
        watts_origin=origin,
    )


class CardPrices(msgspec.Struct, frozen=True):
    """What somebody says of a card: money for its hour and for a kWh, the loss to the network, the reference's hour."""

    hour: float | None = None
    kilowatt_hour: float | None = None
    loss: float = CLAIMED_LOSS
    reference: ReferenceCard = A100

    def value(self, card: Card, precision: FactorPrecision) -> CardValue:
        """The card at these prices. Raises what `value` raises."""
        return value(
            card, precision, loss=self.loss, hour=self.hour, kilowatt_hour=self.kilowatt_hour, reference=self.reference
        )  # fmt: skip


def prices_of(text: str) -> CardPrices:
    """`HOUR/KWH/LOSS/A100`, in any one currency; parts at the end, or empty ones, are not said.

    Raises UsageError FF-PLAN-039 (no such numbers), FF-PLAN-035 (one that makes no sense).
    """
    parts = [part.strip() for part in text.split("/")] if text.strip() else []
    try:
        hour, tariff, loss, level, *more = [float(part) if part else None for part in [*parts, "", "", "", ""]]
    except ValueError:
        hour, tariff, loss, level, more = None, None, None, None, [0.0]
    if any(each is not None for each in more):
        raise UsageError(
            "FF-PLAN-039",
            f"{text[:40]!r} are no prices of a card",
            cause="they are up to four numbers: of an hour, of a kWh, the share lost to the network, an A100's hour",
            hint="like @0.35/0.30/0.1/5.12; what is not known is left empty",
        )
    reference = A100 if level is None else ReferenceCard(hour=level)
    return CardPrices(hour, tariff, CLAIMED_LOSS if loss is None else loss, reference)
