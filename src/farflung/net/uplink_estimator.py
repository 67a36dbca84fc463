"""Estimates what a home's line can upload, from what its connections deliver, and says how fast they may send.

A line is paced for one reason: the queue that we would make in it, in which the owner's packets wait. So without a
queue there is no estimate and no pace. A round trip well above its shortest, in three windows in a row in which we had
something to send all the time and the rate no longer grew, is a queue; if it goes when we give way, it was ours, and
what was sent while it stood, delivered or lost elsewhere, is what the line carries. Nothing else lowers the estimate:
no loss, no burst that ends before TCP has found its rate, no time without anything to send. What is known is doubted
every few seconds.

    OPEN --- a queue ---> TEST --- it went: it was ours ---> KEEP --- 1 to 4 s of work, or a pause ---> PROBE
                               --- it stayed ---> OPEN, and SHARE if it stands for a second more
    PROBE --- a queue ---> TEST        PROBE --- no queue, or more was delivered ---> OPEN
    KEEP  --- a queue ---> TEST        SHARE --- the queue went, or a pause ---> PROBE

    OPEN   as fast as TCP goes
    TEST   what was delivered, less what the queue calls for to go: half of it while the queue is long
    KEEP   95 % of the line, headers counted: what waits is little, and the owner's own packets pass
    PROBE  1.25 times of it: a right estimate makes a queue that grows slowly, a wrong one is gone in a moment
    SHARE  half of a line that we know: the owner, or somebody in the home, wants it too

Sources: draft-ietf-ccwg-bbr, sections 4.1 and 5.3 (what says how fast a line is); decision 031 (why so).
Times are seconds, rates bytes of TCP payload a second.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, replace
from typing import Final

from farflung.net.max_min_fair import KEPT

LEAST: Final = 31_250.0  # nobody is paced below a quarter of a Mbit/s
OLD: Final = 600.0  # after which nothing is known any more
PAUSE: Final = 1.0  # without anything to send: what comes then begins by doubting
PAUSED: Final = 0.05  # a test that waits longer for something to send says nothing
KEEP_SECONDS: Final = 1.0  # of work, times the proofs in a row that agreed
TRUSTED: Final = 4  # of them count
WINDOW: Final = 0.06  # three looks; or one round trip, or PACKETS
PACKETS: Final = 8 * 1448
PROOF: Final = 3  # windows
STEADY: Final = 1.25  # between the least and the most of them; in its start TCP doubles
QUEUE: Final = 0.012  # that a queue takes at least, so that jitter is none
QUEUE_SHARE: Final = 0.125  # of the round trip
# At least, that begins a proof, and is somebody else's if a test leaves it: less may be jitter, of a busy machine too.
LONG: Final = 0.02
TEST_TRIPS: Final = 4.0
TEST_LEAST: Final = 0.75  # a slow connection's smoothed round trip falls late: by an eighth an acknowledgement
TEST_MOST: Final = 1.5
WEIGH: Final = 0.25  # or WEIGH_TRIPS: in which more than is known must come, to be believed
WEIGH_TRIPS: Final = 4.0
MORE: Final = 1.1
SAME: Final = 0.9  # what is below is less, and has to be proven twice
PROBE_TRIPS: Final = 16.0  # two cycles in which BBR tries a quarter more
PROBE_LEAST: Final = 0.5
STAYS: Final = 1.0  # so long somebody else's queue stands, or is away, before we act on it
SILENCE: Final = 1.0  # so long nothing is delivered when a line is cut; slow ones deliver packets
LOST: Final = 0.05  # of what was delivered may be lost elsewhere: a queue that overflows drops more
# And DRAIN_TRIPS: so slowly a test takes its queue out at its end, while the smoothed round trip falls late.
DRAIN: Final = 0.1
DRAIN_TRIPS: Final = 0.25
_PROBE, _TEST, _SHARE = 1.25, 0.5, 0.5
_TEST_LEAST: Final = 0.05  # that a test gives
_KEEP: Final = KEPT * 1500 / 1448  # a line is told in packets, and rates here count what they carry


class UplinkPhase(enum.Enum):
    """What is being done."""

    OPEN = "open"
    TEST = "test"
    KEEP = "keep"
    PROBE = "probe"
    SHARE = "share"


@dataclass(frozen=True, slots=True)
class UplinkSample:
    """What all connections over the line did since the last look, which ended at `at` and took `seconds`.

    `trip`: the shortest round trip of the busy ones. `queue`: by how much the least delayed of them exceeds its own
    shortest: a queue of the line delays all of them. `is_busy`: at both ends of the time something waited to be sent
    by TCP, whose receiver took it; else the rest says nothing. `again`: bytes that were sent once more.
    """

    at: float
    delivered: int
    seconds: float
    trip: float = 0.05
    queue: float = 0.0
    is_busy: bool = True
    again: int = 0

    @property
    def carried(self) -> float:
        """Bytes that the line took: what is lost elsewhere it has carried, what its own queue dropped it has not."""
        return self.delivered + min(self.again, LOST * self.delivered)

    @property
    def base(self) -> float:
        """The round trip without the queue."""
        return max(0.0, self.trip - self.queue)

    @property
    def is_queued(self) -> bool:
        """Whether it may be more than jitter."""
        return self.queue > max(QUEUE, QUEUE_SHARE * self.base)

    @property
    def is_long(self) -> bool:
        """Whether it is more than jitter, also of a machine that is late itself."""
        return self.queue > max(LONG, QUEUE_SHARE * self.base)


@dataclass(frozen=True, slots=True)
class DeliverySpan:
    """Bytes that were carried in a time."""

    got: float = 0.0
    seconds: float = 0.0

    def more(self, sample: UplinkSample) -> DeliverySpan:
        """With those of one more look."""
        return DeliverySpan(self.got + sample.carried, self.seconds + sample.seconds)

    @property
    def rate(self) -> float:
        """Of all of it."""
        return self.got / self.seconds if self.seconds > 0 else 0.0


@dataclass(frozen=True, slots=True)
class UplinkEstimate:
    """What is known of a line. `rate` 0: nothing."""

    phase: UplinkPhase = UplinkPhase.OPEN
    rate: float = 0.0
    since: float = -math.inf  # when it was last proven
    agreed: int = 0  # proofs in a row
    less: float = 0.0  # what a first proof of less said
    found: float = 0.0  # in the queue that is being tested
    patience: float = 0.0  # for the test
    gives: float = 0.0  # in the test: the part of what was found that we leave, for the queue to go
    spent: float = 0.0  # busy seconds in this phase
    is_seen: bool = False  # a queue was, in this phase
    window: DeliverySpan = DeliverySpan()  # with a queue at every look
    rates: tuple[float, ...] = ()  # of the last such windows in a row
    weighed: DeliverySpan = DeliverySpan()  # with and without
    others: float = 0.0  # busy seconds for which a queue that is not ours stood (OPEN), or was away (SHARE)
    is_others: bool = False  # a test has shown that the queue is not ours
    silent: float = 0.0
    busy_at: float = -math.inf  # when something last waited to be sent


def known(rate: float, at: float) -> UplinkEstimate:
    """A line that was measured before `at`. It is not paced by that: TCP's start would take it for what there is."""
    return UplinkEstimate(UplinkPhase.OPEN, max(LEAST, rate), since=at, agreed=1)


