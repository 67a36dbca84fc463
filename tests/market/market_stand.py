"""Standing asks and bids that tests change one field of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from market_play import peer
from msgspec.structs import replace

from farflung.core.ids import PeerId
from farflung.core.money import Credits
from farflung.core.units import Millis
from farflung.market.asks import Ask, HostMeasurements, Market, StandingOffer, market
from farflung.market.bids import Bid
from farflung.market.price_history import tape
from farflung.market.work_units import CALIBRATED, MemberWork, UnitBounds

NOW = Millis(1_700_000_000_000)
EMPTY = tape([])
HOUR = 3_600_000
DAY = 24 * HOUR
UNIT = UnitBounds(100, CALIBRATED, 10**8, 10**8, 1 << 30, 900)
LARGEST = UnitBounds(1000, 4 * CALIBRATED, 10**9, 10**9, 1 << 33, 3600)
HOST = HostMeasurements("rtx 3060", 10**13, 12 << 30, 10**11, 8, 20 * 10**6, 10**8, 950, Credits(10**6))


def named(number: int) -> PeerId:
    return peer(number)


def stand(number: int, price: int, **changes: Any) -> StandingOffer:
    """One offer; fields of the ask or of the host may be changed."""
    ask = Ask(named(number), named(number), Credits(price), Millis(NOW + DAY), LARGEST)
    of_ask = {name: value for name, value in changes.items() if name in Ask.__struct_fields__}
    of_host = {name: value for name, value in changes.items() if name not in of_ask}
    return StandingOffer(replace(ask, **of_ask), replace(HOST, **of_host))


def crowd(*prices: int, **changes: Any) -> list[StandingOffer]:
    """Offers at these prices, numbered from 1."""
    return [stand(number, price, **changes) for number, price in enumerate(prices, 1)]


def bid(members: int = 2, spares: int = 0, **changes: Any) -> Bid:
    """A bid that each offer here can serve, at up to 1000 pico-credits for a unit."""
    plain = Bid(
        members=members, spares=spares, work=MemberWork(10, UNIT), price=Credits(1000),
        budget=Credits(10**9), start=NOW, deadline=Millis(NOW + DAY),
    )  # fmt: skip
    return replace(plain, **changes)


def numbers(peers: Sequence[PeerId]) -> list[int]:
    return sorted(int.from_bytes(each, "big") for each in peers)


def offers(*prices: int, **changes: Any) -> Market:
    return market(crowd(*prices, **changes))
