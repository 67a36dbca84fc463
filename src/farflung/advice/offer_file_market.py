"""Turns a file of offers into a market: each host's ask for a unit of work, and the job's bid (P1, J3, J9).

    ask     = ceil(credits an hour x 10^15 FLOP / (3600 s x speed))       pico-credits for a calibrated unit
    speed   = cards x dense bfloat16 rate x 0.4 (advice/layouts/host_speed); a measured rate stands before the table's
    unit    = one round of one member, all of its steps: the FLOP of its tokens, without those that are recomputed
    memory  : a whole replica on one card. A host whose cards share it, or whose RAM holds its optimizer, counts as
              one card of  bytes of a card x need of one card alone / need of each of its cards
    in time : rounds x (compute of a round + exchange over its own line) <= time to the deadline

Offers name a price for hours, the market pays work: an hour in which a host waits for lines is not in such an ask.
What an offer does not say (cores, memory, lanes) is not known, and meets no class that asks for it (advice/hardware).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import numpy as np

from farflung.advice.hardware.admission import MachineAdmission, MachineGrade, RuleFinding, RuleState
from farflung.advice.job_work import JobWork
from farflung.advice.layouts import host_speed, machine_admission, memory_fit
from farflung.advice.layouts.training_options import HostLoad
from farflung.advice.memory.breakdown import MemoryPlace
from farflung.advice.method_costs import MethodSetting, estimate
from farflung.advice.offers.offer_file import HOUR, OfferedHost
from farflung.core import limits
from farflung.core.errors import UsageError
from farflung.core.ids import ID_BYTES, PeerId
from farflung.core.money import MAX_CREDITS, Credits, format_credits, times
from farflung.core.units import Millis, Seconds, format_seconds
from farflung.job.spec import JobSpec
from farflung.market import work_units
from farflung.market.asks import LARGE, Ask, Market, StandingOffer
from farflung.market.asks import HostMeasurements as Measured
from farflung.market.bids import LONGEST_MS, Bid
from farflung.market.clearing import FASTEST
from farflung.market.filter_report import Mask, OfferConstraint
from farflung.market.work_units import CALIBRATED, UnitBounds

ANY: Final = UnitBounds(LARGE, limits.UNIT_FLOP, LARGE, LARGE, LARGE, LARGE)  # an offer bounds no unit
# Rules of admission, as a funnel names them.
RULES: Final = {
    "software": "software",
    "cores": "cores",
    "memory": "RAM",
    "lanes": "lanes",
    "up": "upload",
    "down": "download",
}
MEETS: Final = {
    MachineGrade.A: "what it needs, and by thumb",
    MachineGrade.B: "what the job needs",
    MachineGrade.C: "not known to lack what it needs",
}


class JobOrder(msgspec.Struct, frozen=True):
    """What a requester asks for besides its job. No `deadline`: any time; no `cards`: any; no class: any machine."""

    members: int
    spares: int
    start: Millis
    unit_price: Credits  # the most for one accepted token
    budget: Credits
    deadline: Millis | None = None
    cards: tuple[str, ...] = ()
    grade: MachineGrade | None = None
    stake: Credits = Credits(0)


class HostPace(msgspec.Struct, frozen=True):
    """One host in this job: seconds of a round's compute and of its exchange, and the class of its machine."""

    compute: Seconds
    exchange: Seconds
    admission: MachineAdmission

    @property
    def round(self) -> Seconds:
        """Of a whole one."""
        return Seconds(self.compute + self.exchange)


class OfferedJob(msgspec.Struct, frozen=True):
    """A job and the hosts that are offered, by the peer that each stands for: numbers in the order of their names."""

    spec: JobSpec
    work: JobWork
    hosts: Mapping[PeerId, OfferedHost]
    paces: Mapping[PeerId, HostPace]
    order: JobOrder


def offered(spec: JobSpec, work: JobWork, hosts: Sequence[OfferedHost], order: JobOrder) -> OfferedJob:
    """Each host looked at for this job, once."""
    named = {peer(at): host for at, host in enumerate(sorted(hosts, key=lambda host: host.name))}
    paces = {each: _pace(spec, work, host, order.members) for each, host in named.items()}
    return OfferedJob(spec, work, named, paces, order)


def peer(number: int) -> PeerId:
    """A key that nobody has: an offer in a file stands for no account."""
    return PeerId((number + 1).to_bytes(ID_BYTES, "big"))