def ceiling(line: UplinkEstimate, cap: float = math.inf) -> float:
    """Bytes a second that all connections together may send now; `cap`: at most, because somebody said so."""
    return max(1.0, min(cap, _wish(line)))


def _wish(line: UplinkEstimate) -> float:
    if line.phase is UplinkPhase.OPEN:
        return math.inf
    if line.phase is UplinkPhase.TEST:
        return max(LEAST, (1 - line.gives) * line.found)
    gain = {UplinkPhase.KEEP: _KEEP, UplinkPhase.PROBE: _PROBE, UplinkPhase.SHARE: _SHARE}[line.phase]
    return max(LEAST, gain * line.rate)


def observe(line: UplinkEstimate, sample: UplinkSample) -> UplinkEstimate:
    """The line after one more look."""
    line = _awake(line, sample)
    if not sample.is_busy or sample.seconds <= 0:
        return replace(line, window=DeliverySpan(), rates=(), weighed=DeliverySpan(), silent=0.0)
    line = replace(line, busy_at=sample.at)
    if not sample.delivered:
        return replace(line, silent=line.silent + sample.seconds)
    if is_cut(line.silent, sample.trip):  # what comes first, in a lump, says nothing
        return _enter(line, _doubt(line)) if line.phase is UplinkPhase.TEST else _blank(line)
    sample, line = replace(sample, seconds=line.silent + sample.seconds), replace(line, silent=0.0)
    line = replace(_counted(line, sample), spent=line.spent + sample.seconds)
    return _STEPS[line.phase](line, sample)


def is_cut(silent: float, trip: float) -> bool:
    """Whether so many seconds without anything delivered, while something waited, are no slow line's."""
    return silent > max(SILENCE, 2 * trip)


def _awake(line: UplinkEstimate, sample: UplinkSample) -> UplinkEstimate:
    """What a time without work changes: a test is over, what is known is doubted, what is old is forgotten."""
    pause = sample.at - line.busy_at - (sample.seconds if sample.is_busy else 0.0)
    if sample.at - line.since > OLD and line.rate:
        return replace(_enter(line, UplinkPhase.OPEN), rate=0.0, agreed=0, less=0.0)
    if line.phase is UplinkPhase.TEST and pause > PAUSED:
        return _enter(line, _doubt(line))
    if line.phase in (UplinkPhase.KEEP, UplinkPhase.SHARE) and pause > PAUSE:
        return replace(_enter(line, UplinkPhase.PROBE), less=0.0)
    return line


def _doubt(line: UplinkEstimate) -> UplinkPhase:
    return UplinkPhase.PROBE if line.rate else UplinkPhase.OPEN


def _blank(line: UplinkEstimate) -> UplinkEstimate:
    return replace(
        line, window=DeliverySpan(), rates=(), weighed=DeliverySpan(), silent=0.0, others=0.0, is_others=False
    )


