"""The life of a job: each rule has a test that fails when the rule is removed."""

from __future__ import annotations

import pytest
from ledger_world import CAPS, JOB, NODES, OTHER_JOB, PARAMS, REQUESTER, RICH, ROOTS, START, STRANGER, VALIDATOR, World
from msgspec.structs import replace

from farflung.core import limits
from farflung.core.crypto import SigningKey
from farflung.core.ids import ZERO_HASH, Hash
from farflung.core.money import MAX_CREDITS
from farflung.ledger import transactions
from farflung.ledger.rules.jobs import hour_of
from farflung.ledger.state_transition import total_money
from farflung.ledger.table_rows import AccountRow, EpochRow, JobState, epoch_key
from farflung.ledger.tx_results import FailedResult

A, B, C = NODES


# Jobs


def test_job_id_is_used_once():
    world = World()
    assert world.do(REQUESTER, world.create()) == "ok"
    assert world.do(A, world.create()) == "FF-LEDG-030"
    world.do(REQUESTER, transactions.JobCancel(JOB))
    assert world.do(REQUESTER, world.create()) == "FF-LEDG-030"


@pytest.mark.parametrize(
    "terms",
    [
        {"escrow": 0},
        {"rounds": 0},
        {"rounds": limits.ROUNDS + 1},
        {"deadline": START + 1000},
        {"deadline": START + 1001 + PARAMS.job_ms_max},
    ],
)
def test_job_terms_have_bounds(terms: dict[str, int]):
    world = World()
    assert world.do(REQUESTER, world.create(**terms)) == "FF-LEDG-034"


@pytest.mark.parametrize(
    "terms",
    [
        {"escrow": RICH},
        {"rounds": 1},
        {"rounds": limits.ROUNDS},
        {"deadline": START + 1001},
        {"deadline": START + 1000 + PARAMS.job_ms_max},
    ],
)
def test_job_terms_reach_their_bounds(terms: dict[str, int]):
    world = World()
    assert world.do(REQUESTER, world.create(**terms)) == "ok"


def test_escrow_needs_money():
    world = World()
    assert world.do(REQUESTER, world.create(escrow=RICH + 1)) == "FF-LEDG-010"


def job_ops(world: World) -> list[transactions.Op]:
    return [
        world.schedule(world.offer(C)),
        world.progress(1, (A, 1)),
        transactions.JobFinish(JOB, ROOTS[0], CAPS),
        transactions.JobSettle(JOB),
        transactions.JobCancel(JOB),
        world.draw(0),
    ]


@pytest.mark.parametrize("number", range(6))
def test_only_the_requester_moves_its_job(number: int):
    world = World().running()
    world.do(REQUESTER, world.progress(0))
    assert world.do(A, job_ops(world)[number]) == "FF-LEDG-032"


@pytest.mark.parametrize("number", range(6))
def test_an_unknown_job_does_not_move(number: int):
    world = World()
    assert world.do(REQUESTER, job_ops(world)[number]) == "FF-LEDG-031"


SCHEDULE, PROGRESS, FINISH, SETTLE, CANCEL, DRAW = range(6)
ALLOWED = {
    JobState.CREATED: {SCHEDULE, CANCEL},
    JobState.RUNNING: {SCHEDULE, PROGRESS, FINISH, CANCEL, DRAW},
    JobState.OUTPUT: {SETTLE},
    JobState.SETTLED: set(),
    JobState.CANCELLED: set(),
    JobState.EXPIRED: set(),
    JobState.STOPPED: {CANCEL},
}


def in_state(target: JobState) -> World:
    params = replace(PARAMS, window_ms=1000) if target == JobState.STOPPED else PARAMS
    world = World(params).running() if target != JobState.CREATED else World()
    if target == JobState.CREATED:
        world.do(C, world.register())
        world.do(REQUESTER, world.create())
        return world
    world.do(REQUESTER, world.progress(0, (A, 1)))
    if target in (JobState.OUTPUT, JobState.SETTLED):
        world.do(REQUESTER, transactions.JobFinish(JOB, ROOTS[0], CAPS))
    if target in (JobState.SETTLED, JobState.CANCELLED, JobState.STOPPED):
        world.do(REQUESTER, transactions.JobSettle(JOB) if target == JobState.SETTLED else transactions.JobCancel(JOB))
    if target == JobState.EXPIRED:
        world.send(after=START + 60_000 - world.state.time)
    return world


