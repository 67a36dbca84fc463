"""A key without money, and a requester that is silent, against a provider's only slot."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from attack_lease import FACTS, ME, PROPOSAL, UNITS, Process, Scene
from attack_world import REQUESTER, SPEC, STRANGER, TERMS, Party, within
from role_configs import node_config

from farflung.core.errors import PolicyError
from farflung.core.ids import Hash
from farflung.ledger.table_rows import JobRow, JobState
from farflung.ledger.transactions import LeaseRole
from farflung.peers.node import admission
from farflung.peers.node import agent as role
from farflung.peers.node.disk_floor import DiskFloor
from farflung.peers.node.job_claims import JobClaims
from farflung.peers.node.job_fit import ClassPrices
from farflung.peers.node.policy import LeasePolicy
from farflung.peers.node.slot_clock import KEEP_SECONDS, PARK_SECONDS, SlotClock, SlotDue
from farflung.peers.protocol import messages
from farflung.plan.run_disk import node_disk

replace = msgspec.structs.replace
COST = UNITS * PROPOSAL.unit_price
JOB = JobRow(TERMS.id, REQUESTER.public, COST, 10, SPEC.rounds, 10**9)


@pytest.fixture
def against(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """Runs an attack on one provider that nobody has leased."""
    monkeypatch.setattr(role, "capabilities", lambda *_: FACTS)
    monkeypatch.setattr(role, "start_worker", lambda *_: Process(ME))
    monkeypatch.setattr(admission, "LAG_SECONDS", 0.0)
    monkeypatch.setattr(role, "WATCH_SECONDS", 0.01)

    def run(attack: Any) -> None:
        async def test() -> None:
            async with Scene(tmp_path).open() as scene:
                await attack(scene)

        within(20, test)

    return run


@pytest.mark.parametrize(
    ("row", "is_leased", "code"),
    [
        (None, False, "FF-APP-570"),
        (replace(JOB, requester=STRANGER.public), False, "FF-APP-570"),
        (replace(JOB, escrow=COST - 1), False, "FF-APP-570"),
        (replace(JOB, escrow=2 * COST - 1, reserved=COST), False, "FF-APP-570"),
        (replace(JOB, state=JobState.CANCELLED), False, "FF-APP-570"),
        (replace(JOB, state=JobState.OUTPUT), False, "FF-APP-570"),
        (replace(JOB, state=JobState.EXPIRED), True, "FF-APP-570"),
        (JOB, False, "ok"),
        (replace(JOB, escrow=2 * COST, reserved=COST, state=JobState.RUNNING), False, "ok"),
        (replace(JOB, escrow=COST, reserved=COST, state=JobState.RUNNING), True, "ok"),  # its own lease, renewed
    ],
    ids=["no job", "another's", "too little", "reserved", "cancelled", "output", "over", "funded", "room", "leased"],
)
def test_a_slot_is_taken_only_for_a_job_that_pays(against: Any, row: JobRow | None, is_leased: bool, code: str) -> None:
    async def attack(scene: Scene) -> None:
        scene.ledger.jobs[TERMS.id], scene.ledger.is_leased = row, is_leased
        assert await scene.order(messages.PROPOSE, PROPOSAL) == code
        assert (scene.provider._slot is None) == (code != "ok") == (scene.provider._process is None)

    against(attack)


def test_strangers_that_name_no_job_leave_places_for_whoever_has_one(against: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(admission, "LAG_SECONDS", 1e6)

    async def attack(scene: Scene) -> None:
        door = scene.provider.admission
        scene.ledger.jobs[TERMS.id] = None
        held = [asyncio.create_task(door.admit(REQUESTER.public, PROPOSAL)) for _ in range(2 * admission.CHECKS)]
        await until(lambda: sum(each.done() for each in held) >= len(held) - admission.WAITS)
        scene.ledger.jobs[TERMS.id] = JOB
        await door.admit(REQUESTER.public, PROPOSAL)
        for each in held:
            each.cancel()
        await asyncio.gather(*held, return_exceptions=True)

    against(attack)


def test_a_job_of_another_node_of_this_owner_is_refused(against: Any, tmp_path: Path) -> None:
    async def attack(scene: Scene) -> None:
        scene.provider.admission._claims = JobClaims(tmp_path, ME.public)
        sibling = JobClaims(tmp_path, STRANGER.public)
        sibling.take(TERMS.id)
        assert await scene.order(messages.PROPOSE, PROPOSAL) == "FF-APP-624"
        assert scene.provider._slot is None

        async def is_over(_: Any) -> bool:
            return True

        await sibling.clear(is_over)
        assert await scene.order(messages.PROPOSE, PROPOSAL) == "ok"

    against(attack)


def test_no_job_starts_without_its_lease(against: Any) -> None:
    async def attack(scene: Scene) -> None:
        scene.ledger.is_leased = False
        assert await scene.order(messages.PROPOSE, PROPOSAL) == "ok"
        assert await scene.order(messages.START, scene.start) == "FF-APP-572"
        scene.ledger.is_leased = True
        assert await scene.order(messages.START, scene.start) == "ok"

    against(attack)


async def until(is_so: Callable[[], bool]) -> None:
    while not is_so():  # noqa: ASYNC110 - what is waited for has no event of its own
        await asyncio.sleep(0.005)


def test_an_offer_that_no_lease_follows_frees_the_slot_and_not_for_ever(against: Any) -> None:
    async def attack(scene: Scene) -> None:
        scene.ledger.is_leased = False
        watching = asyncio.create_task(scene.provider.watch())
        for _ in range(admission.OFFERS):
            assert await scene.order(messages.PROPOSE, PROPOSAL) == "ok"
            scene.provider._hold._offered -= admission.FOLLOW_SECONDS
            await until(lambda: scene.provider._slot is None and scene.provider._process is None)
        assert await scene.order(messages.PROPOSE, PROPOSAL) == "FF-APP-573"
        scene.provider.admission._clock = lambda: 2 * admission.BARRED_SECONDS + 10**9
        assert await scene.order(messages.PROPOSE, PROPOSAL) == "ok"
        watching.cancel()

    against(attack)


def test_an_offer_that_a_lease_follows_keeps_the_slot(against: Any) -> None:
    async def attack(scene: Scene) -> None:
        assert await scene.order(messages.PROPOSE, PROPOSAL) == "ok"
        scene.provider._hold._offered -= admission.FOLLOW_SECONDS
        scene.provider._tend()
        await until(lambda: scene.provider._hold.is_leased)
        assert scene.provider._slot is not None

    against(attack)


async def gone(scene: Scene, party: Party) -> None:
    """This party's connections end, at both ends."""
    ends = ((scene.provider.endpoint, party.key.public), (party.endpoint, scene.key.public))
    for endpoint, peer in ends:
        for connection in endpoint.connections(peer):
            connection.close()
    await until(lambda: all(endpoint.connection(peer) is None for endpoint, peer in ends))


