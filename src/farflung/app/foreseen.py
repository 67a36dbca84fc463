"""A run's plan, before it and after it: what is foretold of all its rounds, and what of those that were done.

A run that was stopped is compared with the plan of its own rounds: the same formulas with a smaller number in them, as
the start, the data set and the last loss are no matter of rounds.
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec.structs import replace

from farflung.app import fares
from farflung.app.closing import Outcome
from farflung.app.folder import Identity
from farflung.app.housing import Loopback
from farflung.app.local import LocalNetwork
from farflung.core import tolls
from farflung.core.events import Compared, Planned
from farflung.core.layout import Layout
from farflung.plan.advise import Fees, Plan, advise
from farflung.plan.compare import compare
from farflung.plan.machine import Machine
from farflung.plan.memory import Step
from farflung.plan.traffic import all_relayed
from farflung.watch import sightings
from farflung.watch.fold import Timeline


class Foreseen(NamedTuple):
    """What a plan of a run is made of; `computer`: measured once, so that what was done is held against what was said;
    `step`: as its trace found it.
    """

    network: LocalNetwork
    housing: Loopback
    identity: Identity
    layout: Layout
    data_bytes: int
    computer: Machine
    step: Step | None = None

    def plan(self, rounds: int | None = None) -> Plan:
        """The plan of so many rounds; None: of all. Raises PolicyError FF-PLAN-001, FF-PLAN-002, FF-APP-244."""
        spec = self.network.reached
        spec = spec if rounds is None else replace(spec, rounds=rounds)
        within, seats = self.housing.network, self.identity.validators
        plan = advise(spec, self.layout, self.data_bytes, self.computer, within, seats, self.step)
        if self.housing.homes:  # nobody reaches into a home, a verifier's either
            plan = replace(plan, traffic=all_relayed(plan.traffic))
        return replace(plan, fees=self._fees(plan))

    def _fees(self, plan: Plan) -> Fees | None:
        price = self.network.relay_price
        if not price or not self.network.relays:
            return None
        return Fees(price, tolls.cost(plan.traffic.relay, price), self.reserve(plan).most)

    def reserve(self, plan: Plan) -> fares.Reserve:
        """What is put aside for relays."""
        network = self.network
        return fares.reserve_of(
            plan.traffic, network.relay_price, len(network.relays), self.identity.relay_most
        )

    def event(self, plan: Plan, run: str) -> Planned:
        """The plan as those who watch are told of it."""
        said = plan.event(run, baseline=self.identity.baseline)
        network, most = self.network, self.identity.relay_most
        return fares.planned(said, plan.traffic, network.relay_price, len(network.relays), most)

    def compared(self, timeline: Timeline, outcome: Outcome, took: float) -> tuple[Compared, ...]:
        """What the rounds that were done were foretold to take, against what they took in all sessions.

        `took`: seconds of this session. Nothing where no round was done.
        """
        if not outcome.rounds:
            return ()
        measured = sightings.measured(timeline, took, outcome.paid)
        return compare(self.plan(outcome.rounds), measured, sightings.seen(timeline, took))
