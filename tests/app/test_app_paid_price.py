"""What a person was told that a job costs is what is paid for it, within 1 %."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from farflung.app.cli.run_on import offer_lines
from farflung.core.ids import ZERO_HASH, PeerId
from farflung.core.money import Credits, format_credits
from farflung.core.units import Seconds
from farflung.ledger.params import LedgerParams
from farflung.ledger.transactions import LeaseRole
from farflung.local.jobs.resolve import resolve
from farflung.market.match import MatchRequest, match
from farflung.market.provider_offer import Capabilities, OfferListing
from farflung.peers.requester.lease_negotiation import StandingAsks
from farflung.peers.requester.market_survey import survey
from farflung.peers.rundir.genesis import stake_of
from farflung.plan.run_price import expected_audits, price, price_at

CAN = Capabilities(2, 4 << 30, 9 << 30, 10**11, 1, "Linux", "x86_64", "2.13.0")
MOST = 10**6  # pico-credits a token: what the job offers


@pytest.mark.whole
@pytest.mark.xdist_group("tree")
def test_the_price_before_a_run_is_the_price_after_it(tiny: Any) -> None:
    """The draw brings audits on the average: the expected 4.2 are 4 here."""
    _, ended = tiny
    (plan,) = (event for event in ended.events if event["event"] == "plan")
    assert abs(ended.result["paid"] - plan["price"]) <= plan["price"] / 100


@pytest.mark.parametrize(("train", "audit"), [((MOST, MOST, MOST), (MOST,) * 3), ((10, 20, 30), (7, 7, 9))])
def test_the_price_on_a_network_is_the_one_that_the_asks_set(train: tuple[int, ...], audit: tuple[int, ...]) -> None:
    job, _ = resolve(None, "tiny", {}, cheat="none", is_open=True)
    spec, asked = job.spec, {LeaseRole.TRAIN: train, LeaseRole.AUDIT: audit}
    of = {
        role: [
            OfferListing(PeerId(bytes([role + 1, i]) * 16), Credits(ask), Credits(10**13), CAN)
            for i, ask in enumerate(asks)
        ]
        for role, asks in asked.items()
    }
    found = survey(spec, StandingAsks(of, {}), 0, stake_of(spec))
    hired = {role: match(MatchRequest(ZERO_HASH, 2, Credits(MOST)), of[role]).unit_price for role in of}
    paid = hired[LeaseRole.TRAIN] * 1152 + hired[LeaseRole.AUDIT] * expected_audits(spec)  # what leases of these pay
    cost = price_at(spec, found.providers.unit_price, found.verifiers.unit_price)
    assert abs(cost - paid) <= paid / 100
    assert (cost < price(spec).price) == (train[0] < MOST)
    genesis = SimpleNamespace(params=LedgerParams())
    known: Any = SimpleNamespace(name="lab", chain=ZERO_HASH, genesis=genesis)
    started: Any = SimpleNamespace(
        network=known, found=found, price=price(spec), cost=cost, fees=5, balance=9, model=None, verifiers=2
    )
    assert f"about {format_credits(cost)} credits" in "\n".join(offer_lines(started, spec, Seconds(9.0)))