def test_a_silent_requester_loses_the_worker_and_gets_it_back(against: Any) -> None:
    async def attack(scene: Scene) -> None:
        await scene.begin()
        await scene.round(0)
        hold = scene.provider._hold
        hold._ordered -= PARK_SECONDS
        scene.provider._tend()
        assert scene.provider._process is not None  # its connection stands
        await gone(scene, scene.home)
        hold._ordered -= PARK_SECONDS
        scene.provider._tend()
        assert scene.provider._process is None
        assert scene.provider._slot is None
        train = messages.TrainRequest(TERMS.id, 1, 0)
        assert await scene.order(messages.TRAIN, train) == "FF-APP-049"  # as after a crash
        theirs = replace(PROPOSAL, terms=replace(TERMS, requester=STRANGER.public))
        assert await scene.refused(scene.stranger, messages.PROPOSE, theirs) == "FF-APP-046"
        await scene.serves()

    against(attack)


def test_a_node_that_ends_does_not_wait_for_a_requester_that_is_gone(against: Any) -> None:
    async def attack(scene: Scene) -> None:
        await scene.begin()
        scene.provider.close_slot("its owner ends it")
        scene.provider._hold._ordered -= role.AWAY_SECONDS + 1
        scene.provider._tend()
        assert scene.provider._process is not None  # its connection stands
        await gone(scene, scene.home)
        scene.provider._hold._ordered -= role.AWAY_SECONDS + 1
        scene.provider._tend()
        assert scene.provider._process is None
        assert scene.provider._slot is None

    against(attack)


def test_after_a_while_a_parked_slot_is_free_for_others(against: Any) -> None:
    async def attack(scene: Scene) -> None:
        await scene.begin()
        await gone(scene, scene.home)
        scene.provider._hold._ordered -= PARK_SECONDS
        scene.provider._tend()
        theirs = replace(PROPOSAL, terms=replace(TERMS, requester=STRANGER.public))
        scene.ledger.jobs[theirs.terms.id] = replace(JOB, job=theirs.terms.id, requester=STRANGER.public)
        assert await scene.refused(scene.stranger, messages.PROPOSE, theirs) == "FF-APP-046"
        kept = scene.provider._hold._parked
        assert kept is not None
        scene.provider._hold._parked = (*kept[:2], kept[2] - KEEP_SECONDS)
        scene.ledger.is_leased = False
        assert await scene.refused(scene.stranger, messages.PROPOSE, theirs) == "ok"

    against(attack)


@pytest.mark.parametrize(
    ("leased", "connected", "idle", "due"),
    [
        (False, True, 59.0, SlotDue.NOTHING),
        (False, True, 60.0, SlotDue.LEASE),
        (False, False, 3600.0, SlotDue.LEASE),
        (True, True, 3600.0, SlotDue.NOTHING),
        (True, False, PARK_SECONDS - 1, SlotDue.NOTHING),
        (True, False, PARK_SECONDS, SlotDue.PARK),
    ],
)
def test_when_a_held_slot_needs_something(leased: bool, connected: bool, idle: float, due: SlotDue) -> None:
    clock = SlotClock(60.0)
    clock.offer(1000.0)
    if leased:
        clock.lease()
    assert clock.due(1000.0 + idle, is_connected=connected) is due


