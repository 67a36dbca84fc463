"""A relay that flips, cuts, repeats, swaps, holds and invents bytes: circuits end, and nothing false is ever heard."""

import asyncio
import random

import pytest
from attack_wire import DOWN, RECORD_HEAD, UP, B, C, D, R, Scene, play

from farflung.core.crypto import digest
from farflung.core.errors import NetworkError
from farflung.net import relay_tickets, tls
from farflung.net.io.connection import Connection
from farflung.net.messages import MessageKind
from farflung.net.relay_tickets import TicketStatus

BOTH = pytest.mark.parametrize("direction", [UP, DOWN], ids=["up", "down"])
SET_UP = 6  # units of one direction until it is open
CHANGE_CIPHER_SPEC = 20  # a record for middleboxes that TLS 1.3 gives no meaning (RFC 8446, 5)


def only(direction: int, number: int, pieces):  # type: ignore[no-untyped-def]
    """A change of one unit; `pieces(unit)` is forwarded instead."""

    async def change(way: int, count: int, unit: bytes) -> list[bytes]:
        return pieces(unit) if (way, count) == (direction, number) else [unit]

    return change


def flipped(unit: bytes, at: int) -> bytes:
    at %= len(unit)
    return unit[:at] + bytes([unit[at] ^ (1 << at % 8)]) + unit[at + 1 :]


@BOTH
def test_a_flipped_bit_anywhere_in_the_set_up_ends_it(direction: int) -> None:
    """But for bytes that say nothing: the version in the head of TLS 1.3's first records (RFC 8446, 5.1)."""

    async def test(scene: Scene) -> None:
        for number in range(SET_UP):
            for at in (0, 4, RECORD_HEAD, 40, -1):
                scene.relay.change = only(direction, number, lambda unit, at=at: [flipped(unit, at)])
                assert (await scene.outcome()).startswith("FF-NET-0"), (number, at)

    play(test)


