"""Predicts a run's cost beforehand, and again for the rounds that actually ran, for comparison.

A run that was stopped is compared with the plan of its own rounds: the same formulas with a smaller number in them, as
the start, the data set and the last loss are no matter of rounds.
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec.structs import replace

from farflung.core import relay_passes
from farflung.core.events import PlanComparisonEvent, PlanEvent
from farflung.core.tensor_layout import TensorLayout
from farflung.local.network.placement import LoopbackPlacement
from farflung.local.network.process_config import LocalNetwork
from farflung.local.network.run_end import JobEndReport
from farflung.peers.requester import relay_fees
from farflung.peers.rundir.folder import RunIdentity
from farflung.plan.machine import MachineMeasurements
from farflung.plan.plan_comparison import compare
from farflung.plan.run_plan import PlannedFees, RunPlan, advise
from farflung.plan.run_traffic import all_relayed
from farflung.plan.worker_memory import StepMemory
from farflung.watch import run_measurements
from farflung.watch.fold import RunTimeline


class RunForecast(NamedTuple):
    """What a plan of a run is made of; `computer`: measured once, so that what was done is held against what was said;
    `step`: as its trace found it.
    """

    network: LocalNetwork
    placement: LoopbackPlacement
    identity: RunIdentity
    layout: TensorLayout
    data_bytes: int
    computer: MachineMeasurements
    step: StepMemory | None = None

    def plan(self, rounds: int | None = None) -> RunPlan:
        """The plan of so many rounds; None: of all. Raises PolicyError FF-PLAN-001, FF-PLAN-002, FF-APP-244."""
        spec = self.network.reached
        spec = spec if rounds is None else replace(spec, rounds=rounds)
        within, seats = self.placement.network, self.identity.validators
        plan = advise(spec, self.layout, self.data_bytes, self.computer, within, seats, self.step)
        if self.placement.homes:  # nobody reaches into a home, a verifier's either
            plan = replace(plan, traffic=all_relayed(plan.traffic))
        return replace(plan, fees=self._fees(plan))

    def _fees(self, plan: RunPlan) -> PlannedFees | None:
        price = self.network.relay_price
        if not price or not self.network.relays:
            return None
        return PlannedFees(price, relay_passes.cost(plan.traffic.relay, price), self.reserve(plan).most)

    def reserve(self, plan: RunPlan) -> relay_fees.RelayFeeReserve:
        """What is put aside for relays."""
        network = self.network
        return relay_fees.reserve_of(
            plan.traffic, network.relay_price, len(network.relays), self.identity.relay_most
        )

    def event(self, plan: RunPlan, run: str) -> PlanEvent:
        """The plan as those who watch are told of it."""
        said = plan.event(run, baseline=self.identity.baseline)
        network, most = self.network, self.identity.relay_most
        return relay_fees.planned(said, plan.traffic, network.relay_price, len(network.relays), most)

    def compared(
        self, timeline: RunTimeline, outcome: JobEndReport, took: float
    ) -> tuple[PlanComparisonEvent, ...]:
        """What the rounds that were done were foretold to take, against what they took in all sessions.

        `took`: seconds of this session. Nothing where no round was done.
        """
        if not outcome.rounds:
            return ()
        measured = run_measurements.measured_run(timeline, took, outcome.paid)
        return compare(self.plan(outcome.rounds), measured, run_measurements.observations(timeline, took))
