"""Who is out keeps owing what it had committed to: members forget it, verifiers and the requester do not."""

from __future__ import annotations

import asyncio
import contextlib
from types import SimpleNamespace
from typing import Any, cast

import pytest
from attack_world import MEMBERS, REQUESTER, TERMS, VERIFIERS, within

from farflung.core import limits
from farflung.core.backoff import Backoff
from farflung.core.codec import decode
from farflung.core.errors import FarflungError, NetworkError, PolicyError
from farflung.core.ids import ZERO_HASH, PeerId
from farflung.net.endpoint_records import EndpointAddress
from farflung.net.messages import RemoteError
from farflung.peers.protocol import messages
from farflung.peers.requester import members as module
from farflung.peers.requester.job_context import JobContext
from farflung.peers.requester.members import Membership

EVERYBODY = [key.public for key in (REQUESTER, *MEMBERS, *VERIFIERS)]
EVE = MEMBERS[2].public


class Line:
    """A connection that takes every call, and notes it."""

    def __init__(self, peer: PeerId, said: list[tuple[PeerId, str, bytes]]) -> None:
        self._peer, self._said = peer, said

    async def call(self, method: str, body: bytes, **_: Any) -> bytes:
        self._said.append((self._peer, method, body))
        return b""


def manned(monkeypatch: pytest.MonkeyPatch, said: list[tuple[PeerId, str, bytes]]) -> Membership:
    async def reach(_endpoint: Any, address: messages.PeerAddress) -> Any:
        return Line(address.peer, said)

    monkeypatch.setattr(module, "reach", reach)
    nothing = cast(Any, None)
    job = JobContext(REQUESTER, *[nothing] * 6)._replace(terms=TERMS)
    members = Membership(job, nothing, nothing)
    members.know(messages.PeerAddress(peer, (EndpointAddress("127.0.0.1", 1),)) for peer in EVERYBODY)
    members.gather([key.public for key in MEMBERS], tuple(key.public for key in VERIFIERS))
    return members