@BOTH
def test_a_set_up_that_is_cut_at_any_place_leaves_nothing_behind(direction: int) -> None:
    async def test(scene: Scene) -> None:
        await scene.outcome(handshake_seconds=10.0)
        sizes = [len(unit) for unit in scene.relay.units[direction][:SET_UP]]
        for number, size in enumerate(sizes):
            for at in {0, 1, RECORD_HEAD - 1, RECORD_HEAD, size // 2, size - 1}:
                scene.relay.change = only(direction, number, lambda unit, at=at: [unit[:at], b""][not at :])
                assert await scene.outcome() != "answered", (number, at)

    play(test)


@pytest.mark.slow
@BOTH
@pytest.mark.parametrize("what", ["twice", "never", "late"])
def test_a_record_that_is_repeated_or_left_out_or_late_ends_the_circuit(direction: int, what: str) -> None:
    async def test(scene: Scene) -> None:
        assert await scene.outcome(handshake_seconds=10.0) == "answered"
        kinds = [unit[0] for unit in scene.relay.units[direction]]
        for number in range(SET_UP):
            held: list[bytes] = []

            async def change(way: int, count: int, unit: bytes) -> list[bytes]:
                if way != direction or count not in (number, number + 1):  # noqa: B023
                    return [unit]
                if what == "twice":
                    return [unit, unit] if count == number else [unit]  # noqa: B023
                if count == number:  # noqa: B023
                    held.append(unit)  # noqa: B023
                    return []
                return [unit, *held] if what == "late" else [unit]  # noqa: B023

            scene.relay.change = change
            is_idle = CHANGE_CIPHER_SPEC in (kinds[number], kinds[number + 1] if what == "late" else 0)
            assert await scene.outcome() != "answered" or is_idle, number

    play(test)


async def ask_twice(connection: Connection) -> None:
    """What comes back of the first question may be the last that is whole."""
    for said in (b"asked 0", b"asked 1"):
        assert await connection.call("a", said, timeout=60) == said


def quiet(direction: int, damage):  # type: ignore[no-untyped-def]
    """A change that begins when `begin` is set, of everything that goes this way then."""
    begin = asyncio.Event()
    before: list[bytes] = []

    async def change(way: int, count: int, unit: bytes) -> list[bytes]:
        if way != direction:
            return [unit]
        before.append(unit)
        return damage(unit, before) if begin.is_set() else [unit]

    return begin, change


@BOTH
@pytest.mark.parametrize(
    "damage",
    [
        lambda unit, before: [flipped(unit, 2)],
        lambda unit, before: [flipped(unit, RECORD_HEAD)],
        lambda unit, before: [flipped(unit, -1)],
        lambda unit, before: [unit[:-1], b""],
        lambda unit, before: [unit, unit],
        lambda unit, before: [before[-2]],
        lambda unit, before: [unit[: RECORD_HEAD + 3] + bytes(len(unit) - RECORD_HEAD - 3)],
        lambda unit, before: [b"\x17\x03\x03\xff\xff" + bytes(70_000)],
        lambda unit, before: [b"\x15\x03\x03\x00\x02\x02\x28"],
        lambda unit, before: [random.Random(1).randbytes(500)],
    ],
    ids=["head", "first", "tag", "cut", "twice", "replay", "zeros", "giant", "alert", "noise"],
)
def test_a_changed_record_ends_an_open_connection_and_is_never_heard(direction: int, damage) -> None:  # type: ignore[no-untyped-def]
    async def test(scene: Scene) -> None:
        begin, scene.relay.change = quiet(direction, damage)
        caller = scene.caller()
        connection = await caller.dial(B.public, *scene.place, relay=R.public)
        assert await connection.call("a", b"before") == b"before"
        begin.set()
        with pytest.raises(NetworkError):
            await ask_twice(connection)
        assert set(scene.heard) <= {b"before", b"asked 0", b"asked 1"}
        assert len(scene.heard) == len(set(scene.heard))
        await caller.close()

    play(test)


@BOTH
def test_a_circuit_that_is_held_stops_no_other(direction: int) -> None:
    async def test(scene: Scene) -> None:
        stopped, released = asyncio.Event(), asyncio.Event()

        async def change(way: int, count: int, unit: bytes) -> list[bytes]:
            if stopped.is_set() and way == direction and asyncio.current_task() in held:
                await released.wait()
            return [unit]

        held: set[object] = set()

        async def note(way: int, count: int, unit: bytes) -> list[bytes]:
            held.add(asyncio.current_task())
            return [unit]

        scene.relay.change = note
        one = await scene.caller().dial(B.public, *scene.place, relay=R.public)
        assert await one.call("a", b"1") == b"1"
        scene.relay.change = change
        other = await scene.caller(C).dial(B.public, *scene.place, relay=R.public)
        stopped.set()
        calls = [asyncio.create_task(one.call("a", bytes(300_000), kind=MessageKind.SYNC, timeout=0.5))]
        for number in range(20):
            assert await other.call("a", b"%d" % number, timeout=30) == b"%d" % number
        with pytest.raises(NetworkError, match="FF-NET-047"):
            await calls[0]
        assert all(circuit.held <= 2 * 65536 for circuit in scene.server._circuits.circuits)
        released.set()
        assert await one.call("a", b"2", timeout=30) == b"2"  # it was only late

    play(test)


def test_two_dialers_whose_circuits_are_crossed_find_out_both() -> None:
    async def test(scene: Scene) -> None:
        await scene.attached(D, scene.server.address)
        scene.relay.crossed = []
        dials = (scene.outcome(), scene.outcome(key=C, peer=D))
        assert await asyncio.gather(*dials) == ["FF-NET-004", "FF-NET-004"]
        scene.relay.crossed = None

    play(test)


@pytest.mark.parametrize(
    ("said", "code"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\n" + bytes(100), "FF-NET-003"),
        (b"\x16\x03\x03\xff\xff" + bytes(70_000), "FF-NET-003"),
        (b"\x16\x03\x03\x00\x04\x02\xff\xff\xff" + bytes(100), "FF-NET-003"),  # a ServerHello of 16 MiB
        (b"\x15\x03\x03\x00\x02\x02\x28", "FF-NET-003"),
        (tls.MAGIC + b"\xff\xff", "FF-NET-003"),
        (relay_tickets.answer(TicketStatus.JOINED), "FF-NET-003"),
        (b"\x16\x03\x03\x00\x00" * 10_000, "FF-NET-003"),  # empty records
        (b"", "FF-NET-044"),
    ],
    ids=["http", "giant", "hello", "alert", "ours", "joined", "empty", "silence"],
)
def test_garbage_behind_joined_ends_the_dial(said: bytes, code: str) -> None:
    async def test(scene: Scene) -> None:
        async def change(way: int, count: int, unit: bytes) -> list[bytes]:
            return [] if way == UP or count else [said] if said else []

        scene.relay.answer = lambda data: data + said
        scene.relay.change = change
        assert await scene.outcome() == code
        scene.relay.answer = lambda data: data

    play(test)


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (b"FFR1\xfe", "FF-NET-074"),
        (b"FFR2\x00", "FF-NET-074"),
        (b"FFN1\x00", "FF-NET-074"),
        (bytes([22, 3, 3, 0, 0]), "FF-NET-074"),
        (b"FFR1", "FF-NET-074"),  # the peer's own first byte is taken for the status
        (relay_tickets.answer(TicketStatus.SILENT), "FF-NET-073"),
    ],
)
def test_an_answer_that_is_none_ends_the_dial(answer: bytes, code: str) -> None:
    """Also one of another version: there is nothing to be talked down to."""

    async def test(scene: Scene) -> None:
        scene.relay.answer = lambda data: answer
        assert await scene.outcome() == code
        scene.relay.answer = lambda data: data

    play(test)


