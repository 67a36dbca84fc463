"""Who is hired, and at what price: the cheapest n providers of similar speed.

A round is as slow as its slowest member, so members are taken from one *window* of measured speed [p, 1.25 p].
Where a window holds n + 1 candidates all n winners are paid the (n+1)-th lowest ask: no winner can change that
price, and a bid above it cannot win another window, so a provider with one slot does best by asking what it
costs (Vickrey 1961; tests/market tries it by brute force). The window with the least such price wins.
Where no window has a spare ask, a window of exactly n is taken and all are paid the highest of its n asks:
whoever asks most sets the price, which is not truthful, but a small market trades, and below the requester's
ceiling. Asks are ordered by (ask, peer id), within a window and between the asks that set the windows' prices: with
any other tie-break between windows a winner could raise its own price. Everything is a whole number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from farflung.core.errors import PolicyError
from farflung.core.ids import PeerId
from farflung.core.money import Credits, format_credits
from farflung.core.units import format_bytes, format_count
from farflung.market.offer import Listing

SIMILARITY_PERCENT: Final = 125


class Request(msgspec.Struct, frozen=True):
    """What a job asks of each member; `unit_price` is the most it pays for one accepted token."""

    members: int
    unit_price: Credits
    memory_bytes: int = 0
    disk_bytes: int = 0
    cores: int = 1
    flops: int = 0
    stake: Credits = Credits(0)
    similarity_percent: int = SIMILARITY_PERCENT


class Funnel(msgspec.Struct, frozen=True):
    """How many offers were left after each constraint, in the order they were applied."""

    steps: tuple[tuple[str, int], ...]

    def text(self) -> str:
        """`5 offers → 5 memory → 4 price`; constraints that lost nobody are left out but for the last."""
        kept = [self.steps[0]]
        for i, step in enumerate(self.steps[1:], 1):
            if step[1] != self.steps[i - 1][1] or i == len(self.steps) - 1:
                kept.append(step)
        return " → ".join(f"{count} {name}" for name, count in kept)


class Match(msgspec.Struct, frozen=True):
    """Chosen peers, sorted by id, each paid `unit_price`; spares of the same window, cheapest first."""

    peers: tuple[PeerId, ...]
    unit_price: Credits
    spares: tuple[PeerId, ...]
    funnel: Funnel
    is_uniform: bool  # paid the (n+1)-th ask; False: the highest of exactly n


Test = Callable[[Listing], bool]


def _constraints(request: Request) -> tuple[tuple[str, str, Test], ...]:
    """(name, its present value as text, test) of each constraint."""
    return (
        ("cores", str(request.cores), lambda a: a.capabilities.cores >= request.cores),
        ("memory", format_bytes(request.memory_bytes), _has_memory(request)),
        ("disk", format_bytes(request.disk_bytes), lambda a: a.capabilities.disk_bytes >= request.disk_bytes),
        ("speed", f"{format_count(request.flops)}FLOP/s", _is_fast(request)),
        ("stake", f"{format_credits(request.stake)} credits", lambda a: a.stake_free >= request.stake),
        (
            "price",
            f"{format_credits(request.unit_price)} credits",
            lambda a: a.unit_price <= request.unit_price,
        ),
    )


def _has_memory(request: Request) -> Test:
    return lambda ask: ask.capabilities.memory_bytes >= request.memory_bytes


def _is_fast(request: Request) -> Test:
    return lambda ask: ask.capabilities.flops >= request.flops


def _cheapest_first(listings: Sequence[Listing]) -> list[Listing]:
    """One listing per peer (its lowest ask), by ask, then by peer id."""
    seen: dict[PeerId, Listing] = {}
    for listing in sorted(listings, key=lambda ask: (ask.unit_price, ask.peer)):
        seen.setdefault(listing.peer, listing)
    return list(seen.values())


def _windows(asks: Sequence[Listing], percent: int) -> list[list[Listing]]:
    """For each distinct speed p, fastest first: the asks with speed in [p, percent/100 * p], cheapest first."""
    speeds = sorted({ask.capabilities.flops for ask in asks}, reverse=True)
    return [
        [a for a in asks if low <= a.capabilities.flops and 100 * a.capabilities.flops <= percent * low]
        for low in speeds
    ]


def _best(windows: Sequence[list[Listing]], members: int) -> tuple[list[Listing], int] | None:
    """The window of least price and the index of the ask that sets it; None when no window has n."""
    for setter in (members, members - 1):
        able = [window for window in windows if len(window) > setter]
        if able:
            return min(able, key=lambda window: (window[setter].unit_price, window[setter].peer)), setter
    return None


def match(request: Request, listings: Sequence[Listing]) -> Match:
    """Chooses `request.members` providers; raises PolicyError FF-MARK-001 naming what to relax."""
    asks = _cheapest_first(listings)
    left, steps = asks, [("offers", len(asks))]
    for name, _, is_met in _constraints(request):
        left = [ask for ask in left if is_met(ask)]
        steps.append((name, len(left)))
    windows = _windows(left, request.similarity_percent)
    steps.append(("similar", max((len(window) for window in windows), default=0)))
    funnel = Funnel(tuple(steps))
    best = _best(windows, request.members)
    if best is None or request.members < 1:
        raise _too_few(request, asks, funnel)
    window, setter = best
    return Match(
        peers=tuple(sorted(ask.peer for ask in window[: request.members])),
        unit_price=window[setter].unit_price,
        spares=tuple(ask.peer for ask in window[request.members :]),
        funnel=funnel,
        is_uniform=setter == request.members,
    )


def _too_few(request: Request, asks: Sequence[Listing], funnel: Funnel) -> PolicyError:
    return PolicyError(
        "FF-MARK-001",
        f"{request.members} providers are asked for, {funnel.steps[-1][1]} are left",
        cause=funnel.text(),
        hint=_relief(request, asks),
    )


def _relief(request: Request, asks: Sequence[Listing]) -> str:
    """The one constraint that, dropped alone, leaves enough; else the one that loses most."""
    if len(asks) < request.members:
        return f"ask for at most {len(asks)} providers, or wait until more offer"
    rules = _constraints(request)
    kept: list[tuple[int, str, str]] = []
    for name, value, _ in rules:
        rest = [ask for ask in asks if all(test(ask) for other, _, test in rules if other != name)]
        if _best(_windows(rest, request.similarity_percent), request.members):
            return f"relax {name}: {value} is asked of each"
        kept.append((len(rest), name, value))
    if sum(all(test(ask) for _, _, test in rules) for ask in asks) >= request.members:
        return f"relax similarity: speeds may differ by {request.similarity_percent - 100} % at most"
    _, name, value = max(kept, key=lambda row: row[0])
    return f"relax {name} first ({value} is asked of each); it is not the only constraint in the way"
