"""Estimates what a home's line can upload, from what its connections deliver, and says how fast they may send.

As BBR's delivery-rate filter does it for one path (draft-ietf-ccwg-bbr, sections 4.1 and 5.3), for a line and for all
connections over it together: only what was delivered while something waited to be sent says how fast the line is.

    SEEK --- a queue grows ---> DRAIN --- the queue is gone ---> KEEP
    KEEP --- now and then ---> PROBE ---> WEIGH --- no more was delivered ---> KEEP, by DRAIN
                                                                    --- more was delivered -----> SEEK
    KEEP --- a queue stays for a second ---> DRAIN --- it is still there: it is not ours ---> SHARE
    SHARE --- no queue for a second: the others are done ---> SEEK

    SEEK   twice what was delivered: BBR's own start is 2.89 times, and fills the queue of a slow line before it stops
    DRAIN  half of the line, so that the queue which was found becomes empty
    KEEP   95 % of the line, headers counted: what waits is little, and the owner's own packets pass
    PROBE  1.25 times, until a queue grows, or for eight round trips: so long BBR takes to try more by itself
    WEIGH  95 % again, while what the probe sent is acknowledged
    SHARE  half of the line: the owner, or somebody in the home, wants it too. Of a line that is not known yet, half of
           what TCP gets beside them, found as in SEEK, without regard to a queue that others make

A line that has become slower is forgotten after FORGET seconds with a queue, in which it gave less than was asked.
Without a queue it is packet loss that holds a sender back, and less speed would make that worse. A line that gives
nothing at all is cut, and not slow: what is known of it stays, and is followed from where it was.
Times are seconds, rates bytes of TCP payload a second.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, replace
from typing import Final

from farflung.net.shares import KEPT

SLOW: Final = 250_000.0  # SEEK never allows less of a line that is known
UNKNOWN: Final = 1_000_000.0  # a line of which nothing is known begins here: 8 Mbit/s
LEAST: Final = 8_000.0  # a line is never thought slower
PROBE_SECONDS: Final = 3.0  # of work between two probes
FORGET: Final = 6.0  # of work: longer than a probe is away
_SEEK, _PROBE, _DRAIN, _SHARE = 2.0, 1.25, 0.5, 0.5  # gains
_KEEP: Final = KEPT * 1500 / 1448  # a line is told in packets, and rates here count what they carry
_GROWTH: Final = 1.25  # in a round trip; less is none
_FLAT_ROUNDS: Final = 3
_LOOKS: Final = (
    3  # that see a queue before one is believed, while the rate is that of TCP's own first round trips
)
_MORE: Final = 1.05  # what a probe must deliver to have found more
_FULL: Final = 0.9  # of its ceiling: who delivers so much was bound by it
_CYCLE: Final = 8  # round trips in which BBR, after its start, tries once for a quarter more
_QUEUE_SECONDS: Final = 0.008  # that a queue takes at least, so that jitter is none
_QUEUE_SHARE: Final = 0.125  # of the round trip
_DRAIN_TRIPS: Final = 4.0
_STAYS: Final = 1.0  # seconds: what a queue must stay, or be away, to mean something
_SPAN: Final = 0.2  # seconds of one weighing in KEEP, at least
_LONG: Final = 1.0  # no weighing waits for a longer round trip
_SILENCE: Final = 1.0  # seconds: in so many, a line of LEAST delivers five packets


class Phase(enum.Enum):
    """What is being done."""

    SEEK = "seek"
    DRAIN = "drain"
    KEEP = "keep"
    PROBE = "probe"
    WEIGH = "weigh"
    SHARE = "share"


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
    lows: float = 0.0  # busy seconds since then, with a queue all the time
    floor: float = UNKNOWN  # of what SEEK allows: TCP's own first round trips deliver little on any line
    flat: int = 0  # round trips without growth
    queued: int = 0  # looks in a row that saw a queue (SEEK)
    mark: float = 0.0  # the rate from which growth is counted
    stays: float = 0.0  # busy seconds for which a queue was there (KEEP), or away (SHARE)
    last: float = 0.0  # what was delivered at the last weighing
    is_found: bool = False  # `rate` is the line's, and not only where SEEK has come to
    has_others: bool = False  # SEEK goes on in spite of a queue, since others make it
    silent: float = 0.0  # busy seconds since something was delivered, not yet counted in any of the others


def known(rate: float) -> Line:
    """A line of which somebody has told the rate, or that was measured before."""
    return Line(Phase.KEEP, max(LEAST, rate), is_found=True)


def ceiling(line: Line, cap: float = math.inf) -> int:
    """Bytes a second that all connections together may send now; `cap`: at most, because somebody said so."""
    return max(1, int(min(cap, _wish(line))))


def _wish(line: Line) -> float:
    if line.phase is Phase.SEEK:
        return max(line.floor, _SEEK * line.rate)
    gain = {Phase.DRAIN: _DRAIN, Phase.PROBE: _PROBE, Phase.SHARE: _SHARE}.get(line.phase, _KEEP)
    return gain * line.rate


def observe(line: Line, sample: Sample, cap: float = math.inf) -> Line:
    """The line after one more look. `cap`: what bounded the sender beside it."""
    if not sample.is_busy or sample.seconds <= 0:
        return replace(line, got=0, span=0.0, silent=0.0)
    silent = line.silent + sample.seconds
    if not sample.delivered:
        return replace(line, silent=silent)
    if is_cut(line.silent, sample.trip):
        return _again(line)
    sample, line = replace(sample, seconds=silent), replace(line, silent=0.0)
    line = replace(
        line,
        spent=line.spent + sample.seconds,
        got=line.got + sample.delivered,
        span=line.span + sample.seconds,
    )
    return _STEPS[line.phase](line, sample, cap)


def is_cut(silent: float, trip: float) -> bool:
    """Whether so many seconds without anything delivered, while something waited, are no slow line's."""
    return silent > max(_SILENCE, 2 * trip)


