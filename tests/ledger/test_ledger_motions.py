"""Motions: two thirds of the seats of the moment decide on seats and numbers, and on nothing else."""

from __future__ import annotations

from ledger_committee import (
    COUNCIL,
    OWNERS,
    SEATS,
    AdmitValidator,
    AdoptLaw,
    AmendParams,
    MotionVote,
    RemoveValidator,
    ValidatorLeave,
    ValidatorState,
    carry,
    council,
    join,
    move,
    name,
    of,
)
from ledger_powers import EARNS, POWERS
from ledger_world import JOB, NODES, PARAMS, REQUESTER, VALIDATOR, VERIFIERS, World
from msgspec.structs import replace

from farflung.core.money import CREDIT
from farflung.ledger import transactions
from farflung.ledger.ledger_state import params_of
from farflung.ledger.motions import Motion, MotionRow, MotionState, What
from farflung.ledger.params import YEAR_MS, LedgerParams, fault_of_params
from farflung.ledger.table_rows import KINDS, JobRow

FIVE, OWNER = SEATS[4], OWNERS[4]
AMENDED = replace(COUNCIL, fee_min=3, committee_max=50, withheld_permille=700)


def to_boundary(world: World) -> None:
    while (world.state.height - world.state.committee.first + 1) % world.state.params.epoch_blocks:
        world.send()


def the_motion(world: World, motion: Motion, mover: int = 0) -> MotionRow:
    row = world.state.find(MotionRow, name(world.chain, SEATS[mover], motion))
    assert row is not None
    return row


def test_more_than_two_thirds_pass_a_motion_and_no_fewer():
    world = council()
    world.do(OWNER, join(world.chain, FIVE, OWNER))
    motion = move(world, AdmitValidator(FIVE.public))
    vote = MotionVote(name(world.chain, SEATS[0], motion))
    assert world.do(SEATS[0], motion) == "ok"
    assert world.do(SEATS[0], vote) == "FF-LEDG-269"
    assert world.do(SEATS[1], vote) == "ok"
    assert (the_motion(world, motion).state, of(world, FIVE).state) == (0, ValidatorState.CANDIDATE)
    assert world.do(SEATS[2], vote) == "ok"
    assert (the_motion(world, motion).state, of(world, FIVE).state) == (1, ValidatorState.ADMITTED)
    assert world.do(SEATS[3], vote) == "FF-LEDG-268"


def test_only_owners_of_seats_move_and_vote():
    world = council()
    world.do(OWNER, join(world.chain, FIVE, OWNER))
    motion = move(world, AdmitValidator(FIVE.public))
    for key in (OWNER, FIVE, REQUESTER, SEATS[5]):
        assert world.do(key, motion) == "FF-LEDG-264"
    assert world.do(SEATS[0], motion) == "ok"
    vote = MotionVote(name(world.chain, SEATS[0], motion))
    for key in (OWNER, FIVE, REQUESTER, SEATS[5]):
        assert world.do(key, vote) == "FF-LEDG-264"


def test_the_owner_of_a_seat_votes_and_not_its_consensus_key():
    world = council()
    world.do(OWNER, join(world.chain, FIVE, OWNER))
    carry(world, AdmitValidator(FIVE.public), SEATS[:3])
    to_boundary(world)
    motion = move(world, AmendParams(AMENDED))
    assert world.do(FIVE, motion) == "FF-LEDG-264"
    assert world.do(OWNER, motion) == "ok"


def test_a_motion_lapses_at_its_deadline():
    world = council()
    motion = move(world, AmendParams(AMENDED))
    assert world.do(SEATS[0], motion) == "ok"
    vote = MotionVote(name(world.chain, SEATS[0], motion))
    world.do(SEATS[1], vote)
    world.send(after=motion.deadline - world.state.time - 1)
    assert the_motion(world, motion).state == MotionState.OPEN
    world.send(after=1)
    assert the_motion(world, motion).state == MotionState.LAPSED
    assert world.do(SEATS[2], vote) == "FF-LEDG-268"
    to_boundary(world)
    assert world.state.params == COUNCIL


