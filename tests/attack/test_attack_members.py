"""Who is out keeps owing what it had committed to: members forget it, verifiers and the requester do not."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from attack_world import MEMBERS, REQUESTER, TERMS, VERIFIERS, within

from farflung.core import limits
from farflung.core.codec import decode
from farflung.core.ids import PeerId
from farflung.net.endpoint_records import EndpointAddress
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