def asked(host: OfferedHost) -> Credits:
    """Pico-credits for a calibrated unit, up: nobody is paid less than he asks.

    Raises UsageError FF-MARK-014, with the host's name, where that is more than money can be.
    """
    done = max(1, round(HOUR * host_speed.rate(host)))
    ask = -(-host.price * CALIBRATED // done)
    if ask > MAX_CREDITS:
        raise UsageError(
            "FF-MARK-014",
            f"host {host.name}: this is no ask",
            cause=f"price is {format_credits(host.price)} credits an hour, in which it computes {done:.3g} FLOP:"
            " no amount of credits for 10^15 FLOP",
            hint=f"lower the price of {host.name}, or raise its utilisation",
        )
    return Credits(ask)


def standing(found: OfferedJob) -> tuple[StandingOffer, ...]:
    """The asks."""
    owners: dict[str, PeerId] = {}
    for each, host in found.hosts.items():
        owners.setdefault(host.owner, each)
    alone = need_alone(found)
    return tuple(
        StandingOffer(
            Ask(each, owners[host.owner], asked(host), Millis(limits.NEVER), ANY), _measured(found, host, alone)
        )
        for each, host in found.hosts.items()
    )


def need_alone(found: OfferedJob) -> int:
    """Bytes of a card with bfloat16 that holds a whole replica and gets no help from others or from RAM."""
    any_host = next(iter(found.hosts.values()))
    card = msgspec.structs.replace(any_host.card, has_bf16=True)
    bare = msgspec.structs.replace(any_host, card=card, cards=1, memory_bytes=None, disk_bytes=None)
    return memory_fit.need(found.work, bare, found.spec.sync)


def _measured(found: OfferedJob, host: OfferedHost, alone: int) -> Measured:
    memory = host.card.memory[0] * alone // memory_fit.need(found.work, host, found.spec.sync)
    return Measured(
        card=host.card.name, speed=min(FASTEST, max(1, round(host_speed.rate(host)))), memory_bytes=min(LARGE, memory),
        disk_bytes=0, cores=host.cores or 0, up=min(limits.BIT_RATE, round(host.link.up)),
        down=min(limits.BIT_RATE, round(host.link.down)), reliability=0, stake=host.stake,
    )  # fmt: skip


def bid(found: OfferedJob) -> Bid:
    """What the job bids for. Raises UsageError FF-MARK-010, -011, -017 for work or terms out of all bounds."""
    spec, order = found.spec, found.order
    end = Millis(order.start + LONGEST_MS) if order.deadline is None else order.deadline
    sent = _exchanged(spec, found.work, next(iter(found.hosts.values())), order.members, 1.0)
    each = UnitBounds(
        steps=spec.sync.steps,
        flop=math.ceil(found.work.flop(spec.round_tokens)),
        up_bytes=math.ceil(sent[1]),
        down_bytes=math.ceil(sent[2]),
        memory_bytes=need_alone(found),
        seconds=max(1, min(LARGE, (end - order.start) // (1000 * spec.rounds))),
    )
    return Bid(
        members=order.members, spares=order.spares, work=work_units.MemberWork(spec.rounds, each),
        price=times(order.unit_price, spec.round_tokens), budget=order.budget, start=order.start, deadline=end,
        cards=order.cards, memory_bytes=each.memory_bytes, stake=order.stake,
    )  # fmt: skip


def also(found: OfferedJob, market: Market) -> tuple[OfferConstraint, ...]:
    """What is asked for beyond a bid's fields: rounds in time over each host's own line, and its machine's class."""
    order, rounds = found.order, found.spec.rounds
    paces = [found.paces[each] for each in market.asks.peers]
    asked_for: list[OfferConstraint] = []
    if order.deadline is not None:
        span = (order.deadline - order.start) / 1000
        within = f"{rounds} rounds with their exchange in {format_seconds(span)}"
        asked_for.append(OfferConstraint("lines", within, _mask([rounds * pace.round <= span for pace in paces])))
    if order.grade is not None:
        for rule, name in RULES.items():
            met = [_meets(pace.admission, rule, order.grade) for pace in paces]
            asked_for.append(OfferConstraint(f"{name} of class {order.grade}", MEETS[order.grade], _mask(met)))
    return tuple(asked_for)


def _mask(met: Sequence[bool]) -> Mask:
    return np.array(met, np.bool_)


def _meets(admission: MachineAdmission, rule: str, grade: MachineGrade) -> bool:
    """Whether all findings of one rule are what the class asks for."""
    found = [one for one in admission.findings if one.rule == rule]
    return all(_is_good(one, grade) for one in found)


def _is_good(finding: RuleFinding, grade: MachineGrade) -> bool:
    if grade is MachineGrade.C:
        return finding.state is not RuleState.FAILED
    return finding.state is RuleState.OK and not (grade is MachineGrade.A and finding.is_below_thumb)


def _pace(spec: JobSpec, work: JobWork, host: OfferedHost, members: int) -> HostPace:
    own = memory_fit.room(work, work.with_outer(spec.sync), host, memory_fit.replica(host), work.batch)
    step = host_speed.computing(work, host, own, work.step_tokens, host_speed.UTILISATION)
    exchange, up, down = _exchanged(spec, work, host, members, step)
    steps = spec.sync.steps
    ram = own.worst.footprint.at(MemoryPlace.RAM) + work.public(spec.sync) / host.cards
    cores = machine_admission.feeding(work, members, host.cards, down / steps, steps, step)
    share = HostLoad(ram, host_speed.crossing(work, host, own, work.step_tokens), up / steps, down / steps, cores)
    found = machine_admission.judged(host, share, step)
    return HostPace(Seconds(step * steps), Seconds(exchange), found)


def _exchanged(
    spec: JobSpec, work: JobWork, host: OfferedHost, members: int, step: float
) -> tuple[float, float, float]:
    """Seconds of one exchange by the job's own method, and bytes up and down; nothing of who is alone."""
    if members < 2:
        return 0.0, 0.0, 0.0
    found = estimate(MethodSetting(work.layout, host.link, members, Seconds(step)), spec.sync)
    return found.exchange, found.up * spec.sync.steps, found.down * spec.sync.steps
