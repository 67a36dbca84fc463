"""What connections get from the kernel, read back from real sockets, and how one line's rate is divided."""

from __future__ import annotations

import asyncio
import errno
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from net_relays import A, B, echo, pair, run

from farflung.core import limits
from farflung.net.counters import ByteCounter, ConnectionMeter
from farflung.net.io import rate_limiter, socket_options
from farflung.net.io.connection_writer import ConnectionWriter
from farflung.net.io.endpoint import Endpoint
from farflung.net.io.pacer import UploadPacer
from farflung.net.io.relay_circuits import RelayLimits
from farflung.net.io.relay_splice import RelayCircuit
from farflung.net.io.socket_options import SocketReading
from farflung.net.max_min_fair import divide, kept_rate, wanted
from farflung.net.write_size import MOST_HELD, MOST_WRITTEN

UNPACED = (1 << 32) - 1
linux = pytest.mark.skipif(sys.platform != "linux", reason="these socket options are Linux's")


@contextmanager
def linked(host: str = "127.0.0.1", to: str = "") -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a TCP connection to `to`, where `host` is listened on."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server(
        (host, 0), family=family, dualstack_ipv6=family == socket.AF_INET6 and ":" not in to
    ) as at:
        with socket.create_connection((to or host, at.getsockname()[1])) as one, at.accept()[0] as other:
            yield one, other


def own_choice() -> str:
    with socket.socket() as fresh:
        return socket_options.congestion(fresh)


def paced(sock: socket.socket) -> int:
    return sock.getsockopt(socket.SOL_SOCKET, 47) & UNPACED


def test_every_connection_sends_at_once_and_leaves_little_in_the_kernel() -> None:
    async def test() -> None:
        async with pair() as (server, a, b, _):
            (circuit,) = server._circuits.circuits
            sockets = [*circuit.sockets]
            for endpoint in (a, b, server._endpoint):
                assert endpoint._connections
                sockets += [one._writer._transport.get_extra_info("socket") for one in endpoint._connections]
            for each in sockets:
                assert each.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
                if sys.platform == "linux":
                    held = each.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT)
                    assert held == 256 * limits.KIB

    run(test)


@linux
def test_connections_within_one_machine_keep_the_systems_choice_and_are_not_paced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.socket() as fresh:
        other = "reno" if own_choice() != "reno" else "cubic"
        if socket_options.ask(fresh, other):
            pytest.skip(f"{other} is not to be had here")
    monkeypatch.setattr(socket_options, "WANTED", other)  # so that asking for it would show

    async def test() -> None:
        async with pair(limits=RelayLimits(uplink=10**6)) as (server, a, b, connection):
            (circuit,) = server._circuits.circuits
            facts = [connection.tuned, *circuit.tuned]
            facts += [one.tuned for end in (a, b, server._endpoint) for one in end._connections]
            assert facts == [socket_options.SocketTuning(own_choice(), True)] * len(facts)
            assert [paced(leg) for leg in circuit.sockets] == [UNPACED] * 2

    run(test)


def test_a_dialled_and_an_accepted_connection_know_what_they_got() -> None:
    async def test() -> None:
        a, b = Endpoint(A, echo, ByteCounter()), Endpoint(B, echo, ByteCounter())
        connection = await a.dial(B.public, *await b.start())
        await connection.call("a", b"1")
        (accepted,) = b._connections
        assert connection.tuned == accepted.tuned == socket_options.SocketTuning(own_choice(), True)
        await a.close()
        await b.close()

    run(test)


@pytest.mark.parametrize(
    ("host", "to"), [("127.0.0.1", ""), ("127.0.0.1", "localhost"), ("::1", ""), ("::", "127.0.0.2"), ("127.0.0.2", "")]
)
def test_loopback_is_known_by_either_end(host: str, to: str) -> None:
    try:
        with linked(host, to) as ends:
            assert all(map(socket_options.is_local, ends))
    except OSError as error:
        pytest.skip(f"no such address here: {error}")


