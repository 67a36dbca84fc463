"""Emulates an access line: it decides the fate of each packet, and forwards between two TUN devices.

In each direction a packet is lost by chance, or waits for the line in a queue that drops what would wait too long, then
travels for the delay and some jitter, and never overtakes the one before it. Loss is Gilbert's chain of two states: in
the bad one every packet is lost. With `enter` equal to `stay` the states have no memory, and loss is independent.

A train is several packets of one connection that a network card is given at once (segmentation offload): it takes as
long on the line as they do, and arrives with the last of them. A device that carries trains says so, and puts Linux's
struct virtio_net_hdr before each packet. On lines with loss there are none.

All is counted in whole nanoseconds and drawn from SplitMix64, so `link_emulator.c` and this file decide alike,
packet by packet. The process reads commands from stdin, a byte each, and answers each with one line of JSON, its
counters: `s` says them, `c` cuts the line, `r` restores it. It ends with its stdin, so no line outlives the
laboratory that it belongs to.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import struct
import sys
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple

from farflung.local.netlab.homes import EmulatedHome

OVERHEAD = 38  # bytes that Ethernet adds to a packet: preamble 8, header 14, checksum 4, gap 12
CERTAIN = 1 << 32  # chances are counted in parts of this
SECOND = 1_000_000_000
LOST, FULL = -1, -2  # fates in place of a time
BATCH = 64  # packets that are taken from a device before the other one has its turn
LARGEST = 2048
LARGEST_TRAIN = 65_600
TUNGETIFF, IFF_VNET_HDR = 0x800454D2, 0x4000  # linux/if_tun.h
# virtio_net_hdr: gso_type, gso_size, csum_start (where TCP's header begins).
_HEADER = struct.Struct("=xBxxHHxx")
_ECN = 0x80  # a flag in gso_type
_MASK = (1 << 64) - 1


@dataclass(frozen=True)
class LineParameters:
    """One direction: `rate` in bit/s (0: not limited), times in ns, `enter` and `stay` in parts of CERTAIN."""

    rate: int
    delay: int
    jitter: int
    queue: int
    enter: int  # the chance that a packet begins a burst of losses
    stay: int  # the chance that the packet after a lost one is lost too
    seed: int


@dataclass
class PacketCounters:
    """What became of the packets of one direction; what is missing in the sum is on its way."""

    arrived: int = 0
    delivered: int = 0
    lost: int = 0  # by chance
    full: int = 0  # dropped, since the queue was full
    cut: int = 0  # dropped, since the line was cut
    refused: int = 0  # by the device at the other end: it was taken down
    bytes: int = 0  # delivered, without OVERHEAD


def terms_of(home: EmulatedHome, number: int) -> tuple[LineParameters, LineParameters]:
    """Both directions, up and down, of the line of home `number`. Without a seed the number is the seed."""
    loss, burst = home.loss, home.burst
    enter, stay = (min(1.0, loss / (1 - loss) / burst), 1 - 1 / burst) if burst > 1 else (loss, loss)
    up, down = (
        LineParameters(
            rate=round(rate * 1e6),
            delay=round(home.rtt * 1e6 / 2),
            jitter=round(home.jitter * 1e6),
            queue=round(home.queue * 1e6),
            enter=round(enter * CERTAIN),
            stay=round(stay * CERTAIN),
            seed=2 * (home.seed or number) + way,
        )
        for way, rate in enumerate((home.up, home.down))
    )
    return up, down


class PacketTrain(NamedTuple):
    """What a device gives at once: a packet, or a train. `bytes` and `packets` on the line, without OVERHEAD."""

    data: bytes
    bytes: int
    packets: int = 1


def weigh(data: bytes, *, has_header: bool = False) -> PacketTrain:
    """What was read from a device is on the line."""
    if not has_header:
        return PacketTrain(data, len(data))
    kind, size, begins = _HEADER.unpack_from(data)
    length = len(data) - _HEADER.size
    if kind & ~_ECN and size and begins + 13 <= length:
        heads = begins + (data[_HEADER.size + begins + 12] >> 4) * 4
        if heads < length:
            packets = -(-(length - heads) // size)
            return PacketTrain(data, length + (packets - 1) * heads, packets)
    return PacketTrain(data, length)


class EmulatedLine:
    """One direction of a line: packets arrive at times, and are due at times, in ns. No clock, no I/O."""

    def __init__(self, terms: LineParameters) -> None:
        self.terms = terms
        self.counters = PacketCounters()
        self.is_cut = False
        self._state = terms.seed
        self._is_bad = False
        self._busy = 0  # the line is busy until then
        self._last = 0  # when the last packet is due: no other is due before
        self._way: deque[tuple[int, PacketTrain]] = deque()

    @property
    def next(self) -> int | None:
        """When the next packet is due."""
        return self._way[0][0] if self._way else None

    def arrive(self, now: int, parcel: PacketTrain) -> None:
        """Takes a packet or a train. `now` never decreases."""
        self.counters.arrived += parcel.packets
        if self.is_cut:
            self.counters.cut += parcel.packets
            return
        fate = self.fate(now, parcel.bytes, parcel.packets)
        if fate == LOST:
            self.counters.lost += parcel.packets
        elif fate == FULL:
            self.counters.full += parcel.packets
        else:
            self._way.append((fate, parcel))

    def due(self, now: int) -> list[PacketTrain]:
        """What reaches the other end by now, in the order of arrival."""
        there = []
        while self._way and self._way[0][0] <= now:
            parcel = self._way.popleft()[1]
            self.counters.delivered += parcel.packets
            self.counters.bytes += parcel.bytes
            there.append(parcel)
        return there

    def fate(self, now: int, size: int, packets: int = 1) -> int:
        """When so many bytes in so many packets that arrive now are due, in ns; LOST or FULL if never."""
        terms = self.terms
        if terms.enter:
            self._is_bad = self._draw() < (terms.stay if self._is_bad else terms.enter)
            if self._is_bad:
                return LOST
        start = max(now, self._busy)
        if terms.rate:
            if start - now > terms.queue:
                return FULL
            start += (size + packets * OVERHEAD) * 8 * SECOND // terms.rate
            self._busy = start
        travel = terms.delay + (self._draw() * terms.jitter >> 32 if terms.jitter else 0)
        self._last = max(self._last, start + travel)
        return self._last

    def _draw(self) -> int:
        """The upper half of the next number of SplitMix64 (Steele, Lea, Flood 2014)."""
        self._state = (self._state + 0x9E3779B97F4A7C15) & _MASK
        mixed = (self._state ^ self._state >> 30) * 0xBF58476D1CE4E5B9 & _MASK
        mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & _MASK
        return (mixed ^ mixed >> 31) >> 32


def fates(terms: LineParameters, arrivals: Iterable[tuple[int, int, int]]) -> list[int]:
    """What becomes of what arrives as (time, bytes, packets): see Line.fate."""
    line = EmulatedLine(terms)
    return [line.fate(now, size, packets) for now, size, packets in arrivals]


def words(terms: LineParameters) -> list[str]:
    """Terms as the emulators' command lines carry them."""
    return [str(value) for value in asdict(terms).values()]


