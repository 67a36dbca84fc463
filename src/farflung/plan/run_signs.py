"""Extracts what no plan could know from a run, and how much of the difference to the plan each sign explains
(P1).

A sign explains an amount in the unit of its quantity, by the plan's own formulas with what was seen in place of what
was assumed: rounds by the ways that they took, members that were there, audits that were drawn, seconds of each part.
An amount is signed: more than planned is above 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

import msgspec

from farflung.core.money import format_credits
from farflung.core.relay_passes import GIB
from farflung.core.units import format_bytes, format_seconds
from farflung.plan import audit_costs
from farflung.plan.audit_costs import ExpectedAudits, expected
from farflung.plan.exchange_choice import ExchangeWay
from farflung.plan.exchange_paths import moved
from farflung.plan.run_plan import RunPlan
from farflung.plan.run_traffic import AUDIT, START_NODE, on_wire
from farflung.plan.state_vectors import FLOAT
from farflung.plan.worker_memory import WorkerMemory

PROVIDER: Final = "provider"
_WAYS: Final = {way.value: way for way in ExchangeWay}


class RunObservations(msgspec.Struct, frozen=True):
    """What a run shows. Seconds are those of all rounds together, bytes those of all processes."""

    rounds: int = 0
    members: float = 0.0  # of a closed round, on the average
    joined: int = 0  # providers that held a public state at least once
    restarted: int = 0  # processes, while the others went on
    sessions: int = 1
    caught: int = 0
    drawn: tuple[tuple[int, int], ...] = ()  # round and segment of each audit
    drawn_of: Mapping[str, tuple[tuple[int, int], ...]] = {}  # the same by the name of whose process was audited
    repeated: int = 0  # verdicts above one an audit
    unpaid: int = 0  # contributions that made the loss worse
    ways: Mapping[str, int] = {}  # rounds by the way that their payloads took
    payload_bytes: float = 0.0  # of one contribution, on the average
    peaks: Mapping[str, int] = {}  # resident bytes of the largest worker of each role
    unit_price: int = 0  # pico-credits a token, at which providers were hired
    carried: int = 0  # bytes that relays may bill
    starting: float = 0.0  # from the command to the first round
    training: float = 0.0
    agreeing: float = 0.0  # the rest of rounds, without the wait for audits
    exchange: float = 0.0  # of that, in rounds whose way was told
    exchange_predicted: float = 0.0  # by what was known of the lines in each of them
    checking: float = 0.0  # the wait for audits, and from the last round to the end
    lasted: float = 0.0  # from the command to the end; 0: not known


class RunSign(NamedTuple):
    """Something that a run shows: what it explains of measured - planned, and in words."""

    explains: float
    words: str


Signs = Iterator[RunSign]


def of_sync(plan: RunPlan, seen: RunObservations) -> Signs:
    """Bytes of payloads."""
    sync, planned = plan.traffic.sync, plan.traffic.payload
    yield _other_way(plan, seen, "sent")
    if seen.payload_bytes and planned:
        times = seen.payload_bytes / planned
        yield RunSign(sync * (times - 1), f"a payload is {times:.2f} times as long as modelled")
    yield _fewer_members(plan, seen, sync, power=2)
    yield _again(plan, seen, plan.traffic.sync_round / plan.spec.network.providers)


def of_audit(plan: RunPlan, seen: RunObservations) -> Signs:
    """Bytes of opened states."""
    foreseen = expected(plan.spec)
    if not foreseen.count:
        return
    each = plan.traffic.audit / foreseen.count
    yield _audits(plan, seen, each)
    yield _second_opinions(seen, each)
    fresh = sum(1 for round, _ in seen.drawn if not round)
    average = audit_costs.moved(plan.spec, ExpectedAudits(fresh, len(seen.drawn) - fresh, 0.0), _states(plan))
    found = _opened(plan, seen.drawn)
    times = found / average if average else 1.0
    yield RunSign(found - average, f"segments were drawn whose states are {times:.2f} times the average ones")


def of_join(plan: RunPlan, seen: RunObservations) -> Signs:
    """Bytes of data sets and public states."""
    one, asked = plan.traffic.state + on_wire(plan.data_bytes), plan.spec.network.providers
    yield _again(plan, seen, one)
    if seen.joined:
        yield RunSign((seen.joined - asked) * one, f"{seen.joined} of {asked} providers joined")


def of_control(plan: RunPlan, seen: RunObservations) -> Signs:
    """Bytes of all that is said."""
    sent = plan.traffic
    yield _again(plan, seen, START_NODE)
    yield _audits(plan, seen, AUDIT)
    yield _second_opinions(seen, AUDIT)
    yield _fewer_members(plan, seen, seen.rounds * sent.control_round, power=1)
    if plan.duration.total and seen.lasted:
        times = seen.lasted / plan.duration.total
        more = sent.talk * (seen.lasted - plan.duration.total)
        yield RunSign(more, f"the run took {times:.2f} times as long as planned, and what stands talks")


def of_relay(plan: RunPlan, seen: RunObservations) -> Signs:
    """Bytes that relays send on."""
    yield _other_way(plan, seen, "relayed")
    yield _fewer_members(plan, seen, plan.traffic.sync_relayed, power=2)
    yield _hidden_audits(plan, seen)
    yield _again(plan, seen, plan.traffic.relay / plan.spec.network.providers)


def of_fees(plan: RunPlan, seen: RunObservations) -> Signs:
    """Pico-credits for relays, which are paid by the byte."""
    carried, planned = seen.carried, plan.traffic.relay
    if plan.fees is not None:
        words = f"both ends signed for {format_bytes(carried)}, and {format_bytes(planned)} were planned"
        yield RunSign((carried - planned) * plan.fees.price / GIB, words)


def of_memory(plan: RunPlan, seen: RunObservations) -> Signs:
    """Resident bytes of the largest worker; the plan is a provider's."""
    if not seen.peaks:
        return
    own, (most, role) = seen.peaks.get(PROVIDER, 0), max((peak, role) for role, peak in seen.peaks.items())
    need = plan.memory
    if role != PROVIDER:
        yield RunSign(most - max(own, need.worker), f"the largest worker is a {role}'s, not a provider's")
    kept = need.worker - _counted(need)
    told = f"all that is counted is there, and less than the {format_bytes(kept)} added for what the heap keeps"
    yield RunSign(most - need.worker if _counted(need) <= most < need.worker else 0.0, told)


