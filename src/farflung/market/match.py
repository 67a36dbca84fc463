"""Hires the cheapest n providers of similar speed, and sets the price that all of them are paid.

A round is as slow as its slowest member, so members are taken from one *window* of measured speed [p, 1.25 p]
(`clearing`). Where a window holds n + 1 candidates all n winners are paid the (n+1)-th lowest ask: no winner can
change that price, and a bid above it cannot win another window, so a provider with one slot does best by asking what it
costs (Vickrey 1961; tests/market tries it by brute force). The window with the least such price wins.
Where no window has a spare ask, a window of exactly n is taken and all are paid the highest of its n asks:
whoever asks most sets the price, which is not truthful, but a small market trades, and below the requester's
ceiling. Nodes of one owner count once: of each owner a window counts the first ask, and an owner works for a job in one
role (`one_role_each`). Asks are ordered by (ask, turn in this job), within a window and between the asks that set the
windows' prices: with any other tie-break between windows a winner could raise its own price. The law holds the price
against the asks in its rows, in the same order (ledger.rules.clearing). Everything is a whole number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeVar

import msgspec

from farflung.core.errors import PolicyError
from farflung.core.ids import Hash, PeerId
from farflung.core.money import Credits, format_credits
from farflung.core.tie_break import rank
from farflung.core.units import format_bytes, format_count
from farflung.market.clearing import SimilarityRule, SpeedWindow
from farflung.market.filter_report import FilterReport, Mask, OfferConstraint, pour, relief
from farflung.market.offer_book import OfferBook, OfferRow, book
from farflung.market.provider_offer import OfferListing

SIMILARITY_PERCENT: Final = 125
Role = TypeVar("Role")
FACTS: Final = ("cores", "memory", "disk", "stake")


class MatchRequest(msgspec.Struct, frozen=True):
    """What a job asks of each member; `unit_price` is the most it pays for one accepted token."""

    job: Hash
    members: int
    unit_price: Credits
    memory_bytes: int = 0
    disk_bytes: int = 0
    cores: int = 1
    flops: int = 0
    stake: Credits = Credits(0)
    similarity_percent: int = SIMILARITY_PERCENT

    @property
    def similar(self) -> SimilarityRule:
        """What may be hired together: of each owner one node."""
        return SimilarityRule(self.similarity_percent, cap=1)


class Match(msgspec.Struct, frozen=True):
    """Chosen peers, sorted by id, each paid `unit_price`, which is the ask of `setter`."""

    peers: tuple[PeerId, ...]
    unit_price: Credits
    setter: PeerId
    funnel: FilterReport

    @property
    def is_uniform(self) -> bool:
        """Whether the price is the (n+1)-th ask; else the highest of exactly n."""
        return self.setter not in self.peers


def match(request: MatchRequest, listings: Sequence[OfferListing]) -> Match:
    """Chooses `request.members` providers; raises PolicyError FF-MARK-001 naming what to relax."""
    asks = book([_row(listing, request.job) for listing in listings], FACTS)
    rules = _rules(request, asks)
    left, steps = pour(asks.size, rules)
    similar = asks.widest(left, request.similar)
    funnel = FilterReport((*steps, ("similar", similar)))
    if request.members < 1 or similar < request.members:
        raise _too_few(request, asks, rules, funnel)
    places = _window(request, asks, left).places
    return Match(
        peers=tuple(sorted(asks.peers[i] for i in places[: request.members])),
        unit_price=Credits(int(asks.prices[places[-1]])),
        setter=asks.peers[places[-1]],
        funnel=funnel,
    )


def one_role_each(
    asks: Mapping[Role, Sequence[OfferListing]], wanted: Mapping[Role, int]
) -> dict[Role, list[OfferListing]]:
    """The asks of each role without those of owners who ask in several: each of these is left in one role.

    That is the role which has fewest owners beyond the `wanted` number. Nobody is hired to judge its own owner's work.
    """
    owners = {role: {ask.whose for ask in listings} for role, listings in asks.items()}
    several = {whose for role in owners for whose in owners[role] if sum(whose in each for each in owners.values()) > 1}
    spare = {role: len(owners[role] - several) - wanted[role] for role in owners}
    roles: dict[PeerId, Role] = {}
    for whose in sorted(several):
        roles[whose] = min((role for role in owners if whose in owners[role] and wanted[role]), key=lambda r: spare[r])
        spare[roles[whose]] += 1
    return {role: [ask for ask in listings if roles.get(ask.whose, role) == role] for role, listings in asks.items()}


def _window(request: MatchRequest, book: OfferBook, left: Mask) -> SpeedWindow:
    """The window, whose last ask sets the price; some window holds n."""
    window = book.best(left, request.members + 1, request.similar)
    window = window or book.best(left, request.members, request.similar)
    assert window is not None
    return window


def _row(listing: OfferListing, job: Hash) -> OfferRow:
    can, peer = listing.capabilities, listing.peer
    facts = (can.cores, can.memory_bytes, can.disk_bytes, listing.stake_free)
    return OfferRow(peer, listing.unit_price, can.flops, listing.whose, peer, facts, rank(job, peer))  # a class each


def _rules(request: MatchRequest, book: OfferBook) -> tuple[OfferConstraint, ...]:
    """The constraints, in the order in which a funnel tells of them."""
    facts = book.facts
    stake, price = (f"{format_credits(amount)} credits" for amount in (request.stake, request.unit_price))
    speed = f"{format_count(request.flops)}FLOP/s"
    return (
        OfferConstraint("cores", str(request.cores), facts["cores"] >= request.cores),
        OfferConstraint("memory", format_bytes(request.memory_bytes), facts["memory"] >= request.memory_bytes),
        OfferConstraint("disk", format_bytes(request.disk_bytes), facts["disk"] >= request.disk_bytes),
        OfferConstraint("speed", speed, book.speeds >= request.flops),
        OfferConstraint("stake", stake, facts["stake"] >= request.stake),
        OfferConstraint("price", price, book.prices <= request.unit_price),
    )


def _too_few(
    request: MatchRequest, book: OfferBook, rules: Sequence[OfferConstraint], funnel: FilterReport
) -> PolicyError:
    return PolicyError(
        "FF-MARK-001",
        f"{request.members} providers are asked for, {funnel.steps[-1][1]} are left",
        cause=funnel.text(),
        hint=_relief(request, book, rules),
    )


def _relief(request: MatchRequest, book: OfferBook, rules: Sequence[OfferConstraint]) -> str:
    if request.members < 1:
        return "ask for one provider at least"
    if book.size < request.members:
        return f"ask for at most {book.size} providers, or wait until more offer"
    if book.owner_count < request.members:
        return f"ask for at most {book.owner_count} providers, or wait: nodes of one owner count as one"

    def is_enough(left: Mask) -> bool:
        return book.widest(left, request.similar) >= request.members

    similar = f"relax similarity: speeds may differ by {request.similarity_percent - 100} % at most"
    return relief(rules, request.members, similar, is_enough)