def _terms(given: Sequence[str]) -> LineParameters:
    return LineParameters(*map(int, given))


def _answer(lines: Sequence[EmulatedLine]) -> bytes:
    told = {way: asdict(line.counters) for way, line in zip(("up", "down"), lines, strict=True)}
    return json.dumps(told).encode() + b"\n"


def _obey(command: bytes, lines: Sequence[EmulatedLine]) -> None:
    for line in lines:
        line.is_cut = {b"c": True, b"r": False}.get(command, line.is_cut)


def _has_header(device: int) -> bool:
    with contextlib.suppress(OSError):  # no TUN device
        told = fcntl.ioctl(device, TUNGETIFF, bytes(40))
        return bool(struct.unpack_from("=16xH", told)[0] & IFF_VNET_HDR)
    return False


def _forward(source: int, line: EmulatedLine, target: int, *, has_header: bool) -> None:
    """Takes what is there, at most a batch, and gives what is due."""
    largest = LARGEST_TRAIN if has_header else LARGEST
    with contextlib.suppress(BlockingIOError):
        for _ in range(BATCH):
            line.arrive(time.monotonic_ns(), weigh(os.read(source, largest), has_header=has_header))
    for parcel in line.due(time.monotonic_ns()):
        try:
            os.write(target, parcel.data)
        except OSError:  # the other end is down, or its queue is full: the packet is gone, as on a real line
            line.counters.refused += parcel.packets
            line.counters.delivered -= parcel.packets
            line.counters.bytes -= parcel.bytes


def emulate(
    home: int, upstream: int, up: LineParameters, down: LineParameters, control: int = 0, answers: int = 1
) -> None:
    """Forwards between two TUN devices until `control` ends. All four are file descriptors."""
    ways = ((home, EmulatedLine(up), upstream), (upstream, EmulatedLine(down), home))
    lines = [line for _, line, _ in ways]
    for device in (home, upstream):
        os.set_blocking(device, False)
    has_header = _has_header(home)
    while True:
        due = min((line.next for line in lines if line.next is not None), default=None)
        wait = None if due is None else max(0, due - time.monotonic_ns()) / SECOND
        ready, _, _ = select.select([home, upstream, control], [], [], wait)
        if control in ready:
            command = os.read(control, 1)
            if not command:
                return
            _obey(command, lines)
            os.write(answers, _answer(lines))
        for source, line, target in ways:
            _forward(source, line, target, has_header=has_header)


def main(arguments: Sequence[str]) -> int:
    """`python -m farflung.local.netlab.link_emulator FD_HOME FD_UPSTREAM`, then the seven words of both Terms, up
    and down.
    """
    if len(arguments) != 16:
        print(main.__doc__, file=sys.stderr)
        return 2
    emulate(int(arguments[0]), int(arguments[1]), _terms(arguments[2:9]), _terms(arguments[9:]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
