"""What a peer in a home sends and takes over its line: measured, paced, capped by rate and month, by its own count."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import linear_regression
from typing import Any

import pytest
from netns_programs import said

from farflung.local.netlab import EmulatedHome, NatType, NetworkLab, why_not
from farflung.local.netlab.link_emulator import OVERHEAD
from farflung.net.io.socket_options import CAN_PACE

pytestmark = [pytest.mark.netns, pytest.mark.quiet, pytest.mark.xdist_group("manners"), pytest.mark.timeout(300)]

UP, DOWN = 20.0, 100.0  # Mbit/s
CAP = 500_000  # bytes a second
SECONDS = 2.0
PEER = """
import asyncio, json, sys, time
from pathlib import Path
from farflung.core.crypto import local_key
from farflung.core.errors import FarflungError
from farflung.net.monthly_quota import HEADERS
from farflung.net.counters import ByteCounter
from farflung.net.io import socket_options
from farflung.net.io.monthly_quota import MonthlyQuota
from farflung.net.io.endpoint import Endpoint
from farflung.net.io.tcp_listener import ListenConfig
from farflung.net.io.rate_limiter import LinePacer, RateCaps
from farflung.net.io.line_rate_cache import LineRateCache
from farflung.net.messages import MessageKind

asked = json.loads(sys.argv[1])
A, B = local_key(9, "a"), local_key(9, "b")

def say(**facts):
    print(json.dumps(facts), flush=True)

async def handle(connection, method, body):
    if method == "get":
        return bytes(1 << 20)
    return body if method == "ask" else b""

async def serve():
    b = Endpoint(B, handle, ByteCounter(), listen=ListenConfig(asked["host"], allow_remote=True))
    say(port=(await b.start())[1])
    await asyncio.Event().wait()

async def flood(connection, method):
    body = bytes(1 << 20) if method == "put" else b""
    while True:
        await connection.call(method, body, kind=MessageKind.SYNC, timeout=60.0)

async def peer():
    socket_options.CAN_PACE = socket_options.CAN_PACE and asked.get("paces", True)
    month = None
    if "month" in asked:
        month = MonthlyQuota(Path(asked["folder"]) / "month.book", asked["month"])
    memory = LineRateCache(Path(asked["folder"]) / "lines.book")
    pacer = LinePacer(RateCaps(asked.get("up", 0), asked.get("down", 0)), allowance=month, memory=memory)
    a = Endpoint(A, handle, ByteCounter(), pacer=pacer)
    connection = await a.dial(B.public, asked["host"], asked["port"])
    began = pacer.line.rate
    flows = [asyncio.create_task(flood(connection, asked["method"])) for _ in range(4)]
    await asyncio.sleep(asked["warm"])
    say(warm=True)
    done, _ = await asyncio.wait(flows, timeout=asked["seconds"])
    refused = next((each.exception().code for each in done), "")
    trips = []
    for _ in range(5):
        before = time.monotonic()
        assert await connection.call("ask", b"x") == b"x"
        trips.append(time.monotonic() - before)
    say(refused=refused, rate=pacer.line.rate, began=began, members=len(pacer._members), trips=trips,
        sent=a.counter.total_sent, used=0 if month is None else month.used)
    for each in flows:
        each.cancel()
    await asyncio.gather(*flows, return_exceptions=True)
    await a.close()
    if month is not None:
        await month.close()

