"""Hostile providers while a job hires and starts: they are left out by a code, the others are hired."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from attack_world import JOB_KEY, LAYOUT, MEMBERS, REQUESTER, STRANGER, TERMS, Party, initial, within

from farflung.app import wire
from farflung.app.hiring import WARNING_CHARACTERS, Budget, Supplies, hire, start_members
from farflung.app.journal import Journal
from farflung.core.codec import decode, encode
from farflung.core.crypto import SigningKey
from farflung.core.events import AnyEvent, Joined, Left, Warned
from farflung.core.ids import Hash, PeerId
from farflung.core.money import Credits
from farflung.ledger.tx import JobSchedule, Offer, SignedOffer, sign_offer
from farflung.market.offer import Capabilities, Listing
from farflung.net.io.connection import Connection

replace = msgspec.structs.replace

CHAIN = Hash(b"c" * 32)
EVE, HONEST = MEMBERS[2], MEMBERS[:2]
SPEC = replace(TERMS.spec, network=replace(TERMS.spec.network, providers=len(MEMBERS)))
JOB = replace(TERMS, spec=SPEC)
BUDGET = Budget(Credits(10), Credits(10**6), Credits(500), 0, 10**9, 100)
FACTS = Capabilities(2, 1 << 30, 1 << 30, 10**9, 1, "Linux", "x86_64", "2.13.0")
ROOT = initial().root(LAYOUT)


class Node(Party):
    """Signs what is proposed and starts as asked; `twist` changes what it says."""

    def __init__(
        self, key: SigningKey, folder: Path, twist: Callable[[Any], Any] = lambda said: said
    ) -> None:
        super().__init__(key, folder)
        self.twist = twist

    async def handle(self, connection: Connection, method: str, body: bytes) -> bytes:
        if method == wire.START:
            return encode(self.twist(wire.Started(0, ROOT, 0, "")))
        p = decode(body, wire.Proposal, 10**6)
        money = (p.unit_price, p.stake, p.units_max, p.expires)
        return encode(self.twist(sign_offer(self.key, Offer(p.chain, p.terms.id, self.key.public, *money))))


class Ledger:
    """What `hire` needs of a ledger client."""

    chain = CHAIN

    def __init__(self) -> None:
        self.submitted: list[JobSchedule] = []

    async def leases(self, _job: Hash) -> tuple[()]:
        return ()

    async def submit(self, op: JobSchedule) -> None:
        self.submitted.append(op)


class Scene:
    """A requester, two honest nodes and a hostile one."""

    def __init__(self, folder: Path, twist: Callable[[Any], Any]) -> None:
        self.home = Party(REQUESTER, folder / "home")
        self.nodes = [Node(key, folder / key.public.hex()[:4]) for key in HONEST]
        self.nodes.append(Node(EVE, folder / "eve", twist))
        self.places: dict[PeerId, tuple[str, int]] = {}
        self.events: list[AnyEvent] = []
        self.journal = Journal(folder / "events.jsonl", 0.0, [lambda event, _: self.events.append(event)])
        self.ledger = Ledger()

    async def dial(self, peer: PeerId) -> Connection:
        return await self.home.endpoint.dial(peer, *self.places[peer])

    async def hire(self) -> list[PeerId]:
        asks = [Listing(n.key.public, Credits(5), Credits(1000), FACTS) for n in self.nodes]
        return await hire(self.ledger, JOB, BUDGET, asks, self.dial, self.journal)  # type: ignore[arg-type]

    async def start(self) -> list[PeerId]:
        empty = self.home.put(b"")
        peers = [node.key.public for node in self.nodes]
        supplies = Supplies(JOB_KEY, empty, empty, empty, 0)
        return await start_members(JOB, supplies, (), initial(), peers, peers, (), self.dial, self.journal)

    def reasons(self) -> list[tuple[str, str]]:
        return [(event.peer, event.reason.split()[0]) for event in self.events if isinstance(event, Left)]


@pytest.fixture
def scene(tmp_path: Path) -> Callable[..., None]:
    """Runs a scenario with a hostile node that says `twist(what it should)`."""

    def run(test: Any, twist: Callable[[Any], Any] = lambda said: said) -> None:
        async def body() -> None:
            here = Scene(tmp_path, twist)
            for node in here.nodes:
                here.places[node.key.public] = await node.endpoint.start()
            try:
                await test(here)
            finally:
                for party in (here.home, *here.nodes):
                    await party.endpoint.close()
                here.journal.close()

        within(20, body)

    return run


def resigned(**changes: Any) -> Callable[[SignedOffer], SignedOffer]:
    return lambda said: sign_offer(EVE, replace(said.offer, **changes))


@pytest.mark.parametrize(
    "twist",
    [
        lambda said: replace(said, signature=bytes(64)),
        lambda said: sign_offer(STRANGER, said.offer),
        lambda said: replace(said, offer=replace(said.offer, stake=0)),
        resigned(chain=Hash(bytes(32))),
        resigned(job=Hash(bytes(32))),
        resigned(node=HONEST[0].public),
        resigned(unit_price=11),
        resigned(unit_price=-1),
        resigned(stake=0),
        resigned(units_max=1),
        resigned(expires=1),
    ],
)
def test_one_false_offer_does_not_spoil_the_others(scene: Any, twist: Callable[[Any], Any]) -> None:
    async def test(here: Scene) -> None:
        assert await here.hire() == sorted(key.public for key in HONEST)
        assert here.reasons() == [(EVE.public.hex(), "FF-APP-063")]
        (schedule,) = here.ledger.submitted
        assert {o.offer.node for o in schedule.offers} == {key.public for key in HONEST}

    scene(test, twist)


@pytest.mark.parametrize(
    "place", [("a..b", 1), ("x" * 100, 1), ("", 1), ("\0", 1), ("127.0.0.1", 70_000), ("127.0.0.1", -1)]
)
def test_an_address_that_is_none_leaves_out_its_node_alone(scene: Any, place: tuple[str, int]) -> None:
    async def test(here: Scene) -> None:
        here.places[EVE.public] = place
        assert await here.hire() == sorted(key.public for key in HONEST)
        assert here.reasons()[0][0] == EVE.public.hex()
        assert len(await here.start()) == len(HONEST)

    scene(test)


@pytest.mark.parametrize("changes", [{"root": Hash(bytes(32))}, {"root": b""}, {"round": 1}, {"round": -1}])
def test_a_member_with_another_state_does_not_start(scene: Any, changes: dict[str, Any]) -> None:
    async def test(here: Scene) -> None:
        assert await here.start() == [key.public for key in HONEST]
        assert here.reasons() == [(EVE.public.hex(), "FF-APP-064")]

    scene(test, lambda said: replace(said, **changes))


def test_what_a_provider_says_for_people_is_short(scene: Any) -> None:
    async def test(here: Scene) -> None:
        assert len(await here.start()) == len(MEMBERS)
        (warned,) = [event for event in here.events if isinstance(event, Warned)]
        assert len(warned.message) <= WARNING_CHARACTERS
        assert len(warned.code) <= WARNING_CHARACTERS
        assert len([event for event in here.events if isinstance(event, Joined)]) == len(MEMBERS)

    scene(test, lambda said: replace(said, warning="x" * 100_000 + ": " + "y" * 100_000))
