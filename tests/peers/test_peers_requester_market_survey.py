"""What a requester is told of a market before it locks money, and when its log is an old copy."""

from __future__ import annotations

import pytest

from farflung.core.crypto import SigningKey
from farflung.core.errors import RunError
from farflung.core.ids import ZERO_HASH, Hash, PeerId
from farflung.core.money import Credits
from farflung.job.spec import JobSpec, NetworkSpec
from farflung.ledger.table_rows import JobRow, JobState
from farflung.ledger.transactions import LeaseRole
from farflung.market.provider_offer import OfferListing
from farflung.peers.requester.lease_negotiation import StandingAsks
from farflung.peers.requester.ledger_recorder import check_newest
from farflung.peers.requester.market_survey import survey
from farflung.plan.machine import Capabilities
from farflung.train.run_log import CommitmentsRecord, Record, RoundEndRecord

MOST = Credits(1000)
SPEC = JobSpec(network=NetworkSpec(providers=2, verifiers=1))


def asks(*nodes: tuple[LeaseRole, int, int, int]) -> StandingAsks:
    """Nodes by role, ask, free stake and FLOP/s."""
    of: dict[LeaseRole, list[OfferListing]] = {role: [] for role in LeaseRole}
    for i, (role, price, stake, flops) in enumerate(nodes):
        can = Capabilities(2, 4 << 30, 9 << 30, flops, 1, "Linux", "x86_64", "2.13.0")
        of[role].append(OfferListing(PeerId(bytes([i + 1]) * 32), Credits(price), Credits(stake), can))
    return StandingAsks(of, {})


TRAIN, AUDIT = LeaseRole.TRAIN, LeaseRole.AUDIT
FAST = 10**11


def test_enough_nodes_begin_with_the_stake_that_all_of_them_have() -> None:
    found = survey(SPEC, asks((TRAIN, 1, 5000, FAST), (TRAIN, 1, 400, FAST), (AUDIT, 1, 700, FAST)), 0, MOST)
    assert found.is_enough
    assert found.stake == 400
    rich = survey(SPEC, asks(*[(TRAIN, 1, 5000, FAST)] * 2, (AUDIT, 1, 7000, FAST)), 0, MOST)
    assert rich.stake == MOST


@pytest.mark.parametrize(
    ("nodes", "providers", "verifiers", "why"),
    [
        ((), 0, 0, ""),
        (((TRAIN, 1, 400, FAST), (AUDIT, 1, 400, FAST)), 1, 1, ""),
        (((TRAIN, 1, 400, FAST), (TRAIN, 10**9, 400, FAST), (AUDIT, 1, 400, FAST)), 1, 1, "price"),
        (((TRAIN, 1, 400, FAST), (TRAIN, 1, 400, 9 * FAST), (AUDIT, 1, 400, FAST)), 1, 1, "similar"),
        (((TRAIN, 1, 400, FAST), (TRAIN, 1, 400, FAST)), 2, 0, ""),
    ],
)
def test_too_few_are_counted_and_the_reason_is_named(
    nodes: tuple[tuple[LeaseRole, int, int, int], ...], providers: int, verifiers: int, why: str
) -> None:
    found = survey(SPEC, asks(*nodes), 0, MOST)
    assert not found.is_enough
    assert (found.providers.fitting, found.verifiers.fitting) == (providers, verifiers)
    assert why in found.providers.why


def log(closed: int, committed: int) -> list[Record]:
    made: list[Record] = [CommitmentsRecord(i, (), ()) for i in range(committed)]
    return made + [RoundEndRecord(i, Hash(bytes(32)), ()) for i in range(closed)]


@pytest.mark.parametrize(
    ("recorded", "drawn", "is_old"), [(0, 0, False), (2, 3, False), (2, 2, False), (3, 3, True), (2, 4, True)]
)
def test_a_log_that_lacks_what_the_ledger_knows_is_an_old_copy(recorded: int, drawn: int, is_old: bool) -> None:
    row = JobRow(ZERO_HASH, SigningKey(bytes(32)).public, 5, 1, 9, 99, JobState.RUNNING, round=recorded, drawn=drawn)
    check_newest(log(2, 3), None)
    if not is_old:
        check_newest(log(2, 3), row)
        return
    with pytest.raises(RunError) as raised:
        check_newest(log(2, 3), row)
    assert raised.value.code == "FF-APP-560"
    with pytest.raises(RunError) as raised:  # no round at all: somebody runs the same job again
        check_newest([], row)
    assert raised.value.code == "FF-APP-695"