def test_a_job_moves_along_its_edges_only(subtests):
    for number in range(6):
        for state in JobState:
            with subtests.test(number=number, state=state):
                world = in_state(state)
                assert world.job().state == state
                op = job_ops(world)[number]
                if number == SCHEDULE:
                    op = world.schedule(world.offer(C, expires=START + 99_000))
                assert world.do(REQUESTER, op) == ("ok" if number in ALLOWED[state] else "FF-LEDG-033")


def test_scheduling_locks_stake_and_reserves_escrow():
    world = World().running()
    assert (world.node(A).free, world.node(A).locked, world.node(A).leases) == (400, 100, 1)
    assert (world.job().reserved, world.job().state, world.job().escrow) == (600, JobState.RUNNING, 1000)


def test_a_replacement_is_added_while_the_job_runs():
    world = World().running()
    assert world.do(REQUESTER, world.schedule(world.offer(C, units=80))) == "ok"
    assert world.do(REQUESTER, world.progress(0, (C, 80))) == "ok"
    assert world.lease(C).units == 80


def test_an_offer_may_use_all_that_is_left(monkeypatch: pytest.MonkeyPatch):
    world = World().running()
    monkeypatch.setattr(limits, "LEASES_PER_JOB", 3)
    assert world.do(REQUESTER, world.schedule(world.offer(C, stake=500, units=80))) == "ok"
    assert (world.node(C).free, world.job().reserved) == (0, world.job().escrow)


def refused_offer(world: World, **terms: object) -> str:
    before = world.state
    code = world.do(REQUESTER, world.schedule(world.offer(C, **terms)))
    assert world.state.tables["leases"] == before.tables["leases"]
    assert world.state.tables["nodes"] == before.tables["nodes"]
    return code


def test_offer_must_be_signed_by_its_node():
    assert refused_offer(World().running(), signer=A) == "FF-LEDG-035"


def test_offer_of_another_job_is_refused():
    assert refused_offer(World().running(), job=OTHER_JOB) == "FF-LEDG-036"


def test_offer_of_another_chain_is_refused():
    assert refused_offer(World().running(), chain=ROOTS[1]) == "FF-LEDG-036"


def test_expired_offer_is_refused():
    world = World().running()
    assert refused_offer(world, expires=world.state.time + 1000) == "FF-LEDG-037"
    assert world.do(REQUESTER, world.schedule(world.offer(C, expires=world.state.time + 1001))) == "ok"


def test_offer_above_the_price_cap_is_refused():
    assert refused_offer(World().running(), price=6) == "FF-LEDG-038"


def test_offer_above_the_free_stake_is_refused():
    assert refused_offer(World().running(), stake=501) == "FF-LEDG-039"


def test_a_node_has_one_lease_in_a_job():
    world = World().running()
    assert world.do(REQUESTER, world.schedule(world.offer(A, units=1))) == "FF-LEDG-040"
    twice = world.schedule(world.offer(C, units=1), world.offer(C, units=2))
    assert world.do(REQUESTER, twice) == "FF-LEDG-040"


def test_leases_together_stay_within_the_escrow():
    assert refused_offer(World().running(), units=81) == "FF-LEDG-041"
    assert refused_offer(World().running(), units=0) == "FF-LEDG-041"
    assert refused_offer(World().running(), units=MAX_CREDITS) == "FF-LEDG-041"


def test_schedule_needs_an_offer_and_has_a_bound(monkeypatch: pytest.MonkeyPatch):
    world = World().running()
    assert world.do(REQUESTER, world.schedule()) == "FF-LEDG-042"
    monkeypatch.setattr(limits, "LEASES_PER_JOB", 2)
    assert world.do(REQUESTER, world.schedule(world.offer(C))) == "FF-LEDG-042"


