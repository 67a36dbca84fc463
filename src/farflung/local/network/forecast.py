"""Predicts a run's cost beforehand, and again for the rounds that actually ran, for comparison.

A run that was stopped is compared with the plan of its own rounds: the same formulas with a smaller number in them, as
the start, the data set and the last loss are no matter of rounds. A run is also held against the runs before it: by
the versions that it began under, a repeated one is told.
"""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Iterator
from typing import Final, NamedTuple

from msgspec.structs import replace

import farflung
from farflung.core import events, relay_passes
from farflung.core.errors import FarflungError
from farflung.core.events import PlanComparisonEvent, PlanEvent
from farflung.core.tensor_layout import TensorLayout
from farflung.job.spec import JobSpec
from farflung.local.network.joined_network import JoinedNetwork
from farflung.local.network.placement import LoopbackPlacement
from farflung.local.network.run_end import JobEndReport
from farflung.peers.requester import relay_fees
from farflung.peers.rundir import folder as folders
from farflung.peers.rundir.folder import RunFolder, RunIdentity
from farflung.peers.rundir.journal import read_timeline
from farflung.peers.rundir.network_record import read_network
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

    network: JoinedNetwork
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
        return relay_fees.reserve_of(plan.traffic, network.relay_price, len(network.relays), self.identity.relay_most)

    def event(self, plan: RunPlan, run: str) -> PlanEvent:
        """The plan as those who watch are told of it."""
        said = plan.event(run, baseline=self.identity.baseline)
        network, most = self.network, self.identity.relay_most
        return relay_fees.planned(said, plan.traffic, network.relay_price, len(network.relays), most)

    def compared(self, timeline: RunTimeline, outcome: JobEndReport, took: float) -> tuple[PlanComparisonEvent, ...]:
        """What the rounds that were done were estimated to take, against what they took in all sessions.

        `took`: seconds of this session. Nothing where no round was done.
        """
        if not outcome.rounds:
            return ()
        measured = run_measurements.measured_run(timeline, took, outcome.paid)
        return compare(self.plan(outcome.rounds), measured, run_measurements.observations(timeline, took))


# One seed gives these, whatever the machine was busy with.
_LEDGER: Final = "ledger_root"
_SAME: Final = ("model_hash", _LEDGER, "loss", "paid")


def run_start(folder: RunFolder, spec: JobSpec) -> events.RunStartEvent:
    """The first event of a session."""
    return events.RunStartEvent(
        run=folder.name,
        name=spec.name,
        seed=spec.seed,
        version=farflung.__version__,
        python=platform.python_version(),
        torch=importlib.metadata.version("torch"),
        network=record.name if (record := read_network(folder)) is not None else "",
    )


def repeated_run(
    folder: RunFolder, timeline: RunTimeline, result: events.RunResultEvent
) -> events.RepeatedRunEvent | None:
    """Whether the newest finished run of the same job beside this one ended alike; None where there is none.

    The same job: equal terms (so data and module too), the same cheat, rounds, and versions; and the same money for
    relays, of which there is one more in a run through homes.
    """
    for earlier, past in _alike(folder, timeline):
        if past.rounds == result.rounds:
            differs = tuple(name for name in _same(folder) if getattr(past, name) != getattr(result, name))
            return events.RepeatedRunEvent(run=earlier.name, differs=differs)
    return None


def _same(folder: RunFolder) -> tuple[str, ...]:
    """In a dispute its players move when they can, and who waits makes blocks: no seed tells that ledger."""
    return tuple(name for name in _SAME if name != _LEDGER or not folder.read_identity().disputes)


def _alike(folder: RunFolder, timeline: RunTimeline) -> Iterator[tuple[RunFolder, events.RunResultEvent]]:
    """Finished runs of the same job under the same versions, newest first."""
    terms, own = folder.terms_file.read_bytes(), folder.read_identity()
    for earlier in reversed(folders.all_runs(folder.root.parent)):
        try:
            is_same = (
                earlier.root.resolve() != folder.root.resolve()
                and _money(earlier.read_identity()) == _money(own)
                and earlier.terms_file.read_bytes() == terms
            )
            past = read_timeline(earlier) if is_same else RunTimeline()
        except (OSError, FarflungError):
            continue  # a damaged run is no reason for this one to fail
        if past.result is not None and _versions(past) == _versions(timeline):
            yield earlier, past.result


def _money(identity: RunIdentity) -> tuple[str, int, int, bool, int, int, bool]:
    price, most = identity.relay_price, identity.relay_most
    relays = identity.relays if price else 0
    paid = price, most, bool(price) and identity.lab, relays
    return identity.cheat, *paid, identity.validators, identity.disputes


def _versions(timeline: RunTimeline) -> tuple[str, str, str] | None:
    began = timeline.began
    return None if began is None else (began.version, began.python, began.torch)