asyncio.run(serve() if asked["method"] == "serve" else peer())
"""


@pytest.fixture(scope="module")
def laboratory() -> Iterator[NetworkLab]:
    if why := why_not():
        pytest.skip(why)
    if not CAN_PACE:
        pytest.skip("this system cannot pace")
    with NetworkLab([EmulatedHome(up=UP, down=DOWN, rtt=40, nat=NatType.PORT_RESTRICTED, hosts=2)]) as made:
        yield made


@contextmanager
def peer(laboratory: NetworkLab, who: str, **asked: object) -> Iterator[subprocess.Popen[str]]:
    process = laboratory.start(
        who, [sys.executable, "-c", PEER, json.dumps(asked)], out=subprocess.PIPE, errors=subprocess.PIPE
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def exchange(
    laboratory: NetworkLab,
    tmp_path: Path,
    method: str,
    *,
    server: str = "s1",
    warm: float = 1.0,
    seconds: float = SECONDS,
    **asked: object,
) -> tuple[dict[str, Any], float, float]:
    """What a peer in the home says after some seconds, and bytes a second that its line carried up and down."""
    host = laboratory.address(server)
    with peer(laboratory, server, method="serve", host=host) as there:
        place = {"host": host, "port": said(there)["port"], "folder": str(tmp_path)}
        with peer(laboratory, "h1", method=method, warm=warm, seconds=seconds, **place, **asked) as here:
            assert said(here) == {"warm": True}
            up, down = rates(laboratory, 0.8 * seconds)
            facts = said(here)
    print(facts, up, down)
    return facts, up, down


def rates(laboratory: NetworkLab, seconds: float) -> tuple[float, float]:
    """Bytes a second up and down: the slopes of all that is seen, since much of it comes in a few lumps."""
    began, moments = time.monotonic(), list[float]()
    up, down = list[int](), list[int]()
    while not moments or moments[-1] < seconds:
        moments.append(time.monotonic() - began)
        counters = laboratory.counters(1)
        up.append(counters[0].bytes)
        down.append(counters[1].bytes)
        time.sleep(0.05)
    return linear_regression(moments, up).slope, linear_regression(moments, down).slope


def test_a_line_is_measured_and_used_below_what_it_carries_and_remembered(
    laboratory: NetworkLab, tmp_path: Path
) -> None:
    facts, up, _ = exchange(laboratory, tmp_path, "put", warm=2.0)
    payload = UP * 1e6 / 8 * 1448 / (1500 + OVERHEAD)
    assert (facts["began"], facts["members"], facts["refused"]) == (0, 1, "")
    assert 0.9 * payload < facts["rate"] < 1.05 * payload
    assert 0.7 * payload < up
    again, _, _ = exchange(laboratory, tmp_path, "put", warm=0.1, seconds=0.5)
    assert 0.9 * payload < again["began"] < 1.05 * payload


@pytest.mark.parametrize("paces", [True, False])
def test_no_more_goes_up_than_the_owner_allows(laboratory: NetworkLab, tmp_path: Path, paces: bool) -> None:
    _, up, _ = exchange(laboratory, tmp_path, "put", up=CAP, paces=paces)
    assert 0.6 * CAP < up <= CAP + (1 << 16) / SECONDS * (not paces)


def test_no_more_comes_down_than_the_owner_allows(laboratory: NetworkLab, tmp_path: Path) -> None:
    _, _, down = exchange(laboratory, tmp_path, "get", warm=2.0, seconds=4.0, down=CAP)
    # What the kernel takes before it makes the sender wait is not ours to choose: half a second's worth at a time.
    assert 0.5 * CAP < down <= CAP * 1.1


@pytest.mark.parametrize("method", ["put", "get"])
def test_a_months_volume_ends_bulk_with_its_code_and_control_goes_on(
    laboratory: NetworkLab, tmp_path: Path, method: str
) -> None:
    month = 4_000_000
    facts, _, _ = exchange(laboratory, tmp_path, method, month=month)
    assert facts["refused"] == "FF-NET-150"
    assert len(facts["trips"]) == 5
    assert month <= facts["used"] < month + 4 * (9 << 20)  # what was queued, and what was asked for
    again, up, down = exchange(laboratory, tmp_path, method, month=month, warm=0.1, seconds=0.5)
    assert (again["refused"], len(again["trips"])) == ("FF-NET-150", 5)
    assert up + down < 60_000


def test_what_stays_in_the_home_is_neither_paced_nor_counted(laboratory: NetworkLab, tmp_path: Path) -> None:
    facts, up, down = exchange(laboratory, tmp_path, "put", server="h1.2", month=1, up=CAP, warm=0.1, seconds=1.0)
    assert (facts["members"], facts["refused"], facts["used"]) == (0, "", 0)
    assert facts["sent"] > 4 * CAP
    assert up + down < 10_000
