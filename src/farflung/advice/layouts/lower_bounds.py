"""Computes lower bounds on a layout's time before it is simulated: compute, and the load of its slowest line
(P1).

Crews are timed in the order of this bound, until none that is left could be better than the best. Latency, kernels to
launch, exchanges of rounds and failures only add to it. Of pipelines it is that of all hosts: where one of them would
be given no layers and left out, the subset without it is another one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from farflung.advice.job_work import WIRE, JobWork
from farflung.advice.layouts import activation_bits
from farflung.advice.layouts.host_subsets import capacity, line
from farflung.advice.layouts.pipeline_layouts import LARGEST
from farflung.advice.offers.offer_file import HOUR, OfferedHost
from farflung.core.units import Seconds

Speed = Callable[[OfferedHost], float]
Bound = Callable[[JobWork, Sequence[OfferedHost], Speed, int], Seconds]
NEVER: Final = Seconds(float("inf"))


def price(seconds: float, hosts: Sequence[OfferedHost]) -> float:
    """Pico-credits of so many seconds."""
    return sum(host.price for host in hosts) * seconds / HOUR


def rounds(work: JobWork, hosts: Sequence[OfferedHost], speed: Speed, _ways: int) -> Seconds:
    """Each trains its share; the slowest is waited for."""
    return Seconds(work.flop(work.tokens) / (len(hosts) * min(map(speed, hosts))))


def data(work: JobWork, hosts: Sequence[OfferedHost], speed: Speed, _ways: int) -> Seconds:
    """A step computes, or sums its gradients over the slowest line."""
    return _in_step(work, hosts, speed, 2.0)


def sharded(work: JobWork, hosts: Sequence[OfferedHost], speed: Speed, _ways: int) -> Seconds:
    """A step computes, or gathers weights twice and reduces gradients once."""
    return _in_step(work, hosts, speed, 3.0)


def pipeline(work: JobWork, hosts: Sequence[OfferedHost], speed: Speed, ways: int) -> Seconds:
    """Of so many; infinite where the states alone have no room on all of their cards."""
    recipe = work.recipe if ways == 1 else work.with_outer(LARGEST)
    if sum(map(capacity, hosts)) < ways * recipe.whole * work.parameters:
        return NEVER
    return _piped(work, hosts, speed, ways)


def _piped(work: JobWork, hosts: Sequence[OfferedHost], speed: Speed, ways: int) -> Seconds:
    """The larger of two things that a step does not go below: all of its micro-batches on its slowest line and at the
    mean rate of its stages; one of them through all stages and back, on the mean of the pipelines.

    An inner stage has half of its line for either neighbour, an end the whole; the slowest are taken to stand there.
    """
    rates, lines = list(map(speed, hosts)), sorted(map(line, hosts))
    sequences, ends = -(-work.sequences // ways), 2 * ways
    bits, flop = 8.0 * activation_bits.least(work) * work.model.handed(1), work.flop(work.context)
    inner = lines[ends:]
    pace = max(flop * ways / sum(rates), bits / lines[0], 2 * bits / inner[0] if inner else 0.0)
    hops = sum(bits / 2 / each for each in lines[:ends]) + sum(2 * bits / each for each in inner)
    through = flop / max(rates) + 2 * hops / ways
    steps = work.tokens / (ways * sequences * work.context)
    return Seconds(steps * max(sequences * pace, through))


def _in_step(work: JobWork, hosts: Sequence[OfferedHost], speed: Speed, collectives: float) -> Seconds:
    tokens = -(-work.sequences // len(hosts)) * work.context
    compute = work.flop(tokens) / min(map(speed, hosts))
    share = (len(hosts) - 1) / len(hosts)
    sent = 8.0 * collectives * share * WIRE * work.parameters / min(map(line, hosts))
    return Seconds(max(compute, sent) * work.tokens / (work.sequences * work.context))