def test_a_deadline_lies_ahead_and_not_too_far():
    world = council()
    for after in (-1000, 0, 30_001):
        assert world.do(SEATS[0], move(world, AmendParams(AMENDED), after)) == "FF-LEDG-265", after
    assert world.do(SEATS[0], move(world, AmendParams(AMENDED), 30_000)) == "ok"


def test_a_motion_is_made_once():
    world = council()
    motion = move(world, AmendParams(AMENDED))
    assert world.do(SEATS[0], motion) == "ok"
    assert world.do(SEATS[0], motion) == "FF-LEDG-266"
    assert world.do(SEATS[1], motion) == "ok"


def test_what_cannot_be_done_cannot_be_moved():
    world = council()
    for what in (AdmitValidator(FIVE.public), RemoveValidator(FIVE.public), AdmitValidator(SEATS[0].public)):
        assert world.do(SEATS[0], move(world, what)) == "FF-LEDG-267", what


def test_what_has_become_impossible_is_not_voted_for():
    world = council()
    world.do(OWNER, join(world.chain, FIVE, OWNER))
    motion = move(world, AdmitValidator(FIVE.public))
    world.do(SEATS[0], motion)
    world.do(OWNER, ValidatorLeave(FIVE.public))
    assert world.do(SEATS[1], MotionVote(name(world.chain, SEATS[0], motion))) == "FF-LEDG-267"


def test_votes_of_those_who_have_lost_their_seats_do_not_count():
    world = council()
    motion = move(world, AmendParams(AMENDED), 30_000)
    vote = MotionVote(name(world.chain, SEATS[0], motion))
    assert [world.do(SEATS[0], motion), world.do(SEATS[1], vote)] == ["ok", "ok"]
    for key in SEATS[:2]:
        assert world.do(key, ValidatorLeave(key.public)) == "ok"
    to_boundary(world)
    assert len(world.state.committee.members) == 2
    assert world.do(SEATS[0], vote) in ("FF-LEDG-264", "FF-LEDG-269")
    assert world.do(SEATS[2], vote) == "ok"
    assert the_motion(world, motion).state == MotionState.OPEN
    assert world.do(SEATS[3], vote) == "ok"
    assert the_motion(world, motion).state == MotionState.PASSED


def test_parameters_change_at_the_boundary_and_every_version_is_kept():
    world = council()
    assert carry(world, AmendParams(AMENDED), SEATS[:3]) == "ok"
    assert world.state.params == COUNCIL
    assert not world.state.closes
    to_boundary(world)
    assert (world.state.params, world.state.committee.epoch, world.state.committee.params) == (AMENDED, 1, 1)
    assert world.state.closes
    assert (params_of(world.state, 0), params_of(world.state, 1)) == (COUNCIL, AMENDED)
    assert world.do(SEATS[0], Motion(AmendParams(COUNCIL), world.state.time + 2000)) == "FF-LEDG-006"
    world.send()
    assert not world.state.closes


def test_of_two_amendments_before_one_boundary_the_last_one_holds():
    world = council(1)
    for permille in (10, 20):
        motion = move(world, AmendParams(replace(COUNCIL, withheld_permille=permille)))
        assert world.do(SEATS[0], motion) == "ok"
    to_boundary(world)
    assert (world.state.params.withheld_permille, world.state.committee.params) == (20, 1)


def test_a_job_keeps_the_parameters_under_which_it_was_created():
    world = World(replace(PARAMS, epoch_blocks=2))
    slow = replace(PARAMS, epoch_blocks=2, withheld_permille=900, window_ms=5000, dispute_ms=5000)
    world.watched()
    assert world.do(VALIDATOR, move(world, AmendParams(slow))) == "ok"
    world.send()
    assert world.state.params == slow
    assert world.job().terms == 0
    accused = world.accuse(NODES[0], *VERIFIERS, finding=transactions.VerdictFinding.WITHHELD, excess=0)
    assert world.do(REQUESTER, accused) == "ok"
    assert world.lease(NODES[0]).slashed == 50
    assert world.do(REQUESTER, transactions.JobCancel(JOB)) == "ok"
    row = world.state.find(JobRow, JOB)
    assert row is not None
    assert row.state.name == "CANCELLED"