def of_time(plan: RunPlan, seen: RunObservations) -> Signs:
    """Seconds: the parts are all that there are, and their differences add up to the whole one."""
    if not seen.lasted:
        return
    took = plan.duration
    agreeing, checking = took.sync + took.exchanging, took.audit + took.evaluate + took.opening
    yield _part("the first round began after", took.start + took.arriving, seen.starting)
    yield _part("training, at this machine's measured rate, took", took.compute, seen.training, _died(seen))
    more, foretold = seen.agreeing - agreeing, seen.exchange_predicted
    if foretold and (seen.exchange - foretold) * more > 0 and abs(seen.exchange - foretold) > abs(more) / 2:
        times = seen.exchange / foretold
        yield RunSign(more, f"exchanges took {times:.2f} times what the lines were taken for{_died(seen)}")
    else:
        yield _part("agreeing on weights took", agreeing, seen.agreeing, _died(seen))
    yield _part("waits for audits, settlement and the last loss took", checking, seen.checking, _died(seen))


def of_price(plan: RunPlan, seen: RunObservations) -> Signs:
    """Pico-credits."""
    cost, members = plan.price, plan.spec.network.providers
    if seen.unit_price and cost.unit:
        hired = cost.price * (seen.unit_price / cost.unit - 1)
        words = f"hired at {format_credits(seen.unit_price)} a token, at most {format_credits(cost.unit)} was bid"
        yield RunSign(hired, words)
    one = cost.training / members
    yield RunSign(-seen.caught * one, f"{_count(seen.caught, 'provider was', 'providers were')} caught and not paid")
    worse = f"{_count(seen.unpaid, 'contribution', 'contributions')} made the loss worse and had no pay"
    yield RunSign(-seen.unpaid * one / plan.spec.rounds, worse)
    yield _fewer_members(plan, seen, cost.training, power=1)
    foreseen = expected(plan.spec).count
    if foreseen:
        yield _audits(plan, seen, cost.audits / foreseen)
        yield _second_opinions(seen, cost.audits / foreseen)