def test_audits_of_rounds_before_a_peer_was_barred_can_still_reach_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Were it forgotten everywhere, its earlier work would look withheld, or its false work go unseen."""
    said: list[tuple[PeerId, str, bytes]] = []

    async def test() -> None:
        members = manned(monkeypatch, said)
        assert members.is_member(EVE)
        members.lost(EVE, may_return=False)
        await asyncio.gather(*members._tasks)
        assert not members.is_member(EVE)  # it fetches nothing more
        await members.dial(EVE)  # and still opens what it owes
        assert EVE in {a.peer for a in members.setup.everybody}  # so verifiers that are brought back know it
        assert EVE not in {a.peer for a in members.setup.members}

    within(10, test)
    told = {
        peer: {a.peer for a in decode(body, messages.MembersUpdate, limits.CONTROL_BYTES).members}
        for peer, method, body in said
        if method == messages.MEMBERS
    }
    assert all(EVE in told[key.public] for key in VERIFIERS)
    assert all(EVE not in told[key.public] for key in MEMBERS)


@pytest.mark.parametrize(
    ("answer", "lost"),
    [("", []), ("FF-APP-041", [MEMBERS[0].public]), ("FF-APP-049", [])],
    ids=["knows", "new", "busy"],
)
def test_a_member_that_was_started_again_between_two_rounds_is_noticed(
    monkeypatch: pytest.MonkeyPatch, answer: str, lost: list[PeerId]
) -> None:
    """The next round may wait for audits that need what only this member has, under a lease that it has forgotten."""
    found: list[PeerId] = []

    class Coordinator:
        def lose(self, peer: PeerId, _reason: str) -> None:
            found.append(peer)

    async def test() -> None:
        members = manned(monkeypatch, [])
        members.follow(cast(Any, Coordinator()))
        if answer:

            async def call(*_: Any, **__: Any) -> bytes:
                raise refused(answer)

            monkeypatch.setattr(Line, "call", call)
        with contextlib.suppress(RemoteError):
            await members.look(MEMBERS[0].public)

    within(10, test)
    assert found == lost


def test_who_is_barred_is_not_brought_back(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        members = manned(monkeypatch, [])
        members.lost(EVE, may_return=False)
        members.bring_back(EVE)
        assert members._returning == {}
        members.bring_back(MEMBERS[0].public)
        assert list(members._returning) == [MEMBERS[0].public]
        await members.rest()

    within(10, test)


def test_members_that_rested_tell_and_bring_back_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[tuple[PeerId, str, bytes]] = []

    async def test() -> None:
        members = manned(monkeypatch, said)
        await members.rest()
        members.lost(EVE, may_return=False)
        await asyncio.gather(*members._tasks)
        members.bring_back(MEMBERS[0].public)
        await asyncio.sleep(0)
        assert not members._returning[MEMBERS[0].public].cancelling()
        await members.rest()

    within(10, test)
    assert {peer for peer, method, _ in said if method == messages.MEMBERS} == set(EVERYBODY) - {REQUESTER.public}


AWAY = NetworkError("FF-NET-010", "nobody answers")
OVER = PolicyError("FF-APP-091", "the peer holds no open lease in this job")


def refused(code: str) -> FarflungError:
    return RemoteError(code, "no")


@pytest.mark.parametrize(
    ("errors", "is_back"),
    [
        ([], True),
        ([AWAY] * 2000, True),  # a night
        ([refused("FF-APP-575")] * 50, True),  # paused by its owner, then resumed
        ([refused("FF-APP-576")] * 50, True),  # a full disk
        ([refused("FF-APP-046")] * 50, True),  # at another job's work
        ([refused("FF-APP-710")] * 50, True),  # too far ahead of its pay
        ([refused("FF-APP-571")] * 50, True),  # its ledger is away
        ([AWAY, refused("FF-APP-575"), refused("FF-APP-049")] * 4, True),
        ([refused("FF-APP-049")] * 5, False),  # its worker dies again and again
        ([AWAY, OVER], False),  # at once
        ([refused("FF-APP-575"), refused("FF-APP-370"), AWAY] * 5, False),
    ],
)
def test_a_member_comes_back_unless_it_refuses_for_good(
    monkeypatch: pytest.MonkeyPatch, errors: list[FarflungError], is_back: bool
) -> None:
    monkeypatch.setattr(module, "RETURN_LATER", Backoff.every(0.0))
    monkeypatch.setattr(module, "NOT_NOW_PAUSE", 0.0)
    told: list[Any] = []

    back = list[PeerId]()

    async def test() -> None:
        members = manned(monkeypatch, [])
        members._job = members._job._replace(
            journal=cast(Any, type("J", (), {"emit": lambda _, event: told.append(event)})())
        )
        members.follow(cast(Any, type("Asks", (), {"may_join": lambda _, peer: True})()))
        left = list(errors)

        async def once(peer: PeerId, _: Any) -> None:
            if left:
                raise left.pop(0)
            back.append(peer)

        async def nowhere() -> dict[PeerId, messages.PeerAddress]:
            return {}

        monkeypatch.setattr(members, "_bring_once", once)
        members.hire(cast(Any, None), cast(Any, None), nowhere)
        members.bring_back(EVE)
        await members._returning[EVE]

    within(10, test)
    assert back == ([EVE] if is_back else [])
    assert [event.code for event in told] == ([] if is_back else ["FF-APP-095"])


def test_a_member_that_is_back_has_its_newest_voucher_before_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is not paid refuses to start: it must see that it is, whatever it lost."""
    happened: list[str] = []

    def noting(what: str, reply: Any = None) -> Any:
        async def note(*_: Any) -> Any:
            happened.append(what)
            return reply

        return note

    class Asks:
        def may_join(self, _peer: PeerId) -> bool:
            return True

        def state_for(self, _peer: PeerId) -> Any:
            return SimpleNamespace(round=3, root=lambda _layout: ZERO_HASH)

        join = staticmethod(noting("joins"))

    async def test() -> None:
        members = manned(monkeypatch, [])
        members.follow(cast(Any, Asks()))
        members._supplies = cast(Any, lambda _round: (None, ()))
        attests = SimpleNamespace(offer=SimpleNamespace(offer=SimpleNamespace(attests=ZERO_HASH)), lease_key=b"")
        monkeypatch.setattr(members, "_again", noting("offers", attests))
        monkeypatch.setattr(members.setup, "member", noting("starts"))
        monkeypatch.setattr(members.setup, "verifier", noting("starts"))
        members.vouch = noting("vouched")
        members.bring_back(EVE)
        await members._returning[EVE]
        assert happened == ["offers", "vouched", "starts", "joins"]
        happened.clear()
        await members.rehire(VERIFIERS[0].public)
        assert happened == ["offers", "vouched", "starts"]

    within(10, test)


def test_a_member_that_moved_while_it_was_away_is_found_in_the_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETURN_LATER", Backoff.every(0.0))
    moved = messages.PeerAddress(EVE, (EndpointAddress("127.0.0.1", 2),))

    async def test() -> None:
        members = manned(monkeypatch, [])
        members.follow(cast(Any, type("Asks", (), {"may_join": lambda _, peer: True})()))

        async def once(peer: PeerId, _: Any) -> None:
            if members._addresses[peer] != moved:
                raise AWAY

        async def elsewhere() -> dict[PeerId, messages.PeerAddress]:
            return {EVE: moved}

        monkeypatch.setattr(members, "_bring_once", once)
        members.hire(cast(Any, None), cast(Any, None), elsewhere)
        members.bring_back(EVE)
        await members._returning[EVE]
        assert moved in members.setup.members

    within(10, test)
