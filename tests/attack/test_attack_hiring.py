"""Hostile providers while a job hires and starts: they are left out by a code, the others are hired."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from attack_world import JOB_KEY, LAYOUT, MEMBERS, REQUESTER, STRANGER, TERMS, VERIFIERS, Party, initial, within

from farflung.core.attestations import Attestation, attestation_hash
from farflung.core.codec import decode, encode
from farflung.core.crypto import SigningKey
from farflung.core.events import AnyEvent, PeerJoinEvent, ProcessExitEvent, WarningEvent
from farflung.core.ids import Hash, PeerId
from farflung.core.money import Credits
from farflung.core.units import Seconds
from farflung.ledger.table_rows import NodeRow
from farflung.ledger.transactions import JobSchedule, LeaseOffer, LeaseRole, SignedLeaseOffer, sign_offer
from farflung.market.provider_offer import Capabilities, OfferListing, caps_hash, lasting
from farflung.net.endpoint_records import EndpointAddress, issue
from farflung.net.io.connection import Connection
from farflung.peers.protocol import messages
from farflung.peers.protocol.directory import Advertisement, NodeOwner, advertise
from farflung.peers.protocol.directory import DirectoryListing as Listed
from farflung.peers.protocol.job_key import LeaseKey, sign_lease_key
from farflung.peers.requester.lease_negotiation import LeaseBudget, LeaseHolders, StandingAsks, hire, read_asks
from farflung.peers.requester.market_survey import survey
from farflung.peers.requester.member_setup import WARNING_CHARACTERS, MemberSetup, ProviderInputs, all_ready
from farflung.peers.rundir.journal import Journal

replace = msgspec.structs.replace

CHAIN = Hash(b"c" * 32)
EVE, HONEST = MEMBERS[2], MEMBERS[:2]
SPEC = replace(TERMS.spec, network=replace(TERMS.spec.network, providers=len(MEMBERS), verifiers=2))
JOB = replace(TERMS, spec=SPEC)
BUDGET = LeaseBudget(Credits(10), Credits(10**6), 0, 10**9, 100, Seconds(180.0))
FACTS = Capabilities(2, 1 << 30, 1 << 30, 10**9, 1, "Linux", "x86_64", "2.13.0")
ROOT = initial().root(LAYOUT)


class Node(Party):
    """Signs what is proposed and starts as asked; `twist` changes what it says."""

    def __init__(self, key: SigningKey, folder: Path, twist: Callable[[Any], Any] = lambda said: said) -> None:
        super().__init__(key, folder)
        self.twist, self.lease_key, self.image = twist, LeaseKey(), ROOT
        self.opened: bytes | None = None

    async def handle(self, connection: Connection, method: str, body: bytes) -> bytes:
        if method == messages.END:
            return b""
        if method == messages.START:
            start = decode(body, messages.LeaseStartRequest, 10**6)
            self.opened = self.lease_key.unwrap(start.job, start.wrapped_key)
            return encode(self.twist(messages.LeaseStartReply(0, ROOT, 0, "")))
        p = decode(body, messages.LeaseOfferRequest, 10**6)
        money = (p.unit_price, p.stake, p.units_max, p.expires)
        runs = ("3.11.7", FACTS.torch, FACTS.system, FACTS.machine, FACTS.threads, "limits")
        said = Attestation(p.chain, p.terms.id, self.key.public, self.image, *runs)
        named = attestation_hash(said)
        signed = sign_offer(self.key, LeaseOffer(p.chain, p.terms.id, self.key.public, *money, p.role, named))
        lease_key = self.lease_key.public
        signature = sign_lease_key(self.key, p.terms.id, lease_key)
        return encode(self.twist(messages.LeaseOfferReply(signed, lease_key, signature, said)))


class Ledger:
    """What `hire` needs of a ledger client."""

    chain = CHAIN

    def __init__(self) -> None:
        self.submitted: list[JobSchedule] = []

    async def nodes(self) -> tuple[()]:
        return ()

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
        self.judges = [Node(key, folder / key.public.hex()[:4]) for key in VERIFIERS]
        self.places: dict[PeerId, tuple[str, int]] = {}
        self.events: list[AnyEvent] = []
        self.journal = Journal(folder / "events.jsonl", 0.0, [lambda event, _: self.events.append(event)])
        self.ledger = Ledger()
        self.job = JOB

    async def dial(self, peer: PeerId) -> Connection:
        return await self.home.endpoint.dial(peer, *self.places[peer])

    async def hire(self) -> list[PeerId]:
        """The providers that were hired; both verifiers always are."""
        self.hired = await self._hire()
        assert self.hired.verifiers == sorted(key.public for key in VERIFIERS)
        return self.hired.members

    async def _hire(self) -> LeaseHolders:
        asks = StandingAsks({LeaseRole.TRAIN: _asks(self.nodes), LeaseRole.AUDIT: _asks(self.judges)}, {})
        return await hire(self.ledger, self.job, BUDGET, asks, self.dial, self.journal)  # type: ignore[arg-type]

    async def start(self) -> list[PeerId]:
        empty = self.home.put(b"")
        keys = {node.key.public: node.lease_key.public for node in self.nodes}
        job = cast(Any, SimpleNamespace(terms=JOB, journal=self.journal, job_key=JOB_KEY))
        starter = MemberSetup(job, list(keys), self.dial)
        supplies = ProviderInputs(empty, empty, empty, empty, 0)
        work = {p: starter.member(p, key, supplies, (), ROOT) for p, key in keys.items()}
        ready, _ = await all_ready(work, self.journal)
        return ready

    def reasons(self) -> list[tuple[str, str]]:
        return [(event.peer, event.reason.split()[0]) for event in self.events if isinstance(event, ProcessExitEvent)]


class Directory:
    """A connection to the ledger, which lists nodes and knows what each asks."""

    def __init__(self, *listed: Advertisement) -> None:
        self._listing = encode(Listed.of(listed))

    async def call(self, _method: str, _body: bytes) -> bytes:
        return self._listing

    async def nodes(self) -> list[NodeRow]:
        return [NodeRow(key.public, caps_hash(lasting(FACTS)), 5, 1000) for key in MEMBERS]


HASH = Hash(bytes(32))


def said_at(
    key: SigningKey, host: str = "127.0.0.1", port: int = 1, owner: NodeOwner | None = None, **more: Any
) -> Advertisement:
    record = issue(key.public, (EndpointAddress(host, port, **more),), time.time())
    return advertise(key, record, FACTS, owner=owner)


@pytest.mark.parametrize(
    "bad",
    [
        replace(said_at(EVE), signature=bytes(64)),
        replace(said_at(EVE), endpoint=issue(MEMBERS[0].public, (EndpointAddress("127.0.0.1", 2),), time.time())),
        advertise(EVE, issue(EVE.public, (EndpointAddress("127.0.0.1", 1),), time.time()), replace(FACTS, cores=64)),
        said_at(EVE, host=""),
        said_at(EVE, host="a b"),
        said_at(EVE, host="x" * 300),
        said_at(EVE, port=0),
        said_at(EVE, port=-1),
        said_at(EVE, port=1 << 16),
        said_at(EVE, relay=EVE.public),
        said_at(EVE, relay=PeerId(b"short")),
        advertise(EVE, issue(EVE.public, (EndpointAddress("127.0.0.1", 1),), time.time() - 3600), FACTS),
        advertise(EVE, issue(EVE.public, (EndpointAddress("127.0.0.1", 1),), time.time() + 3600), FACTS),
        said_at(EVE, owner=NodeOwner(HONEST[0].public, NodeOwner.of(EVE, EVE.public).signature)),
        said_at(EVE, owner=NodeOwner.of(STRANGER, HONEST[0].public)),
    ],
    ids=[
        "unsigned",
        "another's",
        "of another machine than its row names",
        "no host",
        "blank",
        "long",
        "zero",
        "negative",
        "far",
        "itself",
        "no key",
        "old",
        "future",
        "of an owner that did not sign",
        "of another node's owner",
    ],
)
def test_one_bad_advertisement_keeps_nobody_else_from_being_hired(bad: Advertisement) -> None:
    async def read() -> None:
        directory: Any = Directory(bad, *(said_at(key) for key in HONEST))
        asks = await read_asks(directory, directory)
        assert asks.addresses.keys() == {key.public for key in HONEST}
        assert [ask.peer for ask in asks.of[LeaseRole.TRAIN]] == [key.public for key in HONEST]
        assert all(a.places == (EndpointAddress("127.0.0.1", 1),) for a in asks.addresses.values())

    within(10, read)


def _asks(nodes: list[Node]) -> list[OfferListing]:
    return [OfferListing(n.key.public, Credits(5), Credits(1000), FACTS) for n in nodes]


@pytest.fixture
def scene(tmp_path: Path) -> Callable[..., None]:
    """Runs a scenario with a hostile node that says `twist(what it should)`."""

    def run(test: Any, twist: Callable[[Any], Any] = lambda said: said) -> None:
        async def body() -> None:
            here = Scene(tmp_path, twist)
            for node in (*here.nodes, *here.judges):
                here.places[node.key.public] = await node.endpoint.start()
            try:
                await test(here)
            finally:
                for party in (here.home, *here.nodes, *here.judges):
                    await party.endpoint.close()
                here.journal.close()

        within(20, body)

    return run


def offering(twist: Callable[[SignedLeaseOffer], SignedLeaseOffer]) -> Callable[[Any], Any]:
    """Another offer, in the place of an honest one."""
    return lambda said: replace(said, offer=twist(said.offer))


def resigned(**changes: Any) -> Callable[[Any], Any]:
    return offering(lambda said: sign_offer(EVE, replace(said.offer, **changes)))


def keyed(key: SigningKey, lease_key: bytes, job: Hash = JOB.id) -> Callable[[Any], Any]:
    """Another lease key, signed by `key`."""
    signature = sign_lease_key(key, job, lease_key)
    return lambda said: replace(said, lease_key=lease_key, signature=signature)


@pytest.mark.parametrize(
    "twist",
    [
        offering(lambda said: replace(said, signature=bytes(64))),
        offering(lambda said: sign_offer(STRANGER, said.offer)),
        offering(lambda said: replace(said, offer=replace(said.offer, stake=0))),
        lambda said: replace(said, signature=bytes(64)),
        lambda said: replace(said, lease_key=LeaseKey().public),  # put in by somebody in between
        keyed(STRANGER, LeaseKey().public),
        keyed(EVE, LeaseKey().public, Hash(bytes(32))),
        keyed(EVE, b""),
        keyed(EVE, bytes(31)),
        keyed(EVE, bytes(10_000)),
        resigned(role=LeaseRole.AUDIT),
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
        assert {o.offer.node for o in schedule.offers} == {key.public for key in (*HONEST, *VERIFIERS)}

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
        (warned,) = [event for event in here.events if isinstance(event, WarningEvent)]
        assert len(warned.message) <= WARNING_CHARACTERS
        assert len(warned.code) <= WARNING_CHARACTERS
        assert len([event for event in here.events if isinstance(event, PeerJoinEvent)]) == len(MEMBERS)

    scene(test, lambda said: replace(said, warning="x" * 100_000 + ": " + "y" * 100_000))


def test_a_lease_key_that_nothing_can_be_wrapped_for_leaves_out_its_node_alone(scene: Any) -> None:
    async def test(here: Scene) -> None:
        assert EVE.public in await here.hire()  # it is signed, and of the right length
        here.nodes[2].lease_key.public = bytes(32)
        assert await here.start() == [key.public for key in HONEST]
        assert here.reasons() == [(EVE.public.hex(), "FF-APP-063")]
        assert [node.opened for node in here.nodes] == [JOB_KEY, JOB_KEY, None]

    scene(test, keyed_or_started)


def keyed_or_started(said: Any) -> Any:
    return keyed(EVE, bytes(32))(said) if isinstance(said, messages.LeaseOfferReply) else said


def test_a_verifier_that_signs_a_trainers_offer_is_left_out(scene: Any) -> None:
    async def test(here: Scene) -> None:
        judge = here.judges[0]
        judge.twist = lambda said: replace(
            said, offer=sign_offer(judge.key, replace(said.offer.offer, role=LeaseRole.TRAIN))
        )
        assert len((await here._hire()).verifiers) == 1
        assert here.reasons() == [(judge.key.public.hex(), "FF-APP-063")]

    scene(test)


@pytest.mark.parametrize(
    "change",
    [{"node": MEMBERS[0].public}, {"job": HASH}, {"chain": HASH}, {"image": HASH}, {"python": "3" * 65}],
    ids=lambda change: next(iter(change)),
)
def test_an_attestation_is_of_its_own_lease_and_of_what_the_offer_names(scene: Any, change: dict[str, Any]) -> None:
    """The text may be a lie; that it is the text whose hash the lease keeps may not."""

    def twist(said: Any) -> Any:
        other = replace(said.attestation, **change)
        if "python" not in change:
            return replace(said, attestation=other)
        named = replace(said.offer.offer, attests=attestation_hash(other))
        return replace(said, attestation=other, offer=sign_offer(EVE, named))

    async def test(here: Scene) -> None:
        await here.hire()
        assert here.reasons() == [(EVE.public.hex(), "FF-APP-370")]
        assert EVE.public not in here.hired.attested

    scene(test, twist)


def test_a_node_that_attests_another_image_than_the_job_asks_for_is_not_hired(scene: Any) -> None:
    """Whatever it says of itself when it is asked: the requester looks as well."""

    async def test(here: Scene) -> None:
        here.job = replace(JOB, image=ROOT, spec=replace(SPEC, network=replace(SPEC.network, image="mine")))
        here.nodes[2].image = HASH
        assert await here.hire() == sorted(key.public for key in HONEST)
        assert here.reasons() == [(EVE.public.hex(), "FF-APP-417")]
        (schedule,) = here.ledger.submitted
        assert EVE.public not in {o.offer.node for o in schedule.offers}

    scene(test)


@pytest.mark.parametrize(
    ("providers", "verifiers", "alike", "hired"),
    [
        (2, 1, "provider and verifier", (2, 1)),
        (2, 2, "provider and verifier", (2, 2)),  # both verifiers are needed: the owner's provider is left out
        (3, 1, "provider and verifier", (3, 1)),  # all providers are needed: the owner's verifier is left out
        (2, 2, "verifiers", (2, 1)),
        (3, 1, "providers", (2, 1)),
    ],
)
def test_nodes_of_one_owner_never_judge_each_other_and_count_once(
    scene: Any, providers: int, verifiers: int, alike: str, hired: tuple[int, int]
) -> None:
    """The owner asks least, so that only who it is keeps its second node out."""
    nodes = {"provider and verifier": (EVE, VERIFIERS[0]), "verifiers": VERIFIERS, "providers": (EVE, HONEST[0])}[alike]

    def listings(found: list[Node]) -> list[OfferListing]:
        owned = {key.public: STRANGER.public for key in nodes}
        return [replace(ask, owner=owned.get(ask.peer)) for ask in _asks(found)]

    async def test(here: Scene) -> None:
        network = replace(SPEC.network, providers=providers, verifiers=verifiers)
        job = replace(JOB, spec=replace(SPEC, network=network))
        asks = StandingAsks({LeaseRole.TRAIN: listings(here.nodes), LeaseRole.AUDIT: listings(here.judges)}, {})
        found = survey(job.spec, asks, 0, Credits(10))
        assert (found.providers.fitting, found.verifiers.fitting) == hired
        job = replace(job, spec=replace(job.spec, network=replace(network, providers=hired[0], verifiers=hired[1])))
        holders = await hire(here.ledger, job, BUDGET, asks, here.dial, here.journal)  # type: ignore[arg-type]
        assert (len(holders.members), len(holders.verifiers)) == hired
        together = {key.public for key in nodes} & {*holders.members, *holders.verifiers}
        assert len(together) <= 1

    scene(test)