def test_what_the_relay_forwards_holds_nothing_of_what_is_said() -> None:
    """Requests, methods, a tensor, its answer and a key that is handed over: looked for in runs of 16 bytes."""

    async def test(scene: Scene) -> None:
        tensor = random.Random(1).randbytes(200_000)
        key = digest("test/job key/1", b"1")
        told = b"the plain words of a request, and " + key
        caller = scene.caller()
        connection = await caller.dial(B.public, *scene.place, relay=R.public)
        assert await connection.call("secret.method", told) == told
        assert await connection.call("secret.method", tensor, kind=MessageKind.SYNC) == tensor
        await caller.close()
        heard = [bytes(copy) for copy in scene.relay.heard]
        assert sum(map(len, heard)) > 2 * len(tensor)
        runs = {text[at : at + 16] for text in (told, tensor, key) for at in range(0, len(text) - 15, 16)}
        found = [copy[at : at + 16] for copy in heard for at in range(len(copy) - 15)]
        assert runs.isdisjoint(found)
        assert not any(b"secret.method" in copy for copy in heard)
        assert any(tls.hello(b"")[:4] in copy for copy in heard)  # the search finds what is in clear

    play(test)


def test_an_older_tls_is_not_agreed_on_because_the_relay_wants_it() -> None:
    """It takes TLS 1.3 out of what the dialer offers; the acceptor speaks nothing else."""

    async def test(scene: Scene) -> None:
        scene.relay.change = only(UP, 1, lambda unit: [unit.replace(b"\x03\x04", b"\x03\x03")])
        assert await scene.outcome() != "answered"
        assert b"\x03\x04" in scene.relay.units[UP][1]
        scene.relay.change = only(DOWN, 0, lambda unit: [unit.replace(b"\x03\x04", b"\x03\x03")])
        assert await scene.outcome() == "FF-NET-003"

    play(test)