def _other_way(plan: RunPlan, seen: RunObservations, field: str) -> RunSign:
    """By what each round's way moves; ways differ, what they send together often does not."""
    forecast, members = plan.traffic.forecast, plan.spec.network.providers
    other = {way: count for way, count in seen.ways.items() if way in _WAYS and way != forecast.way.value}
    if not other:
        return RunSign(0.0, "")

    def payloads(way: ExchangeWay) -> float:
        found: float = getattr(moved(members, plan.spec.hidden, forecast._replace(way=way)), field)
        return found

    more = [count * (payloads(_WAYS[way]) - payloads(forecast.way)) for way, count in other.items()]
    named = " and ".join(f"{count} by {way}" for way, count in sorted(other.items()))
    said = f"of {seen.rounds} rounds {named}, not by {forecast.way.value}"
    return RunSign(sum(more) * on_wire(plan.traffic.payload), said)


def _fewer_members(plan: RunPlan, seen: RunObservations, planned: float, *, power: int) -> RunSign:
    """What grows with the members, or with the square of their number."""
    asked = plan.spec.network.providers
    share = seen.members / asked if seen.members else 1.0
    return RunSign(planned * (share**power - 1), f"{seen.members:.3g} of {asked} providers in a round")


def _again(plan: RunPlan, seen: RunObservations, each: float) -> RunSign:
    """Processes that began again, and what each of them needs for that at most."""
    nodes, more = plan.spec.network.providers + plan.spec.verifiers, seen.sessions - 1
    said = [
        f"{_count(seen.restarted, 'process was', 'processes were')} started again" if seen.restarted else "",
        f"the run was resumed {_count(more, 'time', 'times')}, and all processes began again" if more else "",
    ]
    return RunSign(each * (seen.restarted + more * nodes), "; ".join(part for part in said if part))


def _audits(plan: RunPlan, seen: RunObservations, each: float) -> RunSign:
    foreseen, drawn = expected(plan.spec).count, len(seen.drawn)
    said = _count(drawn, "audit was", "audits were")
    return RunSign((drawn - foreseen) * each, f"{said} drawn, {foreseen:.3g} are to be expected")


def _hidden_audits(plan: RunPlan, seen: RunObservations) -> RunSign:
    """Of a network on one computer, whose processes have the plan's names: states that were opened behind a relay."""
    spec, foreseen = plan.spec, expected(plan.spec)
    names = [f"{PROVIDER}-{number}" for number in range(spec.hidden)]
    if not foreseen.count or not seen.drawn_of.keys() >= set(names):
        return RunSign(0.0, "")
    drawn = [each for name in names for each in seen.drawn_of[name]]
    share = spec.hidden / spec.network.providers
    said = f"{_count(len(drawn), 'audit was', 'audits were')} drawn of providers behind a relay,"
    more = _opened(plan, drawn) - share * audit_costs.moved(spec, foreseen, _states(plan))
    return RunSign(more, f"{said} {share * foreseen.count:.3g} are to be expected")


def _opened(plan: RunPlan, drawn: Iterable[tuple[int, int]]) -> int:
    """Bytes of states that audits of these rounds and segments fetch from their peers."""
    size = _states(plan)
    return sum(
        size(vectors)
        for round, segment in drawn
        for vectors in audit_costs.fetched(plan.spec, segment, is_fresh=not round)
    )


def _second_opinions(seen: RunObservations, each: float) -> RunSign:
    said = _count(seen.repeated, "audit was", "audits were")
    return RunSign(seen.repeated * each, f"{said} repeated by another verifier")


def _part(words: str, planned: float, took: float, more: str = "") -> RunSign:
    """One part of the time."""
    return RunSign(took - planned, f"{words} {format_seconds(took)}, not {format_seconds(planned)}{more}")


def _died(seen: RunObservations) -> str:
    """What any part of rounds may have been longer for."""
    died = _count(seen.restarted, "process was", "processes were")
    return f", and {died} started again" if seen.restarted else ""


def _states(plan: RunPlan) -> Callable[[int], int]:
    """Bytes at the sockets of so many vectors as long as the weights."""
    return lambda vectors: on_wire(FLOAT * plan.parameters * vectors)


def _counted(need: WorkerMemory) -> int:
    """A worker's bytes without what the C heap keeps beside them."""
    return need.baseline + need.dataset + need.step


def _count(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"
