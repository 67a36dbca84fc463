"""Whichever way payloads go, and whatever a relay does to them on it: the same payloads are merged."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from attack_run import Run
from attack_world import BOUND, LAYOUT, MEMBERS, REQUESTER, SPEC, TERMS

from farflung.core import limits
from farflung.core.crypto import local_key
from farflung.core.events import RoundEndEvent, WarningEvent
from farflung.core.ids import Hash, PeerId
from farflung.core.units import Seconds
from farflung.net.endpoint_records import EndpointAddress
from farflung.net.io import multicast_dial, multicast_relay
from farflung.net.io.multicast_member import GroupRendezvous
from farflung.net.io.relay import RelayServer
from farflung.net.messages import MessageKind
from farflung.net.multicast_frames import HEAD_BYTES
from farflung.peers.protocol import messages
from farflung.peers.requester.job_context import JobContext
from farflung.peers.requester.payload_exchange import NetworkAssumptions, PayloadExchange
from farflung.peers.transfer import fanout as transfer_fanout
from farflung.peers.transfer import objects
from farflung.plan.exchange_choice import ExchangeWay
from farflung.plan.link_syntax import Link

RELAY = local_key(18, "relay")
SLOW = Link(1e5, 1e6, Seconds(0.01))  # the plan's word for it; loopback is as fast as it is
FAST = Link(1e10, 1e10, Seconds(0.0001))


class Told(Run):
    """A run of honest members; where there is a group, nobody ends round 0 before it has met."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        for member in self.members:
            train = member.lease.train

            async def waiting(order: messages.TrainRequest, train=train) -> messages.TrainReply:  # type: ignore[no-untyped-def]
                for _ in range(500 if self.must_meet else 0):
                    if all(one.lease.fanning.epoch for one in self.members):
                        break
                    await asyncio.sleep(0.01)
                await asyncio.sleep(0.1 if self.must_meet else 0.0)
                return await train(order)

            member.lease.train = waiting  # type: ignore[method-assign]
        self.must_meet = False

    @property
    def closed(self) -> list[RoundEndEvent]:
        return [event for event in self.events if isinstance(event, RoundEndEvent)]

    @property
    def root(self) -> Hash:
        return self.members[0].worker.state.root(LAYOUT)


def run_of(folder: Path, assumptions: NetworkAssumptions, *, must_meet: bool = False) -> Told:
    folder.mkdir()
    run = Told(folder)
    run.assumptions, run.must_meet = assumptions, must_meet

    async def bounded() -> None:
        async with asyncio.timeout(60):
            await run.go()

    asyncio.run(bounded())
    assert not run.left
    assert [event.peers for event in run.closed] == [len(MEMBERS)] * SPEC.rounds
    return run


@asynccontextmanager
async def relayed(*before: EndpointAddress) -> AsyncIterator[NetworkAssumptions]:
    """What is known where there is a relay, and others `before` it."""
    server = RelayServer(RELAY)
    host, port = await server.start()
    try:
        yield NetworkAssumptions(SLOW, SLOW, FAST, (*before, EndpointAddress(host, port, RELAY.public)), True)
    finally:
        await server.close()


def fanned(folder: Path, *before: EndpointAddress) -> Told:
    """A run whose payloads go through a relay that is in the same process; those `before` it are gone."""
    folder.mkdir()
    run = Told(folder)
    run.must_meet = True

    async def bounded() -> None:
        async with asyncio.timeout(60), relayed(*before) as assumptions:
            run.assumptions = assumptions
            await run.go()

    asyncio.run(bounded())
    assert not run.left
    assert [event.peers for event in run.closed] == [len(MEMBERS)] * SPEC.rounds
    assert {event.way for event in run.closed} == {"fan-out"}
    return run


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Told:
    return run_of(tmp_path_factory.mktemp("plain") / "run", NetworkAssumptions(SLOW, SLOW))


def sent_by_group(run: Told) -> list[int]:
    return [member.lease.fanning._fan._counter.sent[MessageKind.SYNC] for member in run.members]


def carried(run: Told) -> int:
    """Requests for payloads over ordinary connections, everywhere: what audits fetch is longer."""
    parties = [run.home, *run.members]
    return sum(party.asked.count(objects.PUT) for party in parties)


@pytest.mark.slow
def test_by_fan_out_each_member_sends_its_payload_once_and_the_result_is_the_same(plain: Told, tmp_path: Path) -> None:
    assert plain.closed[0].way == "all-gather"
    assert "fan-out" not in {event.way for event in plain.closed}
    run = fanned(tmp_path / "run")
    assert run.root == plain.root
    assert carried(run) == 0
    assert carried(plain) > 0
    for sent in sent_by_group(run):
        assert SPEC.rounds * BOUND * 0.5 < sent < SPEC.rounds * (BOUND + 4000)
    assert all(event.way_predicted > 0 and event.way_taken > 0 for event in run.closed)
    assert all(0 < event.payload_bytes <= BOUND for event in run.closed)
    assert not any(member.lease.fanning.refusals for member in run.members)