def test_a_node_that_is_closed_ends_its_lease_at_the_rounds_border(against: Any) -> None:
    async def attack(scene: Scene) -> None:
        await scene.begin()
        scene.provider.close_slot("its owner paused it")
        train = messages.TrainRequest(TERMS.id, 0, 0)
        assert await scene.order(messages.TRAIN, train) == "FF-APP-049"
        assert scene.provider._process is None
        asked = scene.provider._asked
        assert await scene.order(messages.PROPOSE, PROPOSAL) == "FF-APP-575"
        assert scene.provider._asked == asked  # who asks it back keeps no ending node waiting
        scene.provider.open_slot()
        await scene.serves()

    against(attack)


def test_a_node_whose_lease_ended_owes_the_audits_of_its_last_round(against: Any) -> None:
    async def attack(scene: Scene) -> None:
        await scene.begin()
        assert scene.provider.owed is None
        await scene.round(0)
        scene.provider.close_slot("its owner ends it")
        assert await scene.order(messages.TRAIN, messages.TrainRequest(TERMS.id, 1, 0)) == "FF-APP-049"
        assert scene.provider.owed == (TERMS.id, 0)

    against(attack)


def test_a_round_that_is_under_way_is_opened_and_merged_before_a_closed_node_ends_its_lease(against: Any) -> None:
    async def attack(scene: Scene) -> None:
        await scene.begin()

        order = scene.call

        async def closing(party: Party, method: str, body: bytes, *rest: Any) -> bytes:
            reply = await order(party, method, body, *rest)
            if method == messages.TRAIN:
                scene.provider.close_slot("the disk is nearly full")
            return reply

        scene.call = closing  # type: ignore[method-assign]
        await scene.round(0)

    against(attack)


@pytest.mark.parametrize(("free", "takes", "goes_on"), [(2000, True, True), (1999, False, True), (499, False, False)])
def test_a_full_disk_takes_no_lease_and_then_ends_one(tmp_path: Path, free: int, takes: bool, goes_on: bool) -> None:
    floor = DiskFloor(tmp_path, 2000, lambda _: free)
    for lent in (LeaseRole.TRAIN, LeaseRole.AUDIT):
        states = node_disk(TERMS.spec, TERMS.layout, audits=lent is LeaseRole.AUDIT)
        assert states >= 4 * TERMS.layout.size * 8
        fitting = DiskFloor(tmp_path, 2000, lambda _, states=states: free + states)
        if takes:
            fitting.check(TERMS, lent)
        else:
            with pytest.raises(PolicyError) as refused:
                fitting.check(TERMS, lent)
            assert refused.value.code == "FF-APP-576"
    assert (floor.fault(0.0) == "") == goes_on
    assert DiskFloor(tmp_path, 0, lambda _: free).fault(0.0) == ""


@pytest.mark.parametrize("allows", [False, True])
def test_foreign_python_runs_only_where_the_lender_allows_it(tmp_path: Path, allows: bool) -> None:
    model = replace(SPEC.model, kind="module", module="m.py:build")
    terms = replace(TERMS, spec=replace(SPEC, model=model))
    policy = LeasePolicy(PROPOSAL.chain, LeaseRole.TRAIN, 10, 1000, 1 << 40, lambda: terms.image, allows)
    if allows:
        policy.judge(REQUESTER.public, replace(PROPOSAL, terms=terms))
        return
    assert not node_config(ME, tmp_path).allow_modules  # unless its owner says so
    with pytest.raises(PolicyError) as refused:
        policy.judge(REQUESTER.public, replace(PROPOSAL, terms=terms))
    assert refused.value.code == "FF-APP-574"


@pytest.mark.parametrize(
    ("is_module", "is_proven", "prices", "is_too_cheap"),
    [
        (False, True, ClassPrices(outcome=99, module=99), False),
        (False, False, ClassPrices(outcome=99), True),
        (False, False, ClassPrices(outcome=10, module=99), False),
        (True, False, ClassPrices(module=99), True),
        (True, False, ClassPrices(module=10), False),
    ],
)
def test_a_job_of_a_class_is_taken_at_what_the_lender_asks_for_that_class(
    is_module: bool, is_proven: bool, prices: ClassPrices, is_too_cheap: bool
) -> None:
    model = replace(SPEC.model, kind="module", module="m.py:build") if is_module else SPEC.model
    program = replace(TERMS.program, graph=Hash(b"g" * 32)) if is_proven else TERMS.program
    terms = replace(TERMS, spec=replace(SPEC, model=model), program=program, unproven="" if is_proven else "a reason")
    policy = LeasePolicy(PROPOSAL.chain, LeaseRole.TRAIN, 10, 1000, 1 << 40, lambda: terms.image, True, prices=prices)
    found = ""
    try:
        policy.judge(REQUESTER.public, replace(PROPOSAL, terms=terms, unit_price=10))
    except PolicyError as refused:
        found = refused.code
    assert (found == "FF-APP-045") is is_too_cheap, found