def _again(line: Line) -> Line:
    """The line was cut and is there again. What was being weighed, and what comes first in a lump, says nothing."""
    phase = Phase.KEEP if line.phase in (Phase.PROBE, Phase.WEIGH) else line.phase
    return replace(line, phase=phase, silent=0.0, got=0, span=0.0, low=0.0, lows=0.0, flat=0, stays=0.0)


def _enter(line: Line, phase: Phase) -> Line:
    last = line.last if line.phase is Phase.KEEP else 0.0  # of other phases it says nothing of the line
    line = replace(line, phase=phase, spent=0.0, got=0, span=0.0, floor=SLOW)
    return replace(line, flat=0, queued=0, mark=line.rate, stays=0.0, last=last)


def _confirmed(line: Line, rate: float) -> Line:
    return replace(line, rate=max(line.rate, rate, LEAST), low=0.0, lows=0.0)


def _is_queued(sample: Sample) -> bool:
    return sample.queue > max(_QUEUE_SECONDS, _QUEUE_SHARE * (sample.trip - sample.queue))


def _seek(line: Line, sample: Sample, cap: float) -> Line:
    line = _confirmed(line, sample.fastest)
    line = replace(line, queued=line.queued + 1 if _is_queued(sample) else 0)
    if line.queued >= (1 if _is_under_way(line) else _LOOKS) and not line.has_others:
        return replace(_enter(line, Phase.DRAIN), since_probe=0.0)
    if line.span < sample.trip * (_CYCLE if line.has_others else 1):
        return line
    flat = 0 if line.rate >= _GROWTH * line.mark else line.flat + 1
    mark = line.rate if not flat else line.mark
    if (
        flat >= _FLAT_ROUNDS and line.has_others
    ):  # alone, only a queue says that this is the line, and not our losses
        return replace(_enter(line, Phase.SHARE), since_probe=0.0)
    return replace(line, flat=flat, mark=mark, got=0, span=0.0)


def _is_under_way(line: Line) -> bool:
    """Whether SEEK is beyond its floor, where delayed acknowledgements of few packets look like a queue."""
    return _SEEK * line.rate > line.floor


def _drain(line: Line, sample: Sample, cap: float) -> Line:
    if not _is_queued(sample):  # it was ours: we were above the line
        rate = max(LEAST, min(line.rate, line.last or line.rate))
        return _enter(replace(line, rate=rate, is_found=True), Phase.KEEP)
    if line.spent <= _DRAIN_TRIPS * sample.trip:
        return _confirmed(line, sample.fastest)  # as long as something waits, the line is full
    return _enter(line, Phase.SHARE) if line.is_found else replace(_enter(line, Phase.SEEK), has_others=True)


def _keep(line: Line, sample: Sample, cap: float) -> Line:
    line = _queued_for(replace(line, since_probe=line.since_probe + sample.seconds), sample)
    if line.span >= max(_SPAN, min(_LONG, sample.trip)):
        line = _weighed(line, line.got / line.span, min(cap, _KEEP * line.rate))
    line = replace(line, stays=line.stays + sample.seconds if _is_queued(sample) else 0.0)
    if line.stays >= _STAYS:  # ours, if we are above the line; the next phase shows it
        return _enter(line, Phase.DRAIN)
    if line.since_probe >= PROBE_SECONDS:
        return replace(_enter(line, Phase.PROBE), since_probe=0.0)
    return line


def _share(line: Line, sample: Sample, cap: float) -> Line:
    line = _queued_for(line, sample)
    if line.span >= max(_SPAN, min(_LONG, sample.trip)):
        line = _weighed(line, line.got / line.span, min(cap, _SHARE * line.rate))
    line = replace(line, stays=0.0 if _is_queued(sample) else line.stays + sample.seconds)
    if line.stays < _STAYS:
        return line
    line = replace(line, rate=max(LEAST, _SHARE * line.rate))  # or the line is slower, and the queue was ours
    return replace(_enter(line, Phase.SEEK), is_found=False, has_others=False)


def _queued_for(line: Line, sample: Sample) -> Line:
    """How long a queue has stood. Who delivers less than it may without one is held back by losses, not by the line."""
    return (
        replace(line, lows=line.lows + sample.seconds)
        if _is_queued(sample)
        else replace(line, low=0.0, lows=0.0)
    )


def _weighed(line: Line, found: float, allowed: float) -> Line:
    line = replace(line, got=0, span=0.0, last=found)
    if found >= _FULL * allowed:
        return _confirmed(line, found)
    line = replace(line, low=max(line.low, found))
    if line.lows < FORGET:
        return line
    return replace(line, rate=max(LEAST, line.low), low=0.0, lows=0.0)


def _probe(line: Line, sample: Sample, cap: float) -> Line:
    is_over = line.spent >= _CYCLE * (sample.trip - sample.queue) or _is_queued(sample)
    return _enter(line, Phase.WEIGH) if is_over else line


def _weigh(line: Line, sample: Sample, cap: float) -> Line:
    if line.spent < min(_LONG, sample.trip):
        return line
    found = line.got / line.span
    if found > _MORE * line.rate:
        return _enter(_confirmed(line, found), Phase.SEEK)
    return _enter(line, Phase.DRAIN if _is_queued(sample) else Phase.KEEP)


_STEPS: Final = {
    Phase.SEEK: _seek,
    Phase.DRAIN: _drain,
    Phase.KEEP: _keep,
    Phase.PROBE: _probe,
    Phase.WEIGH: _weigh,
    Phase.SHARE: _share,
}