def test_offer_of_a_node_that_is_not_active_is_refused():
    world = World()
    world.do(REQUESTER, world.create())
    assert world.do(REQUESTER, world.schedule(world.offer(A))) == "FF-LEDG-020"
    world.do(A, world.register())
    world.do(A, transactions.NodeLeave())
    assert world.do(REQUESTER, world.schedule(world.offer(A, stake=0))) == "FF-LEDG-020"


def test_a_node_past_its_expiry_gets_no_new_lease():
    world = World().running()
    world.do(REQUESTER, world.create(OTHER_JOB))
    world.do(A, world.register(expires=world.state.time + 2000))
    offer = world.offer(A, OTHER_JOB)
    assert world.node(A).expires == world.state.time + 1000
    assert world.do(REQUESTER, world.schedule(offer, job=OTHER_JOB)) == "FF-LEDG-020"


# Progress


def test_progress_is_recorded_and_credited():
    world = World().running()
    assert world.do(REQUESTER, world.progress(0, (B, 7), (A, 3))) == "ok"
    assert (world.lease(A).units, world.lease(B).units) == (3, 7)
    assert (world.job().round, world.job().root) == (1, ROOTS[0])
    row = world.state.find(EpochRow, epoch_key(JOB, 0))
    assert row == EpochRow(JOB, 0, ROOTS[0], CAPS, hour_of(world.state.time))


@pytest.mark.parametrize("number", [0, 2])
def test_rounds_are_recorded_in_sequence(number: int):
    world = World().running()
    world.do(REQUESTER, world.progress(0))
    assert world.do(REQUESTER, world.progress(number)) == "FF-LEDG-043"


def test_no_round_is_recorded_after_the_last():
    world = World().running()
    assert [world.do(REQUESTER, world.progress(number)) for number in range(4)] == ["ok"] * 3 + ["FF-LEDG-043"]


@pytest.mark.parametrize("key", [C, STRANGER])
def test_progress_of_a_node_without_lease_is_refused(key: SigningKey):
    world = World().running()
    assert world.do(REQUESTER, world.progress(0, (A, 1), (key, 1))) == "FF-LEDG-044"
    assert world.lease(A).units == 0


def test_units_stay_within_the_cap_over_all_rounds():
    world = World().running()
    assert world.do(REQUESTER, world.progress(0, (A, 61))) == "FF-LEDG-045"
    assert world.do(REQUESTER, world.progress(0, (A, 40))) == "ok"
    assert world.do(REQUESTER, world.progress(1, (A, 21))) == "FF-LEDG-045"
    assert world.do(REQUESTER, world.progress(1, (A, 20))) == "ok"


def test_a_node_is_named_once_in_a_round():
    world = World().running()
    assert world.do(REQUESTER, world.progress(0, (A, 1), (A, 1))) == "FF-LEDG-046"


# Draws


def drawn(world: World) -> tuple[int, Hash]:
    row = world.job()
    return row.drawn, row.drawn_of


def test_a_draw_records_what_was_committed_to():
    world = World().running()
    assert drawn(world) == (0, ZERO_HASH)
    assert world.do(REQUESTER, world.draw(0, commitments=ROOTS[2])) == "ok"
    assert drawn(world) == (1, ROOTS[2])
    assert world.do(REQUESTER, world.draw(1, commitments=ROOTS[3])) == "ok"
    assert drawn(world) == (2, ROOTS[3])


@pytest.mark.parametrize("number", [0, 2])
def test_rounds_are_drawn_in_sequence_and_each_once(number: int):
    world = World().running()
    world.do(REQUESTER, world.draw(0))
    before = drawn(world)
    assert world.do(REQUESTER, world.draw(number, commitments=ROOTS[3])) == "FF-LEDG-373"
    assert drawn(world) == before


def test_no_round_is_drawn_after_the_last():
    world = World().running()
    codes = [world.do(REQUESTER, world.draw(number)) for number in range(4)]
    assert codes == ["ok"] * 3 + ["FF-LEDG-373"]


def test_rounds_are_drawn_whether_they_are_recorded_or_not():
    world = World().running()
    assert world.do(REQUESTER, world.progress(0), world.progress(1), world.draw(0)) == "ok"
    assert world.do(REQUESTER, world.draw(1), world.draw(2)) == "ok"
    assert (world.job().round, world.job().drawn) == (2, 3)


