"""Computes the seconds that lines add to a run: the start, the exchange of rounds, states for audits.

Where all are on one computer nothing is added: plan.run_duration's constants were measured there. Where members
are apart, what goes over a line is waited for unless training goes on beside it:

    start      registering, one node after the other; hiring; the data set and the public state down each line, at once
    a round    its exchange (plan.exchange_choice), and ROUND_TRIPS for orders and promises
    audits     a verifier sees to one after the other: the state at a segment's start and the one that was encoded up
               the member's line, the public state down its own. They run beside the next round, which does not
               close before them; the last round's are waited for

Each audit falls to one of V verifiers by lot (verify.audit_sample). Where a certain one gets a member's with
chance p, the busiest has about N p + sqrt(N p (1 - p) ln V) of a round's: the mean, and the largest of V deviations.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

from farflung.core.units import Seconds
from farflung.job.spec import JobSpec
from farflung.plan import audit_costs
from farflung.plan.exchange_paths import RunLinks
from farflung.plan.run_traffic import RunTraffic

REGISTER_TRIPS: Final = 8  # a dial, the account, the row, the transaction, the directory
LEAVE_TRIPS: Final = 3
HIRE_TRIPS: Final = 8  # a dial by way of the relay, the proposal, the start, the first chunk, and its dial
GROW_TRIPS: Final = 4  # until TCP has found the line's rate
ROUND_TRIPS: Final = 4  # train, reveal, open, merge: an order and its answer each
AUDIT_TRIPS: Final = 10  # order and answer twice; the peer's line dialled, and two states asked of it


class LineSeconds(msgspec.Struct, frozen=True):
    """Seconds on lines. `audit`: of one round's audits, by round, where the next round trains beside them."""

    start: Seconds
    exchange: Seconds
    audit: tuple[float, ...]

    def beyond(self, round: float) -> float:
        """Seconds that audits add to rounds of `round` seconds, and to the end of the last one."""
        *beside, last = self.audit or (0.0,)
        return sum(max(0.0, each - round) for each in beside) + last


NOTHING: Final = LineSeconds(Seconds(0.0), Seconds(0.0), ())


def waits(spec: JobSpec, network: RunLinks, traffic: RunTraffic, opened: float, rerun: float) -> LineSeconds:
    """`opened`: bytes of the states that one audit fetches from a peer; `rerun`: seconds to train its segment again."""
    if not network.is_apart:
        return NOTHING
    line, trip = network.member, network.member.round_trip
    nodes = spec.network.providers + spec.verifiers
    down = min(line.down, network.requester.up)
    start = nodes * (REGISTER_TRIPS + LEAVE_TRIPS) * trip + (HIRE_TRIPS + GROW_TRIPS) * trip
    start += 8.0 * traffic.join / nodes / down
    # Two lines between two homes.
    one = 2 * AUDIT_TRIPS * trip + 8.0 * opened / min(line.up, line.down) + rerun
    public = 8.0 * traffic.state / down
    busiest = [_busiest(spec, round) for round in range(spec.rounds)]
    each = tuple(one * count + public * min(1.0, count) for count in busiest)
    exchanged = spec.rounds * (traffic.forecast.seconds + ROUND_TRIPS * trip)
    return LineSeconds(Seconds(network.building + start), Seconds(exchanged), each)


def _busiest(spec: JobSpec, round: int) -> float:
    """Audits of a round that the busiest verifier has, on the average of the draw."""
    members, verifiers = spec.network.providers, spec.verifiers
    if not verifiers:
        return 0.0
    chance = (1.0 if round < spec.audit.probation else float(audit_costs.rate_of(spec))) / verifiers
    return members * chance + math.sqrt(members * chance * (1.0 - chance) * math.log(verifiers))