def test_through_an_aggregating_peer_the_result_is_the_same(plain: Told, tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", NetworkAssumptions(SLOW, FAST))
    assert {event.way for event in run.closed} == {"aggregating peer"}
    assert run.root == plain.root
    assert not any(member.asked.count(objects.PUT) for member in run.members)
    assert run.home.asked.count(objects.PUT) > 0


Attack = Callable[[bytearray], list[bytearray]]


def _flip(frame: bytearray) -> list[bytearray]:
    frame[HEAD_BYTES + 3] ^= 1
    return [frame]


@pytest.mark.whole
@pytest.mark.parametrize("attack", [_flip, lambda frame: []], ids=["flips", "drops"])
def test_a_relay_that_spoils_everything_spoils_no_result(
    plain: Told, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attack: Attack
) -> None:
    spread = multicast_relay._RelayedGroup._spread

    def lie(self: multicast_relay._RelayedGroup, connection: multicast_relay.GroupConnection, frame: bytearray) -> None:
        for each in attack(frame):
            spread(self, connection, each)

    monkeypatch.setattr(transfer_fanout, "QUIET_SECONDS", 0.2)
    monkeypatch.setattr(multicast_relay._RelayedGroup, "_spread", lie)
    run = fanned_somehow(tmp_path / "run")
    assert run.root == plain.root
    if run.fanning.refusals:  # then that way is left
        assert run.closed[-1].way != "fan-out"
        assert [event.code for event in run.events if isinstance(event, WarningEvent)] == ["FF-NET-133"]


def fanned_somehow(folder: Path) -> Told:
    """As `fanned`, but members may have lost the group on the way."""
    folder.mkdir()
    run = Told(folder)
    run.must_meet = True

    async def bounded() -> None:
        async with asyncio.timeout(90), relayed() as assumptions:
            run.assumptions = assumptions
            await run.go()

    asyncio.run(bounded())
    assert not run.left
    assert run.closed[0].way == "fan-out"
    return run


def test_without_its_relay_a_run_warns_once_and_goes_on(plain: Told, tmp_path: Path) -> None:
    nobody = EndpointAddress("127.0.0.1", 1, RELAY.public)
    run = run_of(tmp_path / "run", NetworkAssumptions(SLOW, SLOW, FAST, (nobody,), True))
    assert "fan-out" not in {event.way for event in run.closed}
    assert run.root == plain.root
    assert [event.code for event in run.events if isinstance(event, WarningEvent)] == ["FF-NET-131"]


def test_a_group_whose_relay_is_gone_meets_at_the_next_one(plain: Told, tmp_path: Path) -> None:
    run = fanned(tmp_path / "run", EndpointAddress("127.0.0.1", 1, PeerId(bytes(31) + b"x")))
    assert run.root == plain.root
    assert not [event for event in run.events if isinstance(event, WarningEvent)]


def job_told_to(journal: Any) -> JobContext:
    """A job of which nothing is kept."""
    nothing: Any = None
    return JobContext(REQUESTER, nothing, TERMS, nothing, nothing, nothing, journal)


class Deaf:
    """A place in a group at a relay that is gone."""

    epoch = refusals = 0

    def __init__(self) -> None:
        self.met = list[GroupRendezvous]()

    async def enter(self, meeting: GroupRendezvous) -> None:
        self.met.append(meeting)
        raise multicast_dial.refused(meeting.relay, "it is gone")


def test_a_group_has_another_key_whenever_somebody_comes_or_leaves() -> None:
    deaf, nobody = Deaf(), cast(Any, SimpleNamespace(emit=lambda _: None))
    assumptions = NetworkAssumptions(places=(EndpointAddress("127.0.0.1", 1, RELAY.public),))
    exchange = PayloadExchange(REQUESTER, job_told_to(nobody), cast(Any, deaf), {}, assumptions)
    keys = tuple(sorted(member.public for member in MEMBERS))

    async def test() -> None:
        for members in (keys[:2], keys, keys[1:], keys[:2]):
            exchange.prepare(members, nobody)
            await asyncio.sleep(0)
            assert deaf.met[-1].roster.roster.members == tuple(sorted((*members, REQUESTER.public)))
        exchange.close()

    asyncio.run(test())
    assert len({meeting.key for meeting in deaf.met}) == len(deaf.met) == 4
    epochs = [meeting.roster.roster.epoch for meeting in deaf.met]
    assert epochs == sorted(set(epochs))


def lose_the_group(run: Told, *, meets_again: bool) -> list[tuple[int, int]]:
    """The relay hangs for one member in round 0: it leaves, alone. Rounds, and its group's epoch before each merge."""
    run.must_meet = True
    member, found = run.members[0], list[tuple[int, int]]()
    merge = member.lease.merge

    async def losing(order: messages.MergeRequest) -> messages.MergeReply:
        fan = member.lease.fanning._fan
        found.append((order.round, fan.epoch))
        if order.round == 0:
            run.must_meet = meets_again
            fan._leave(fan._socket)
            for _ in range(500):
                if not fan.epoch:
                    break
                await asyncio.sleep(0.01)
        return await merge(order)

    member.lease.merge = losing  # type: ignore[method-assign]
    return found


@pytest.mark.slow
def test_a_group_whose_relay_hangs_for_one_member_meets_at_the_next_one(plain: Told, tmp_path: Path) -> None:
    async def bounded() -> Told:
        (tmp_path / "run").mkdir()
        run = Told(tmp_path / "run")
        epochs = lose_the_group(run, meets_again=True)
        first = RelayServer(local_key(18, "first"))
        place = EndpointAddress(*await first.start(), local_key(18, "first").public)
        try:
            async with asyncio.timeout(60), relayed(place) as assumptions:
                run.assumptions = assumptions
                await run.go()
        finally:
            await first.close()
        assert [round for round, _ in epochs] == [0, 1, 2]
        assert 0 < epochs[0][1] < epochs[1][1] == epochs[2][1]
        return run

    run = asyncio.run(bounded())
    assert run.root == plain.root
    assert [event.way for event in run.closed] == ["fan-out"] * SPEC.rounds
    assert not [event for event in run.events if isinstance(event, WarningEvent)]


def test_where_no_relay_has_the_whole_group_all_is_fetched_and_the_run_is_told_once(
    plain: Told, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    run = Told(folder)
    epochs = lose_the_group(run, meets_again=False)

    async def bounded() -> None:
        async with asyncio.timeout(60), relayed() as assumptions:
            run.assumptions = assumptions
            await run.go()

    asyncio.run(bounded())
    assert run.root == plain.root
    assert epochs[0][1]
    assert [epoch for _, epoch in epochs[1:]] == [0, 0]
    assert run.closed[0].way == "fan-out"
    # Which of the two that are left is a matter of what lines did so far: on a busy machine they are slow.
    assert {event.way for event in run.closed[1:]} <= {"all-gather", "aggregating peer"}
    assert [event.code for event in run.events if isinstance(event, WarningEvent)] == ["FF-NET-130"]


def test_a_member_that_joins_nowhere_leads_the_group_around_once(
    plain: Told, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = PayloadExchange._new_rendezvous
    met = list[PeerId]()

    def counted(self: PayloadExchange, place: EndpointAddress, members: frozenset[PeerId]) -> GroupRendezvous:
        met.append(place.relay)
        return made(self, place, members)

    async def nowhere(said: messages.GroupJoinRequest, lease_key: object) -> None:
        raise multicast_dial.refused(said.place.relay, "it hung")

    monkeypatch.setattr(PayloadExchange, "_new_rendezvous", counted)

    async def bounded() -> Told:
        (tmp_path / "run").mkdir()
        run = Told(tmp_path / "run")
        monkeypatch.setattr(run.members[0].lease.fanning, "follow", nowhere)
        async with asyncio.timeout(60), relayed() as assumptions:
            # The same relay named twice: it takes everybody else.
            run.assumptions = assumptions._replace(places=(*assumptions.places, *assumptions.places))
            await run.go()
        return run

    run = asyncio.run(bounded())
    assert run.root == plain.root
    assert "fan-out" not in {event.way for event in run.closed}
    assert met == [RELAY.public] * 2
    assert [event.code for event in run.events if isinstance(event, WarningEvent)] == ["FF-NET-130"]


def test_the_way_follows_what_lines_were_seen_to_carry() -> None:
    nobody = cast(Any, None)
    assumed = NetworkAssumptions(SLOW, SLOW)
    exchange = PayloadExchange(REQUESTER, job_told_to(nobody), cast(Any, Deaf()), {}, assumed)
    keys = tuple(sorted(member.public for member in MEMBERS))
    assert exchange._choose(0, keys).forecast.way is ExchangeWay.GATHER
    for found in (exchange._ups, exchange._downs):
        exchange._weigh(found, keys[1], messages.TransferMeasurement(limits.DATA_BYTES, 1.0))
    course = exchange._choose(1, keys)
    assert (course.forecast.way, course.via) == (ExchangeWay.PEER, keys[1])


def test_what_a_member_says_of_its_line_moves_nothing_but_the_forecast(plain: Told, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    run = Told(folder)
    run.assumptions = NetworkAssumptions(SLOW, SLOW)
    run.eve.twists[messages.REVEAL] = lambda member, order, said: messages.RevealReply(
        said.share, messages.TransferMeasurement(-(1 << 40), 1e300)
    )
    run.eve.twists[messages.MERGE] = lambda member, order, said: messages.MergeReply(
        said.root, said.signature, messages.TransferMeasurement(1 << 60, 1e-300)
    )

    async def bounded() -> None:
        async with asyncio.timeout(60):
            await run.go()

    asyncio.run(bounded())
    assert run.root == plain.root
    assert all(0 <= event.way_taken < 1e6 for event in run.closed)
    assert REQUESTER.public not in {member.key.public for member in run.members}
