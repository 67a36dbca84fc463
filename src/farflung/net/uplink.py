"""Estimates what a home's line can upload, from what its connections deliver, and says how fast they may send.

As BBR's delivery-rate filter does it for one path (draft-ietf-ccwg-bbr, sections 4.1 and 5.3), for a line and for all
connections over it together: only what was delivered while something waited to be sent says how fast the line is.

    SEEK --- a queue grows, or no growth in three round trips ---> DRAIN --- the queue is gone ---> KEEP
    KEEP --- now and then, for one round trip ---> PROBE ---> WEIGH --- no more was delivered ---> KEEP
                                                                    --- more was delivered -----> SEEK

    SEEK   twice what was delivered: BBR's own start is 2.89 times, and fills the queue of a slow line before it stops
    DRAIN  half of the line, so that the queue which was found becomes empty
    KEEP   95 % of the line, headers counted: what waits is little, and the owner's own packets pass
    PROBE  1.25 times: more than the line, so that growth can be seen; a quarter of a round trip waits, for once
    WEIGH  95 % again, while what the probe sent is acknowledged

A line that has become slower is forgotten after FORGET seconds in which it was asked for everything and gave less.
Times are seconds, rates bytes of TCP payload a second.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, replace
from typing import Final

from farflung.net.shares import KEPT

UNKNOWN: Final = 1_000_000.0  # a line of which nothing is known begins here: 8 Mbit/s
SLOW: Final = 250_000.0  # SEEK never allows less
LEAST: Final = 8_000.0  # a line is never thought slower
PROBE_SECONDS: Final = 5.0  # of work between two probes
FORGET: Final = 6.0  # of work: longer than a probe is away
_SEEK, _PROBE, _DRAIN = 2.0, 1.25, 0.5  # gains
_KEEP: Final = KEPT * 1500 / 1448  # a line is told in packets, and rates here count what they carry
_GROWTH: Final = 1.25  # in a round trip; less is none
_FLAT_ROUNDS: Final = 3
_MORE: Final = 1.05  # what a probe must deliver to have found more
_FULL: Final = 0.9  # of its ceiling: who delivers so much was bound by it
_QUEUE_SECONDS: Final = 0.008  # that a queue takes at least, so that jitter is none
_QUEUE_SHARE: Final = 0.125  # of the round trip
_DRAIN_TRIPS: Final = 4.0
_SPAN: Final = 0.2  # seconds of one weighing in KEEP, at least
_LONG: Final = 1.0  # no weighing waits for a longer round trip


class Phase(enum.Enum):
    """What is being done."""

    SEEK = "seek"
    DRAIN = "drain"
    KEEP = "keep"
    PROBE = "probe"
    WEIGH = "weigh"


@dataclass(frozen=True, slots=True)
class Sample:
    """What all connections over the line did since the last look.

    `fastest`: the kernel's own newest rate of delivery, all busy ones together. `trip`: the shortest round trip of
    the busy ones. `queue`: by how much the least delayed of them exceeds its own shortest: a queue of the line delays
    all of them. `is_busy`: something waited to be sent at both ends of the time; else the rest says nothing.
    """

    delivered: int
    seconds: float
    fastest: float = 0.0
    trip: float = 0.05
    queue: float = 0.0
    is_busy: bool = True


@dataclass(frozen=True, slots=True)
class Line:
    """What is known of a line. `rate` 0: nothing."""

    phase: Phase = Phase.SEEK
    rate: float = 0.0
    spent: float = 0.0  # busy seconds in this phase
    got: int = 0  # bytes in the span that is being weighed
    span: float = 0.0
    since_probe: float = 0.0  # busy seconds
    low: float = 0.0  # the most that was delivered since `rate` was last confirmed
    lows: float = 0.0  # busy seconds since then
    flat: int = 0  # round trips without growth
    mark: float = 0.0  # the rate from which growth is counted


def known(rate: float) -> Line:
    """A line of which somebody has told the rate, or that was measured before."""
    return Line(Phase.KEEP, max(LEAST, rate))


def ceiling(line: Line, cap: float = math.inf) -> int:
    """Bytes a second that all connections together may send now; `cap`: at most, because somebody said so."""
    return max(1, int(min(cap, _wish(line))))


def _wish(line: Line) -> float:
    if line.phase is Phase.SEEK:
        return max(SLOW, _SEEK * line.rate) if line.rate else UNKNOWN
    gain = {Phase.DRAIN: _DRAIN, Phase.PROBE: _PROBE}.get(line.phase, _KEEP)
    return gain * line.rate


def observe(line: Line, sample: Sample, cap: float = math.inf) -> Line:
    """The line after one more look. `cap`: what bounded the sender beside it."""
    if not sample.is_busy or sample.seconds <= 0:
        return replace(line, got=0, span=0.0)
    line = replace(
        line,
        spent=line.spent + sample.seconds,
        got=line.got + sample.delivered,
        span=line.span + sample.seconds,
    )
    return _keep(line, sample, cap) if line.phase is Phase.KEEP else _STEPS[line.phase](line, sample)


def _enter(line: Line, phase: Phase) -> Line:
    return replace(line, phase=phase, spent=0.0, got=0, span=0.0, flat=0, mark=line.rate)


def _confirmed(line: Line, rate: float) -> Line:
    return replace(line, rate=max(line.rate, rate, LEAST), low=0.0, lows=0.0)


def _is_queued(sample: Sample) -> bool:
    return sample.queue > max(_QUEUE_SECONDS, _QUEUE_SHARE * (sample.trip - sample.queue))


def _seek(line: Line, sample: Sample) -> Line:
    line = _confirmed(line, sample.fastest)
    if _is_queued(sample):
        return replace(_enter(line, Phase.DRAIN), since_probe=0.0)
    if line.span < sample.trip:
        return line
    flat = 0 if line.rate >= _GROWTH * line.mark else line.flat + 1
    mark = line.rate if not flat else line.mark
    if flat >= _FLAT_ROUNDS:
        return replace(_enter(line, Phase.DRAIN), since_probe=0.0)
    return replace(line, flat=flat, mark=mark, got=0, span=0.0)


def _drain(line: Line, sample: Sample) -> Line:
    if _is_queued(sample) and line.spent <= _DRAIN_TRIPS * sample.trip:
        return _confirmed(line, sample.fastest)  # as long as something waits, the line is full
    return _enter(line, Phase.KEEP)


def _keep(line: Line, sample: Sample, cap: float) -> Line:
    line = replace(line, since_probe=line.since_probe + sample.seconds, lows=line.lows + sample.seconds)
    if line.span >= max(_SPAN, min(_LONG, sample.trip)):
        line = _weighed(line, line.got / line.span, cap)
    if line.since_probe >= PROBE_SECONDS:
        return replace(_enter(line, Phase.PROBE), since_probe=0.0)
    return line


def _weighed(line: Line, found: float, cap: float) -> Line:
    line = replace(line, got=0, span=0.0)
    if found >= _FULL * min(cap, _KEEP * line.rate):
        return _confirmed(line, found)
    line = replace(line, low=max(line.low, found))
    if line.lows < FORGET:
        return line
    return replace(line, rate=max(LEAST, line.low), low=0.0, lows=0.0)


def _probe(line: Line, sample: Sample) -> Line:
    is_over = line.spent >= sample.trip - sample.queue or _is_queued(sample)
    return _enter(line, Phase.WEIGH) if is_over else line


def _weigh(line: Line, sample: Sample) -> Line:
    if line.spent < min(_LONG, sample.trip):
        return line
    found = line.got / line.span
    if found > _MORE * line.rate:
        return _enter(_confirmed(line, found), Phase.SEEK)
    return _enter(line, Phase.KEEP)


_STEPS: Final = {
    Phase.SEEK: _seek,
    Phase.DRAIN: _drain,
    Phase.PROBE: _probe,
    Phase.WEIGH: _weigh,
}
