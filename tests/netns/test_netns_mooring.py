"""What a relay is worth is what its line carries, however far away it is; and a line that is cut is noticed."""

from __future__ import annotations

import time
from contextlib import ExitStack

import pytest
from netns_spots import Spot, echo

from farflung.core.codec import describe
from farflung.core.crypto import local_key
from farflung.local.netlab import EmulatedHome, NatType, NetworkLab, why_not
from farflung.net.counters import ByteCounter
from farflung.net.endpoint_records import EndpointAddress
from farflung.net.io.endpoint import Endpoint
from farflung.net.io.rate_limiter import LinePacer
from farflung.net.io.relay import RelayServer
from farflung.net.io.relay_selection import RelaySelector
from farflung.net.io.socket_options import DEAD_SECONDS
from farflung.net.io.tcp_listener import ListenConfig
from farflung.net.relay_selection import SWAP, RelayMeasuredEvent

pytestmark = [pytest.mark.netns, pytest.mark.quiet, pytest.mark.timeout(120)]

OWN = EmulatedHome(up=100, down=100, rtt=20)
NEAR = EmulatedHome(up=20, down=20, rtt=4, nat=NatType.NONE)
FAR = EmulatedHome(up=100, down=100, rtt=80, nat=NatType.NONE)


def test_a_relay_far_away_on_a_fast_line_is_worth_more_than_one_near_by_on_a_slow_line() -> None:
    if why := why_not():
        pytest.skip(why)
    describe()
    with NetworkLab([OWN, NEAR, FAR]) as laboratory, ExitStack() as stack:
        places = []
        for who in ("h2", "h3"):
            spot, key = Spot(laboratory, who), local_key(11, who)
            stack.callback(spot.end)

            async def open_relay(who: str = who) -> RelayServer:
                server = RelayServer(
                    local_key(11, who), listen=ListenConfig(laboratory.address(who), allow_remote=True)
                )
                await server.start()
                return server

            server = spot.do(open_relay())
            stack.callback(lambda spot=spot, server=server: spot.do(server.close()))
            places.append(EndpointAddress(*server.address, key.public))
        here = Spot(laboratory, "h1")
        stack.callback(here.end)

        async def measure() -> list[RelayMeasuredEvent]:
            endpoint = Endpoint(local_key(11, "h1"), echo, ByteCounter(), pacer=LinePacer())
            mooring = RelaySelector(endpoint, places)
            try:
                return [await mooring._probe(place) for place in places]
            finally:
                await mooring.close()
                await endpoint.close()

        near, far = here.do(measure())
    assert near.trip < 0.04 < 0.1 <= far.trip
    assert far.goodput > SWAP * near.goodput


def test_a_line_to_a_relay_that_is_cut_is_noticed_in_seconds_though_nothing_is_said_over_it() -> None:
    if why := why_not():
        pytest.skip(why)
    describe()
    with NetworkLab([OWN, NEAR]) as laboratory, ExitStack() as stack:
        there, here = Spot(laboratory, "h2"), Spot(laboratory, "h1")
        stack.callback(there.end)
        stack.callback(here.end)
        key = local_key(11, "h2")

        async def open_relay() -> RelayServer:
            server = RelayServer(key, listen=ListenConfig(laboratory.address("h2"), allow_remote=True))
            await server.start()
            return server

        server = there.do(open_relay())
        stack.callback(lambda: there.do(server.close()))

        async def attached() -> Endpoint:
            endpoint = Endpoint(local_key(11, "h1"), echo, ByteCounter(), pacer=LinePacer())
            endpoint.attach(key.public, *server.address)
            await endpoint.attached()
            return endpoint

        endpoint = here.do(attached())
        stack.callback(lambda: here.do(endpoint.close()))
        laboratory.cut(1)
        deadline = time.monotonic() + 3 * DEAD_SECONDS
        while endpoint.is_attached(key.public) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not endpoint.is_attached(key.public)
        laboratory.restore(1)
        here.do(endpoint.attached())