def test_an_address_of_this_machine_is_local_too() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as guess:
        try:
            guess.connect(("192.0.2.1", 9))  # sends nothing: it only looks for a route
        except OSError as error:
            pytest.skip(f"there is no other address than loopback: {error}")
        mine = guess.getsockname()[0]
        assert not socket_options.is_local(guess)
    with linked(mine) as ends:
        assert all(map(socket_options.is_local, ends))


def test_what_has_no_other_end_is_local_and_a_closed_socket_raises_nothing() -> None:
    one, other = socket.socketpair()
    with one, other, socket.socket() as alone:
        assert all(map(socket_options.is_local, (one, other, alone)))
        socket_options.tune(one)
    socket_options.tune(alone)
    socket_options.pace(alone, 1)


@linux
def test_an_unknown_congestion_control_is_refused_and_the_systems_choice_is_kept() -> None:
    with linked() as (one, _):
        assert socket_options.ask(one, "nonesuch") == errno.ENOENT
        assert socket_options.congestion(one) == own_choice()
        one.sendall(b"x")


@linux
def test_a_congestion_control_that_is_given_is_read_back() -> None:
    with linked() as (one, _):
        assert socket_options.ask(one, "reno") == 0
        assert socket_options.congestion(one) == "reno"


def test_a_system_without_these_options_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, nothing in (("_CONGESTION", None), ("_NOTSENT_LOWAT", None), ("CAN_PACE", False)):
        monkeypatch.setattr(socket_options, name, nothing)
    with linked() as (one, _):
        assert socket_options.tune(one) == socket_options.SocketTuning("", True)
        assert socket_options.ask(one, "bbr") == 0
        socket_options.pace(one, 1000)
        if sys.platform == "linux":
            assert paced(one) == UNPACED


# One line for several


@linux
@pytest.mark.parametrize(("asked", "set_to"), [(1, 1), (2_375_000, 2_375_000), (0, 1), (1 << 40, (1 << 31) - 1)])
def test_a_pace_is_set_and_never_means_without_bound(asked: int, set_to: int) -> None:
    with linked() as (one, _):
        assert paced(one) == UNPACED
        socket_options.pace(one, asked)
        assert paced(one) == set_to


def test_95_percent_of_a_line_is_used() -> None:
    assert kept_rate(20) == 2_375_000
    assert kept_rate(0.1) == 11_875