def test_a_draw_moves_no_money_but_its_fee():
    world = World().running()
    before, balance = world.job(), world.balance(REQUESTER)
    assert world.do(REQUESTER, world.draw(0), fee=3) == "ok"
    assert (world.balance(REQUESTER), world.balance(VALIDATOR)) == (balance - 3, RICH + 3)
    assert replace(world.job(), drawn=0, drawn_of=ZERO_HASH) == before


def test_a_draw_that_is_undone_leaves_no_trace():
    world = World().running()
    assert world.do(REQUESTER, world.draw(0), world.draw(0)) == "FF-LEDG-373"
    assert drawn(world) == (0, ZERO_HASH)


def test_finish_names_the_root_of_the_last_round():
    world = World().running()
    assert world.do(REQUESTER, transactions.JobFinish(JOB, Hash(bytes(32)), CAPS)) == "FF-LEDG-047"
    world.do(REQUESTER, world.progress(0))
    assert world.do(REQUESTER, transactions.JobFinish(JOB, ROOTS[1], CAPS)) == "FF-LEDG-047"
    assert world.do(REQUESTER, transactions.JobFinish(JOB, ROOTS[0], ROOTS[5])) == "ok"
    assert (world.job().state, world.job().output) == (JobState.OUTPUT, ROOTS[5])


# Ends


def assert_paid(world: World, state: JobState, *, units: tuple[int, int]) -> None:
    paid = 5 * sum(units)
    row = world.job()
    assert (row.state, row.escrow, row.paid, row.refunded) == (state, 0, paid, 1000 - paid)
    assert world.balance(REQUESTER) == RICH - paid
    for key, count in zip((A, B), units, strict=True):
        assert world.balance(key) == RICH - 500 + 5 * count
        assert (world.node(key).free, world.node(key).locked, world.node(key).leases) == (500, 0, 0)
        assert (world.lease(key).paid, world.lease(key).is_open) == (5 * count, False)


def test_settlement_pays_units_refunds_the_rest_and_unlocks():
    world = World().finished()
    assert world.do(REQUESTER, transactions.JobSettle(JOB)) == "ok"
    assert_paid(world, JobState.SETTLED, units=(10, 20))


def test_a_job_is_settled_once():
    world = World().finished()
    world.do(REQUESTER, transactions.JobSettle(JOB))
    tables = world.state.tables
    assert world.do(REQUESTER, transactions.JobSettle(JOB)) == "FF-LEDG-033"
    assert world.do(REQUESTER, transactions.JobSettle(JOB), transactions.JobSettle(JOB)) == "FF-LEDG-033"
    assert all(world.state.tables[name] == tables[name] for name in ("nodes", "jobs", "leases"))


def test_cancelling_pays_what_was_recorded():
    world = World().running()
    world.do(REQUESTER, world.progress(0, (A, 4)))
    assert world.do(REQUESTER, transactions.JobCancel(JOB)) == "ok"
    assert_paid(world, JobState.CANCELLED, units=(4, 0))


def test_the_deadline_pays_what_was_recorded():
    world = World().running()
    world.do(REQUESTER, world.progress(0, (B, 9)))
    world.send(after=START + 60_000 - world.state.time - 1)
    assert world.job().state == JobState.RUNNING
    world.send(after=1)
    assert_paid(world, JobState.EXPIRED, units=(0, 9))


def test_the_deadline_pays_an_output_that_nobody_settles():
    world = World().finished()
    world.send(after=START + 60_000 - world.state.time)
    assert_paid(world, JobState.EXPIRED, units=(10, 20))


def test_time_outs_come_before_the_transactions_of_the_block():
    world = World().finished()
    signed = world.sign(REQUESTER, transactions.JobSettle(JOB))
    outcome = world.send(signed, after=START + 60_000 - world.state.time)[0]
    assert isinstance(outcome, FailedResult)
    assert outcome.code == "FF-LEDG-033"


def test_the_clock_alone_returns_everything():
    world = World().running()
    world.send(after=300_000)
    world.send()
    assert sum(row.balance for row in world.state.rows(AccountRow)) == total_money(world.state)
    assert all(world.balance(key) == RICH for key in (REQUESTER, *NODES))
