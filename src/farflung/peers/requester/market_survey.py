"""Looks at a network's market before any money is locked: which nodes ask for work, which fit a job, at which stake."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from farflung.core.errors import PolicyError
from farflung.core.ids import ZERO_HASH, PeerId
from farflung.core.money import Credits, parse_credits
from farflung.job.spec import JobSpec
from farflung.ledger.transactions import LeaseRole
from farflung.market.match import Match, MatchRequest, match, one_role_each
from farflung.market.provider_offer import OfferListing
from farflung.peers.requester.lease_negotiation import StandingAsks


class RoleSurvey(msgspec.Struct, frozen=True):
    """One role's nodes: `wanted` by the job, `online` in all, `fitting` that it may hire together; and why no more.

    `unit_price`: pico-credits a token that these would be paid, as their asks stand now.
    """

    wanted: int
    online: int
    fitting: int
    why: str = ""
    unit_price: Credits = Credits(0)

    @property
    def is_enough(self) -> bool:
        """Whether the job can begin with these."""
        return self.fitting >= self.wanted


class MarketSurvey(msgspec.Struct, frozen=True):
    """What a job finds on a network. `stake`: pico-credits that it asks of each node.

    `versions`: which nodes take no job of this format, for people; empty: none. `away`: named verifiers that do not
    ask for work now.
    """

    providers: RoleSurvey
    verifiers: RoleSurvey
    stake: Credits
    versions: str = ""
    away: tuple[PeerId, ...] = ()

    @property
    def is_enough(self) -> bool:
        """Whether the job can begin now."""
        return self.providers.is_enough and self.verifiers.is_enough


def wanted_nodes(spec: JobSpec) -> dict[LeaseRole, int]:
    """How many nodes of each role a job hires."""
    return {LeaseRole.TRAIN: spec.network.providers, LeaseRole.AUDIT: spec.verifiers}


def survey(spec: JobSpec, asks: StandingAsks, memory_bytes: int, most_stake: Credits) -> MarketSurvey:
    """Counts who fits. The stake is `most_stake`, or as much as enough nodes of each role have free."""
    wanted, names = wanted_nodes(spec), spec.named_verifiers
    asks = asks.with_named(names)
    each = one_role_each({role: asks.of[role] for role, count in wanted.items() if count}, wanted)
    free = [_nth([ask.stake_free for ask in listings], wanted[role]) for role, listings in each.items()]
    stake = min([most_stake, *(stake for stake in free if stake)])
    price = parse_credits(spec.unit_price)
    found = {
        role: _role(MatchRequest(ZERO_HASH, count, price, memory_bytes, stake=stake), each.get(role, asks.of[role]))
        for role, count in wanted.items()
    }
    return MarketSurvey(found[LeaseRole.TRAIN], found[LeaseRole.AUDIT], stake, asks.versions_text, away_of(names, asks))


def away_of(names: Sequence[PeerId], asks: StandingAsks) -> tuple[PeerId, ...]:
    """Which of these do not ask for audits now."""
    online = {ask.peer for ask in asks.of[LeaseRole.AUDIT]}
    return tuple(name for name in names if name not in online)


def _nth(amounts: Sequence[Credits], count: int) -> Credits:
    """The least of the `count` greatest, 0 where there are fewer, or none is wanted."""
    return sorted(amounts, reverse=True)[count - 1] if 0 < count <= len(amounts) else Credits(0)


def _role(request: MatchRequest, listings: Sequence[OfferListing]) -> RoleSurvey:
    wanted, why = request.members, ""
    for members in range(wanted, 0, -1):
        found = _matched(msgspec.structs.replace(request, members=members), listings)
        if isinstance(found, Match):
            return RoleSurvey(wanted, len(listings), members, why, found.unit_price)
        why = why or found.cause or found.message
    return RoleSurvey(wanted, len(listings), 0, why)


def _matched(request: MatchRequest, listings: Sequence[OfferListing]) -> Match | PolicyError:
    try:
        return match(request, listings)
    except PolicyError as error:
        return error