def _enter(line: UplinkEstimate, phase: UplinkPhase) -> UplinkEstimate:
    return replace(_blank(line), phase=phase, spent=0.0, is_seen=False)


def _counted(line: UplinkEstimate, sample: UplinkSample) -> UplinkEstimate:
    line = replace(line, weighed=line.weighed.more(sample))
    if not sample.is_long:
        return replace(line, window=DeliverySpan(), rates=())
    window = line.window.more(sample)
    if window.seconds < max(WINDOW, sample.base) or window.got < PACKETS:
        return replace(line, window=window)
    return replace(line, window=DeliverySpan(), rates=(*line.rates, window.rate)[-PROOF:])


def _proof(line: UplinkEstimate) -> float | None:
    """What was delivered while a queue stood and TCP was beyond its start; None: that has not been shown."""
    rates = line.rates
    if len(rates) < PROOF or max(rates) > STEADY * min(rates):
        return None
    return sum(rates) / len(rates)


def _tested(line: UplinkEstimate, sample: UplinkSample) -> UplinkEstimate | None:
    if (found := _proof(line)) is None:
        return None
    patience = min(TEST_MOST, max(TEST_LEAST, TEST_TRIPS * sample.trip))
    return replace(_enter(line, UplinkPhase.TEST), found=found, patience=patience, gives=_gives(sample))


def _gives(sample: UplinkSample) -> float:
    """No more than the queue calls for: of what we leave beyond it, the line would carry nothing."""
    return min(_TEST, max(_TEST_LEAST, (sample.queue - QUEUE) / (DRAIN + DRAIN_TRIPS * sample.base)))


def _more(line: UplinkEstimate, sample: UplinkSample) -> UplinkEstimate | None:
    """OPEN at once if more was delivered than the line was thought to carry; else what is weighed begins anew."""
    span = line.weighed
    if span.seconds < max(WEIGH, min(1.0, WEIGH_TRIPS * sample.base)):
        return None
    if span.rate > MORE * line.rate:
        return replace(_enter(line, UplinkPhase.OPEN), rate=max(LEAST, span.rate), agreed=0, less=0.0)
    return replace(line, weighed=DeliverySpan())


def _open(line: UplinkEstimate, sample: UplinkSample) -> UplinkEstimate:
    if not line.is_others:
        return _tested(line, sample) or line
    others = line.others + sample.seconds if sample.is_long else 0.0
    line = replace(line, others=others, is_others=sample.is_long)
    return _enter(line, UplinkPhase.SHARE) if line.others >= STAYS and line.agreed else line


def _test(line: UplinkEstimate, sample: UplinkSample) -> UplinkEstimate:
    if sample.is_queued and line.spent <= line.patience:
        return replace(line, gives=_gives(sample))
    if not sample.is_long:
        return _enter(_proven(line, sample.at), UplinkPhase.KEEP)
    return replace(_enter(line, UplinkPhase.OPEN), is_others=True)


def _proven(line: UplinkEstimate, at: float) -> UplinkEstimate:
    """The queue was ours. Less than was known before has to be shown twice in a row."""
    found = max(LEAST, line.found)
    if not line.agreed or found > MORE * line.rate:
        return replace(line, rate=found, since=at, agreed=1, less=0.0)
    if found >= SAME * line.rate:
        return replace(line, rate=found, since=at, agreed=line.agreed + 1, less=0.0)
    if line.less:
        return replace(line, rate=max(found, line.less), since=at, agreed=1, less=0.0)
    return replace(line, less=found)


def _keep(line: UplinkEstimate, sample: UplinkSample) -> UplinkEstimate:
    if (tested := _tested(line, sample)) is not None:
        return tested
    if line.spent >= KEEP_SECONDS * (min(TRUSTED, line.agreed) if not line.less else 1):
        return _enter(line, UplinkPhase.PROBE)
    return _more(line, sample) or line


def _probe(line: UplinkEstimate, sample: UplinkSample) -> UplinkEstimate:
    if (tested := _tested(line, sample)) is not None:
        return tested
    line = replace(line, is_seen=line.is_seen or sample.is_queued)
    if line.spent >= max(PROBE_LEAST, PROBE_TRIPS * sample.base) and not sample.is_queued:
        if line.is_seen:  # BBR alone makes it for a moment when it tries; and no more came
            return _enter(replace(line, agreed=line.agreed + 1, since=sample.at), UplinkPhase.KEEP)
        return replace(_enter(line, UplinkPhase.OPEN), less=0.0)  # nobody is helped by a pace where nothing waits
    return _more(line, sample) or line


def _share(line: UplinkEstimate, sample: UplinkSample) -> UplinkEstimate:
    line = replace(line, others=0.0 if sample.is_long else line.others + sample.seconds)
    return _enter(line, UplinkPhase.PROBE) if line.others >= STAYS else line


_STEPS: Final = {
    UplinkPhase.OPEN: _open,
    UplinkPhase.TEST: _test,
    UplinkPhase.KEEP: _keep,
    UplinkPhase.PROBE: _probe,
    UplinkPhase.SHARE: _share,
}
