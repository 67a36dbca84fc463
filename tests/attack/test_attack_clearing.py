"""Nodes that ask, and then decline, raise their ask or lose their stake: others are hired, at a price nobody made up.

Real sockets to the nodes, and the ledger's own law behind what is submitted.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from attack_world import REQUESTER, TERMS, Party, within
from ledger_world import CAPS, PARAMS, START, World
from msgspec.structs import replace

from farflung.core.attestations import Attestation, attestation_hash
from farflung.core.codec import decode, encode
from farflung.core.crypto import SigningKey, local_key
from farflung.core.errors import PolicyError, RunError
from farflung.core.events import AnyEvent, ProcessExitEvent, ProviderMatchEvent
from farflung.core.ids import Hash, PeerId
from farflung.core.money import Credits
from farflung.core.units import Seconds
from farflung.ledger import transactions
from farflung.ledger.ledger_state import exclusion_of
from farflung.ledger.table_rows import LeaseRow, NodeRow, NodeState
from farflung.market.provider_offer import Capabilities, OfferListing
from farflung.net.io.connection import Connection
from farflung.peers.protocol import messages
from farflung.peers.protocol.job_key import LeaseKey, sign_lease_key
from farflung.peers.requester.lease_negotiation import PROPOSALS, LeaseBudget, LeaseHolders, StandingAsks, hire
from farflung.peers.rundir.journal import Journal

KEYS = [local_key(31, "node", index) for index in range(6)]
JUDGES = [local_key(31, "judge", index) for index in range(2)]
FACTS = Capabilities(2, 1 << 30, 1 << 30, 10**9, 1, "Linux", "x86_64", "2.13.0")
IMAGE = Hash(b"i" * 32)
CEILING, STAKE = 20, TERMS.stake
SPEC = replace(TERMS.spec, network=replace(TERMS.spec.network, providers=3, verifiers=1))
JOB = replace(TERMS, spec=SPEC)
UNITS = SPEC.rounds * SPEC.round_tokens
ESCROW = 4 * CEILING * UNITS
BUDGET = LeaseBudget(Credits(CEILING), Credits(ESCROW), 0, START + 90_000, 100, Seconds(180.0), audit_units=UNITS)


class Node(Party):
    """Signs what is proposed; `decline` says no, and counts how often it was asked, and told that it is free."""

    def __init__(self, key: SigningKey, folder: Path) -> None:
        super().__init__(key, folder)
        self.is_declining, self.prices, self.ended = False, list[int](), 0

    async def handle(self, connection: Connection, method: str, body: bytes) -> bytes:
        if method == messages.END:
            self.ended += 1
            return b""
        p = decode(body, messages.LeaseOfferRequest, 10**6)
        self.prices.append(p.unit_price)
        if self.is_declining:
            raise PolicyError("FF-APP-045", "no")
        money = (p.unit_price, p.stake, p.units_max, p.expires)
        runs = ("3.11.7", FACTS.torch, FACTS.system, FACTS.machine, FACTS.threads, "limits")
        said = Attestation(p.chain, p.terms.id, self.key.public, IMAGE, *runs)
        named = attestation_hash(said)
        signed = transactions.sign_offer(
            self.key, transactions.LeaseOffer(p.chain, p.terms.id, self.key.public, *money, p.role, named)
        )
        key = LeaseKey().public
        return encode(messages.LeaseOfferReply(signed, key, sign_lease_key(self.key, p.terms.id, key), said))


class Ledger:
    """The law, a block for each submission; `before` happens in the block before the next one."""

    def __init__(self) -> None:
        owners = (REQUESTER, *KEYS, *JUDGES)
        self.world = World(PARAMS, owners=owners)
        self.before: list[Callable[[], None]] = []
        self.schedules: list[transactions.JobSchedule] = []

    @property
    def chain(self) -> Hash:
        return self.world.chain

    async def leases(self, job: Hash) -> list[LeaseRow]:
        return [lease for lease in self.world.state.rows(LeaseRow) if lease.job == job]

    async def nodes(self) -> list[NodeRow]:
        now, state = self.world.state.time, self.world.state
        rows = [row for row in state.rows(NodeRow) if row.state == NodeState.ACTIVE]
        return [row for row in rows if not exclusion_of(state, row.node, now)]

    async def submit(self, op: transactions.JobSchedule) -> None:
        self.schedules.append(op)
        if self.before:
            self.before.pop(0)()
        code = self.world.do(REQUESTER, op)
        if code != "ok":
            raise RunError("FF-APP-070", "the ledger refused", cause=code)


class Scene:
    """Six nodes that ask 3, 4, 5, 6, 7 and 8, a verifier that asks 2 and one that asks 9; three and one are hired."""

    def __init__(self, folder: Path, asks: tuple[int, ...] = (3, 4, 5, 6, 7, 8)) -> None:
        self.home, self.ledger = Party(REQUESTER, folder / "home"), Ledger()
        self.nodes = [Node(key, folder / f"n{i}") for i, key in enumerate(KEYS[: len(asks)])]
        self.judges = [Node(key, folder / f"v{i}") for i, key in enumerate(JUDGES)]
        for node, price in [*zip(self.nodes, asks, strict=True), *zip(self.judges, (2, 9), strict=True)]:
            self.register(node, price)
        create = transactions.JobCreate(JOB.id, ESCROW, CEILING, SPEC.rounds, START + 95_000)
        assert self.ledger.world.do(REQUESTER, create) == "ok"
        self.places: dict[PeerId, tuple[str, int]] = {}
        self.events: list[AnyEvent] = []
        self.journal = Journal(folder / "events.jsonl", 0.0, [lambda event, _: self.events.append(event)])

    def register(self, node: Node, price: int, stake: int = 2 * STAKE + 100) -> None:
        op = transactions.NodeRegister(CAPS, price, stake, START + 150_000)
        assert self.ledger.world.do(node.key, op) == "ok"

    def listings(self, nodes: list[Node]) -> list[OfferListing]:
        rows = [self.ledger.world.node(node.key) for node in nodes]
        return [OfferListing(row.node, Credits(row.unit_price), Credits(row.free), FACTS) for row in rows]

    async def hire(self) -> LeaseHolders:
        asks = StandingAsks(
            {
                transactions.LeaseRole.TRAIN: self.listings(self.nodes),
                transactions.LeaseRole.AUDIT: self.listings(self.judges),
            },
            {},
        )
        return await hire(self.ledger, JOB, BUDGET, asks, self.dial, self.journal)  # type: ignore[arg-type]

    async def dial(self, peer: PeerId) -> Connection:
        return await self.home.endpoint.dial(peer, *self.places[peer])

    def hired(self, *numbers: int) -> list[PeerId]:
        return sorted(self.nodes[number].key.public for number in numbers)

    def prices(self) -> list[int]:
        """What the leases of those that train pay."""
        rows = self.ledger.world.state.rows(LeaseRow)
        return [lease.unit_price for lease in rows if lease.role is transactions.LeaseRole.TRAIN]

    @property
    def left(self) -> set[str]:
        return {event.peer for event in self.events if isinstance(event, ProcessExitEvent)}


@pytest.fixture
def scene(tmp_path: Path) -> Callable[..., None]:
    def run(test: Any, asks: tuple[int, ...] = (3, 4, 5, 6, 7, 8)) -> None:
        async def body() -> None:
            here = Scene(tmp_path, asks)
            parties = (here.home, *here.nodes, *here.judges)
            for party in parties:
                here.places[party.key.public] = await party.endpoint.start()
            try:
                await test(here)
            finally:
                for party in parties:
                    await party.endpoint.close()
                here.journal.close()

        within(30, body)

    return run


def test_the_first_ask_that_is_left_over_sets_the_price_and_the_law_holds_it(scene: Any) -> None:
    async def test(here: Scene) -> None:
        found = await here.hire()
        assert found.members == here.hired(0, 1, 2)
        assert here.prices() == [6, 6, 6]
        (schedule,) = here.ledger.schedules
        assert schedule.clearings == (
            transactions.ClearingPrice(transactions.LeaseRole.TRAIN, here.nodes[3].key.public),
            transactions.ClearingPrice(transactions.LeaseRole.AUDIT, here.judges[1].key.public),
        )
        (matched,) = [event for event in here.events if isinstance(event, ProviderMatchEvent)]
        assert matched.unit_price == 6  # not the verifiers', which is 9
        assert [node.prices for node in here.nodes[3:]] == [[], [], []]

    scene(test)


@pytest.mark.guarantee
def test_who_declines_keeps_no_seat_empty_and_sets_no_price(scene: Any) -> None:
    async def test(here: Scene) -> None:
        here.nodes[1].is_declining = True
        assert (await here.hire()).members == here.hired(0, 2, 3)
        assert here.prices() == [7, 7, 7]
        assert here.left == {here.nodes[1].key.public.hex()}
        assert [node.prices for node in here.nodes[:4]] == [[6, 7], [6], [6, 7], [7]]

    scene(test)


def test_a_crowd_of_cheap_nodes_that_decline_costs_some_proposals_and_nobody_else_a_seat(scene: Any) -> None:
    async def test(here: Scene) -> None:
        for node in here.nodes[:3]:
            node.is_declining = True
        assert (await here.hire()).members == here.hired(3, 4, 5)
        assert here.prices() == [8, 8, 8]  # nobody is left over: the last of the three

    scene(test)


def test_fewer_are_hired_where_no_more_sign_and_the_price_is_theirs(scene: Any) -> None:
    async def test(here: Scene) -> None:
        for number in (0, 3, 4, 5):
            here.nodes[number].is_declining = True
        assert (await here.hire()).members == here.hired(1, 2)
        assert here.prices() == [5, 5]

    scene(test)


def test_where_nobody_signs_nothing_is_leased(scene: Any) -> None:
    async def test(here: Scene) -> None:
        for node in here.nodes:
            node.is_declining = True
        with pytest.raises(RunError, match="no provider took the job"):
            await here.hire()
        assert here.ledger.schedules == []
        assert here.judges[0].ended == 1  # it had signed, and is free again
        assert max(len(node.prices) for node in here.nodes) <= PROPOSALS

    scene(test)


def test_a_setter_that_changes_its_ask_before_the_block_is_left_out(scene: Any) -> None:
    async def test(here: Scene) -> None:
        here.ledger.before = [lambda: here.register(here.nodes[3], 9)]
        assert (await here.hire()).members == here.hired(0, 1, 2)
        assert here.prices() == [7, 7, 7]
        assert len(here.ledger.schedules) == 2

    scene(test)


def test_a_hired_node_whose_stake_is_gone_is_replaced_and_told(scene: Any) -> None:
    async def test(here: Scene) -> None:
        here.ledger.before = [lambda: leave(here, 1)]
        assert (await here.hire()).members == here.hired(0, 2, 3)
        assert here.prices() == [7, 7, 7]
        assert [node.ended for node in here.nodes] == [0, 1, 0, 0, 0, 0]

    scene(test)


def leave(here: Scene, number: int) -> None:
    assert here.ledger.world.do(here.nodes[number].key, transactions.NodeLeave()) == "ok"


def test_asks_that_change_in_every_block_end_the_hiring_with_the_ledgers_word(scene: Any) -> None:
    async def test(here: Scene) -> None:
        changes = [3, 4, 5]
        here.ledger.before = [lambda: here.register(here.nodes[changes.pop(0)], 15) for _ in range(3)]
        with pytest.raises(RunError, match="the ledger refused"):
            await here.hire()
        assert here.prices() == []
        assert all(node.ended == 1 for node in here.nodes[:3])

    scene(test)


def test_a_refusal_that_no_ask_explains_is_told_at_once(scene: Any) -> None:
    async def test(here: Scene) -> None:
        here.ledger.before = [lambda: cancel(here)]
        with pytest.raises(RunError, match="the ledger refused"):
            await here.hire()
        assert len(here.ledger.schedules) == 1

    scene(test)


def cancel(here: Scene) -> None:
    assert here.ledger.world.do(REQUESTER, transactions.JobCancel(JOB.id)) == "ok"


def test_too_few_asks_are_refused_before_anybody_is_asked(scene: Any) -> None:
    async def test(here: Scene) -> None:
        with pytest.raises(PolicyError) as error:
            await here.hire()
        assert error.value.code == "FF-MARK-001"
        assert [node.prices for node in (*here.nodes, *here.judges)] == [[], [], [], []]

    scene(test, asks=(3, 4))