FAR = 1 << 62
HARD = replace(PARAMS, epoch_blocks=1, withheld_permille=1000)
BAD: list[dict[str, int]] = [
    {"step_ms_max": 0},
    {"withheld_permille": 1001},
    {"committee_max": 0},
    {"committee_max": 101},
    {"epoch_blocks": 0},
    {"epoch_blocks": FAR},
    {"unbonding_ms": YEAR_MS + 1},
    {"dispute_ms": YEAR_MS + 1},
    {"motion_ms": YEAR_MS + 1},
    {"exclusion_ms": YEAR_MS + 1},
    {"appeal_ms": YEAR_MS + 1},
    {"challenge_rounds": 17},
    {"fee_min": CREDIT + 1},
    {"delta_ms": 0},
    {"delta_ms": FAR},
    {"idle_ms": 0},
    {"idle_ms": FAR},
]


def test_no_committee_can_vote_for_numbers_that_freeze_money():
    world = council()
    for change in BAD:
        bad = replace(COUNCIL, **change)
        assert fault_of_params(bad), change
        assert world.do(SEATS[0], move(world, AmendParams(bad))) == "FF-LEDG-267", change
    assert not fault_of_params(COUNCIL)
    assert not fault_of_params(LedgerParams())


def test_of_every_operation_is_known_what_it_may_write_and_motions_write_no_work():
    """Random histories check it (machine_base); here, that no operation was forgotten and what a committee may do."""
    names = {kind.__name__ for kind in transactions.Op.__args__}
    assert names == set(POWERS)
    assert set().union(*POWERS.values()) <= set(KINDS)
    for name_ in ("Motion", "MotionVote"):
        assert POWERS[name_] == {"motions", "validators", "params"}
    work = {"nodes", "jobs", "leases", "epochs", "channels", "disputes", "ballots"}
    seats = ("ValidatorJoin", "ValidatorLeave", "ValidatorAccuse", "Motion", "MotionVote")
    assert not any(POWERS[name_] & work for name_ in seats)
    decisions = {"JuryVote", "OpenVerdict", "ProveElement"}
    assert {"Progress", "SettleMany", "JobSettle", "JobCancel", "JobLeave", *decisions} == EARNS


def tables_of(world: World) -> dict[str, object]:
    return {kind: tuple(world.state.tables[kind].rows) for kind in KINDS}


def test_no_motion_touches_an_account_a_job_a_lease_or_a_channel():
    """Two thirds of the committee can pass whatever can be moved: it moves no money and no work."""
    world = World(replace(PARAMS, epoch_blocks=1, motion_ms=90_000), validators=(VALIDATOR,))
    world.finished()
    world.do(NODES[2], world.open_channel())
    world.do(NODES[2], join(world.chain, FIVE, NODES[2], 400))
    guarded = set(KINDS) - {"committees", "params", "validators", "motions"}
    whats: list[What] = [
        AdmitValidator(FIVE.public),
        AmendParams(replace(PARAMS, epoch_blocks=1, withheld_permille=1000)),
        RemoveValidator(FIVE.public),
        AdoptLaw(2),
    ]
    assert {type(what) for what in whats} == set(What.__args__)
    movers = (VALIDATOR, NODES[2])
    for what in whats:
        before = tables_of(world)
        motion = move(world, what)
        assert world.do(VALIDATOR, motion) == "ok"
        row = world.state.find(MotionRow, name(world.chain, VALIDATOR, motion))
        assert row is not None
        if row.state == MotionState.OPEN:
            assert world.do(movers[1], MotionVote(row.motion)) == "ok"
        after = tables_of(world)
        for table in guarded - {"accounts"}:
            assert before[table] == after[table], table
        balances = [
            {row.owner: row.balance for row in books["accounts"]}
            for books in (before, after)  # type: ignore[attr-defined]
        ]
        assert balances[0] == balances[1]
        world.send()
    assert world.state.committee.epoch == 4
