"""The line emulator: what a line may and may not do to packets, and that its two engines agree."""

from __future__ import annotations

import json
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate, groupby, pairwise
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.local.netlab.homes import EmulatedHome
from farflung.local.netlab.lab import SOURCE
from farflung.local.netlab.link_emulator import (
    CERTAIN,
    FULL,
    LOST,
    OVERHEAD,
    SECOND,
    EmulatedLine,
    LineParameters,
    PacketTrain,
    fates,
    terms_of,
    weigh,
    words,
)

MS = 1_000_000
PLAIN = LineParameters(rate=20_000_000, delay=20 * MS, jitter=0, queue=100 * MS, enter=0, stay=0, seed=1)

terms = st.builds(
    LineParameters,
    rate=st.one_of(st.just(0), st.integers(64_000, 1_000_000_000)),
    delay=st.integers(0, 200 * MS),
    jitter=st.one_of(st.just(0), st.integers(1, 50 * MS)),
    queue=st.integers(MS, 400 * MS),
    enter=st.one_of(st.just(0), st.integers(1, CERTAIN // 2)),
    stay=st.integers(0, CERTAIN - CERTAIN // 8),
    seed=st.integers(0, 2**33),
)
sizes = st.one_of(st.tuples(st.integers(20, 1500), st.just(1)), st.integers(2, 44).map(lambda n: (n * 1500, n)))
gaps = st.lists(st.tuples(st.integers(0, 30 * MS), sizes), min_size=1, max_size=120)
Step = tuple[int, tuple[int, int]]
HEAD = struct.Struct("=BBHHHH")  # struct virtio_net_hdr
SEGMENT = 1448


def arrivals(steps: list[Step]) -> list[tuple[int, int, int]]:
    """(time, bytes, packets) of steps (time since the one before, what comes)."""
    times = accumulate(gap for gap, _ in steps)
    return [(now, *size) for now, (_, size) in zip(times, steps, strict=True)]


def busy(count: int, seed: int = 1) -> list[tuple[int, int, int]]:
    """A recorded-looking trace: bursts and pauses, small and large packets, and trains of them."""
    rng = Random(seed)
    return arrivals(
        [
            (rng.choice((0, 0, 1000, 400_000, 9 * MS)), rng.choice(((40, 1), (576, 1), (1500, 1), (12_000, 8))))
            for _ in range(count)
        ]
    )


def train(payload: int, *, ecn: bool = False) -> bytes:
    """What a TUN device gives for so many bytes of one connection: IPv4, TCP with timestamps, 1448 bytes a packet."""
    tcp = bytes(12) + bytes([8 << 4]) + bytes(19)
    return HEAD.pack(1, 0x81 if ecn else 1, 52, SEGMENT, 20, 16) + bytes(20) + tcp + bytes(payload)


@given(terms, gaps)
def test_packets_leave_in_the_order_in_which_they_came_and_never_before_their_delay(
    line: LineParameters, steps: list[Step]
) -> None:
    trace = arrivals(steps)
    due = [(fate, now) for (now, *_), fate in zip(trace, fates(line, trace), strict=True) if fate not in (LOST, FULL)]
    assert due == sorted(due)
    assert all(fate >= now + line.delay for fate, now in due)


@given(terms, gaps)
def test_no_packet_waits_longer_than_the_queue_its_own_sending_and_the_jitter(
    line: LineParameters, steps: list[Step]
) -> None:
    trace = arrivals(steps)
    for (now, size, packets), fate in zip(trace, fates(line, trace), strict=True):
        sending = (size + packets * OVERHEAD) * 8 * SECOND // line.rate if line.rate else 0
        queue = line.queue if line.rate else 0
        assert fate in (LOST, FULL) or fate <= now + queue + sending + line.delay + line.jitter


@given(terms.filter(lambda line: line.rate > 0), gaps)
def test_a_line_never_carries_more_than_its_rate(line: LineParameters, steps: list[tuple[int, int]]) -> None:
    trace, calm = arrivals(steps), replace(line, jitter=0)
    there = [
        (fate, (size + packets * OVERHEAD) * 8 * SECOND)
        for (_, size, packets), fate in zip(trace, fates(calm, trace), strict=True)
        if fate not in (LOST, FULL)
    ]
    for first in range(len(there)):
        carried = 0
        for fate, bits in there[first + 1 :]:
            carried += bits
            # Each may be rounded by a nanosecond.
            assert carried <= (fate - there[first][0] + len(there)) * line.rate


def test_a_full_line_carries_its_rate_and_drops_the_rest() -> None:
    offered = [(n * SECOND // 10_000, 1462, 1) for n in range(10_000)]  # 120 Mbit/s for a second
    there = [fate for fate in fates(PLAIN, offered) if fate != FULL]
    assert 20e6 * 1.0 <= len(there) * 12_000 <= 20e6 * 1.11  # a second, and a queue of 100 ms
    assert max(there) <= SECOND + 121 * MS


@pytest.mark.parametrize("loss", [0.005, 0.02, 0.3])
def test_loss_is_what_was_asked_for_and_each_packets_own(loss: float) -> None:
    up, _ = terms_of(EmulatedHome(up=0, loss=loss), 3)
    lost = [fate == LOST for fate in fates(up, [(n, 100, 1) for n in range(100_000)])]
    assert abs(sum(lost) / len(lost) - loss) <= 4 * (loss * (1 - loss) / len(lost)) ** 0.5
    after = [second for first, second in pairwise(lost) if first]
    assert abs(sum(after) / len(after) - loss) <= 4 * (loss * (1 - loss) / len(after)) ** 0.5


@pytest.mark.parametrize(("loss", "burst"), [(0.02, 8.0), (0.05, 3.0), (0.5, 2.0)])
def test_bursts_have_the_mean_that_was_asked_for_and_the_loss_stays(loss: float, burst: float) -> None:
    _, down = terms_of(EmulatedHome(down=0, loss=loss, burst=burst), 5)
    lost = [fate == LOST for fate in fates(down, [(n, 100, 1) for n in range(200_000)])]
    lengths = [len(list(run)) for is_lost, run in groupby(lost) if is_lost]
    assert abs(sum(lengths) / len(lengths) - burst) < 0.1 * burst
    assert abs(sum(lost) / len(lost) - loss) < 0.1 * loss


def test_a_seed_repeats_a_line_and_another_does_not() -> None:
    trace = busy(2000)
    one, two = (terms_of(EmulatedHome(loss=0.1, jitter=5, seed=seed), 1)[0] for seed in (7, 8))
    assert fates(one, trace) == fates(one, trace)
    assert fates(one, trace) != fates(two, trace)
    up, down = terms_of(EmulatedHome(), 1)
    assert up.seed != down.seed


def test_counters_tell_of_every_packet_and_a_cut_line_carries_none() -> None:
    line = EmulatedLine(replace(PLAIN, queue=MS, enter=CERTAIN // 10, stay=CERTAIN // 10))
    trace = busy(500)
    for now, size, packets in trace:
        line.arrive(now, PacketTrain(b"", size, packets))
    line.is_cut = True
    line.arrive(60 * SECOND, PacketTrain(b"x", 1))
    line.is_cut = False
    line.arrive(60 * SECOND, PacketTrain(b"y" * 100, 100))
    assert line.next is not None
    assert line.due(line.next - 1) == []
    there = line.due(61 * SECOND)
    told = line.counters
    assert told.cut == 1
    assert told.lost
    assert told.full
    assert told.arrived == 2 + sum(packets for _, _, packets in trace)
    assert told.arrived == told.delivered + told.lost + told.full + told.cut
    assert (told.delivered, told.bytes) == (sum(p.packets for p in there), sum(p.bytes for p in there))


@given(st.integers(1, 60_000), st.booleans())
def test_a_train_is_on_the_line_what_its_packets_are(payload: int, ecn: bool) -> None:
    packets = -(-payload // SEGMENT)
    parcel = weigh(train(payload, ecn=ecn), has_header=True)
    assert (parcel.packets, parcel.bytes) == (packets, payload + packets * 52)


@given(st.binary(min_size=11, max_size=200))
def test_a_header_that_lies_is_one_packet_or_more_and_never_less_than_its_bytes(data: bytes) -> None:
    parcel = weigh(data, has_header=True)
    assert parcel.packets >= 1
    assert parcel.bytes >= len(data) - HEAD.size


def test_a_train_takes_as_long_as_its_packets_and_arrives_with_the_last() -> None:
    single = fates(PLAIN, [(0, 1500, 1)] * 8)
    assert abs(fates(PLAIN, [(0, 8 * 1500, 8)])[0] - single[-1]) < 8


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not sys.platform.startswith("linux") or shutil.which("cc") is None:
        pytest.skip("needs Linux and a C compiler (cc)")
    program = tmp_path_factory.mktemp("line") / "line"
    subprocess.run(["cc", "-O2", "-Wall", "-Wextra", "-Werror", "-o", program, SOURCE], check=True)
    return program


@settings(max_examples=25)
@given(line=terms, seed=st.integers(0, 1000))
def test_the_compiled_line_decides_like_this_one_packet_by_packet(
    compiled: Path, line: LineParameters, seed: int
) -> None:
    trace = busy(400, seed)
    told = subprocess.run(
        [compiled, "trace", *words(line)],
        input="".join(f"{now} {size} {packets}\n" for now, size, packets in trace),
        capture_output=True,
        text=True,
        check=True,
    )
    assert list(map(int, told.stdout.split())) == fates(line, trace)


@pytest.fixture(params=["python", "c"])
def process(request: pytest.FixtureRequest) -> Iterator[tuple[subprocess.Popen[bytes], socket.socket, socket.socket]]:
    """An emulator between two pairs of sockets in place of TUN devices."""
    python = [sys.executable, "-m", "farflung.local.netlab.link_emulator"]
    command = python if request.param == "python" else [str(request.getfixturevalue("compiled"))]
    pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(2)]
    devices = [theirs.fileno() for _, theirs in pairs]
    up, down = terms_of(EmulatedHome(up=0, down=0, rtt=2), 1)
    with subprocess.Popen(
        [*command, *map(str, devices), *words(up), *words(down)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=devices,
    ) as started:
        for mine, theirs in pairs:
            theirs.close()
            mine.settimeout(30)
        yield started, pairs[0][0], pairs[1][0]
        for mine, _ in pairs:
            mine.close()
        started.kill()


def ask(process: subprocess.Popen[bytes], command: bytes) -> dict[str, dict[str, int]]:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(command)
    process.stdin.flush()
    told: dict[str, dict[str, int]] = json.loads(process.stdout.readline())
    return told


def test_a_process_forwards_both_ways_counts_obeys_and_ends_with_its_input(
    process: tuple[subprocess.Popen[bytes], socket.socket, socket.socket],
) -> None:
    emulator, home, upstream = process
    for n in range(20):
        home.send(b"up %d" % n)
        upstream.send(b"down %d" % n)
    assert [upstream.recv(99) for _ in range(20)] == [b"up %d" % n for n in range(20)]
    assert [home.recv(99) for _ in range(20)] == [b"down %d" % n for n in range(20)]
    ask(emulator, b"c")
    home.send(b"into the void")
    for _ in range(10_000):
        if (told := ask(emulator, b"s"))["up"]["arrived"] == 21:
            break
    assert told["up"]["cut"] == 1
    assert told["down"] == {"arrived": 20, "delivered": 20, "bytes": 130} | dict.fromkeys(
        ("lost", "full", "cut", "refused"), 0
    )
    ask(emulator, b"r")
    home.send(b"again")
    assert upstream.recv(99) == b"again"
    assert emulator.stdin is not None
    emulator.stdin.close()
    assert emulator.wait(100) == 0