@linux
def test_a_line_is_divided_anew_whenever_one_comes_sends_or_goes() -> None:
    rate = 24_000_000
    uplink = UploadPacer(rate)
    with linked() as (a, b), linked() as (c, _):
        uplink.open(a)
        assert paced(a) == rate
        uplink.open(b)
        uplink.open(c)
        assert [paced(each) for each in (a, b, c)] == [rate // 3] * 3
        uplink.sent(a, rate // 6)  # in half a second: all of its share
        uplink.look(0.5)
        quiet = rate // (8 * 3)
        assert [paced(each) for each in (a, b, c)] == [rate - 2 * quiet, quiet, quiet]
        uplink.sent(a, rate)
        uplink.sent(b, quiet)  # all of its small share: it is one of two from now on
        uplink.look(0.5)
        half = (rate - quiet) // 2
        assert paced(a) == pytest.approx(half, abs=1)
        assert paced(b) == pytest.approx(half, abs=1)
        uplink.close(a)
        assert paced(b) + paced(c) == rate
        uplink.close(a)  # a second time: nothing
        uplink.sent(a, 5)
        uplink.close(b)
        assert paced(c) == rate


@linux
def test_who_sends_little_for_a_moment_keeps_its_share_and_who_goes_on_so_does_not() -> None:
    """BBR does so for 0.2 s and a round trip every ten seconds."""
    rate = 24_000_000
    pacer = UploadPacer(rate, looks=2)
    with linked() as (a, b):
        for each in (a, b):
            pacer.open(each)
        for said in (rate // 4, rate // 100):
            pacer.sent(a, said)
            pacer.sent(b, rate // 4)
            pacer.look(0.5)
            assert [paced(each) for each in (a, b)] == [rate // 2] * 2
        pacer.sent(a, rate // 100)
        pacer.sent(b, rate // 4)
        pacer.look(0.5)
        assert paced(b) > rate * 3 // 4


@linux
@pytest.mark.parametrize("says", [True, False])
def test_what_waits_in_the_kernel_is_not_taken_for_sent_where_the_kernel_says_what_was(
    says: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading = SocketReading(0, 0, 0.0, 0.1, 0.1, True, 0.0, False)
    monkeypatch.setattr(rate_limiter, "is_near", lambda _sock: False)
    monkeypatch.setattr(rate_limiter, "read", lambda _sock: reading if says else None)

    async def test() -> None:
        nonlocal reading
        with linked() as (one, _):
            mine = rate_limiter.LinePacer()
            mine.open(one, _Idle(one), lambda: None)
            mine.sent(one, 1_000_000)
            sender = mine._pacer._senders[one]
            assert sender.sent == (0 if says else 1_000_000)
            reading = replace(reading, delivered=30_000, again=5_000)
            mine._look()
            assert sender.sent == (35_000 if says else 1_000_000)
            assert mine._timer is not None
            mine._timer.cancel()

    run(test)


@linux
def test_who_has_nothing_waiting_is_not_paced_to_little_and_what_it_sends_is_taken_off_the_others() -> None:
    rate = 24_000_000
    uplink = UploadPacer(rate)
    with linked() as (a, b), linked() as (c, _):
        for each in (a, b, c):
            uplink.open(each)
        uplink.quiet(b, True)
        uplink.quiet(c, True)
        assert [paced(each) for each in (a, b, c)] == [rate] * 3
        uplink.sent(b, 500_000)
        uplink.look(0.5)
        assert [paced(each) for each in (a, b, c)] == [rate - 1_000_000, rate, rate]
        uplink.quiet(b, False)  # something waits: from this moment it is one of two
        assert paced(a) + paced(b) == rate
        assert paced(b) >= rate // 2
        uplink.close(b)
        uplink.quiet(b, True)  # it is gone: nothing
        assert [paced(each) for each in (a, c)] == [rate, rate]


@linux
def test_what_some_do_not_use_is_shared_out_twice() -> None:
    rate = 24_000_000
    uplink = UploadPacer(rate)
    with linked() as (a, b):
        uplink.open(a)
        uplink.open(b)
        uplink.limit(rate, 1.25)
        assert [paced(each) for each in (a, b)] == [rate * 5 // 8] * 2
        uplink.limit(rate // 2, 1.25)
        assert [paced(each) for each in (a, b)] == [rate * 5 // 16] * 2
        uplink.limit(rate // 2)
        assert [paced(each) for each in (a, b)] == [rate // 4] * 2


@linux
def test_a_leg_that_ends_gives_its_share_back() -> None:
    async def test() -> None:
        async with pair(limits=RelayLimits(uplink=10**6)) as (server, _, _, connection):
            (circuit,) = server._circuits.circuits
            assert server._uplink is not None
            assert server._uplink._senders == {}  # of this machine
            for leg in circuit.sockets:
                server._uplink.open(leg)
            assert [paced(leg) for leg in circuit.sockets] == [10**6 // 2] * 2
            await connection.call("a", bytes(1000))
            assert all(sender.sent for sender in server._uplink._senders.values())
            circuit.close()
            assert server._uplink._senders == {}

    run(test)


def test_a_circuit_says_which_socket_took_the_bytes() -> None:
    async def test() -> None:
        one, its = socket.socketpair()
        other, theirs = socket.socketpair()
        for each in (one, its, other, theirs):
            each.setblocking(False)
        took: list[tuple[socket.socket, int]] = []
        circuit = RelayCircuit(
            its, theirs, may_splice=True, on_moved=lambda _, *what: took.append(what), on_end=lambda _: None
        )
        circuit.start()
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(one, b"abc")
        assert await loop.sock_recv(other, 9) == b"abc"
        assert (took, circuit.sockets) == ([(theirs, 3)], (its, theirs))
        circuit.close()
        one.close()
        other.close()

    run(test)


rates = st.integers(1, 1 << 31)


@given(rates, st.lists(st.integers(0, 1 << 33), max_size=40))
def test_shares_never_exceed_the_line_and_leave_nothing_of_it(rate: int, wants: list[int]) -> None:
    shares = divide(rate, wants)
    assert len(shares) == len(wants)
    assert sum(shares) <= rate
    assert not wants or rate - sum(shares) < len(wants)
    assert min(shares, default=0) >= 0


@given(rates, st.lists(st.integers(0, 1 << 33), min_size=1, max_size=40))
def test_nobody_has_more_while_another_has_less_than_it_wants(rate: int, wants: list[int]) -> None:
    shares = divide(rate, wants)
    for want, share in zip(wants, shares, strict=True):
        assert share >= min(want, rate // len(wants))
        if share < want:  # then no other has more than this one, but for the rest of a division
            assert max(shares) <= share + 1


@given(rates, st.lists(st.integers(0, 1 << 33), min_size=1, max_size=8), st.randoms())
def test_the_order_does_not_matter_but_for_the_rest_of_a_division(rate, wants, random) -> None:  # type: ignore[no-untyped-def]
    places = list(range(len(wants)))
    random.shuffle(places)
    shares, moved = divide(rate, wants), divide(rate, [wants[place] for place in places])
    assert all(abs(moved[at] - shares[place]) <= 1 for at, place in enumerate(places))


@given(rates, st.integers(1, 1000), st.integers(0, 1 << 31), st.integers(0, 1 << 31))
def test_who_uses_its_share_may_have_all_and_who_does_not_keeps_room(
    rate: int, count: int, used: int, share: int
) -> None:
    want = wanted(used, share, rate, count)
    if used >= share:
        assert want == rate
    elif 4 * used < 3 * share:
        assert 3 * want >= 4 * used
        assert want >= rate // (8 * count)


def test_what_a_slow_connection_leaves_the_others_get_but_for_a_third_of_what_it_uses() -> None:
    rate, share = 100_000, 25_000
    wants = [wanted(used, share, rate, 4) for used in (12_000, share, share, share)]
    assert divide(rate, wants) == [16_000, 28_000, 28_000, 28_000]


def test_many_quiet_ones_leave_seven_eighths_to_who_sends() -> None:
    rate, count = 2_375_000, 1024
    wants = [wanted(0, rate // count, rate, count)] * (count - 1) + [rate]
    assert divide(rate, wants)[-1] >= rate * 7 // 8


class _Idle(asyncio.Transport):
    """Over a real socket, and nothing is written."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__({"socket": sock})

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0


@linux
@pytest.mark.parametrize("is_far", [False, True])
def test_a_fast_line_may_hold_more_unsent_unless_it_leads_to_another_home(
    is_far: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rate_limiter, "is_near", lambda _sock: not is_far)

    async def test() -> None:
        with linked() as (one, _):
            outlet = ConnectionWriter(
                _Idle(one), ConnectionMeter(ByteCounter()), rate_limiter.LinePacer(), lambda: None, lambda: None
            )
            before = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT)
            outlet._sizer.held, outlet._sizer.written = MOST_HELD, MOST_WRITTEN
            assert outlet.piece == (before // 2 if is_far else MOST_WRITTEN)
            outlet.filled()
            assert outlet.piece == 0
            held = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT)
            assert held == (before if is_far else MOST_HELD)

    run(test)


def test_the_kernel_is_told_to_watch_a_line_or_says_that_it_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as sock:
        if not socket_options.keep_alive(sock):
            pytest.skip("not Linux")
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        quiet, pause, times, unheard = (
            sock.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in socket_options._ALIVE
        )
    assert quiet + pause * times == unheard / 1000 == socket_options.DEAD_SECONDS
    monkeypatch.delattr(socket, "TCP_USER_TIMEOUT")
    with socket.socket() as sock:
        assert not socket_options.keep_alive(sock)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 0
