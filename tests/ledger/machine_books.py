"""What the ledger and the naive one must agree on."""

from __future__ import annotations

from naive_ledger import Naive

from farflung.core.ids import ZERO_HASH
from farflung.ledger.disputes import BallotRow, DisputeRow
from farflung.ledger.exclusions import ExclusionRow
from farflung.ledger.ledger_state import params_of
from farflung.ledger.motions import MotionRow
from farflung.ledger.rules.disputes import is_locked
from farflung.ledger.state_transition import LedgerState
from farflung.ledger.table_rows import AccountRow, ChannelRow, EpochRow, JobRow, KeyRow, LeaseRow, NodeRow, NodeState
from farflung.ledger.validators import CommitteeRow, ValidatorRow


def books(state: LedgerState) -> dict[str, object]:
    """What both ledgers must agree on."""
    return {
        "money": {row.owner: row.balance for row in state.rows(AccountRow) if row.balance},
        "nonce": {row.owner: row.nonce for row in state.rows(AccountRow) if row.nonce},
        "nodes": {
            row.node: (row.free, row.burnt, row.unit_price, row.expires, row.state == NodeState.ACTIVE)
            for row in state.rows(NodeRow)
        },
        "jobs": {
            row.job: (
                (row.requester, row.escrow, row.state.name.lower(), row.round, row.slashed),
                (row.output, row.until, row.paid),
                (row.drawn, row.drawn_of),
            )
            for row in state.rows(JobRow)
        },
        "leases": {
            (row.job, row.node): (
                (row.units, row.vouched, row.role, row.slashed, row.evidence != ZERO_HASH),
                (row.is_open, is_locked(state, row), row.disputes),
            )
            for row in state.rows(LeaseRow)
        },
        "epochs": [(row.job, row.root, row.contributions, row.time) for row in sorted_epochs(state)],
        "disputes": {
            (row.job, row.node): ((row.state.name.lower(), row.accusers, row.deadline), (row.taken, row.pay, row.bond))
            for row in state.rows(DisputeRow)
        },
        "ballots": {(row.job, row.node, row.juror): row.is_guilty for row in state.rows(BallotRow)},
        "exclusions": {
            row.node: (
                (row.job, int(row.fault), row.evidence, row.until, row.faults, row.is_final),
                (row.answer, row.bond, row.deadline, set(row.guilty), set(row.innocent)),
            )
            for row in state.rows(ExclusionRow)
        },
        "committees": [(row.first, list(row.members)) for row in state.rows(CommitteeRow)],
        "params": (state.params, [params_of(state, row.params) for row in state.rows(CommitteeRow)]),
        "validators": {
            row.validator: ((row.owner, row.stake, row.state.name.lower(), row.until), (row.burnt, row.address))
            for row in state.rows(ValidatorRow)
        },
        "motions": {
            row.motion: (row.deadline, list(row.voters), row.state.name.lower()) for row in state.rows(MotionRow)
        },
        "channels": {
            (row.payer, row.relay): (row.opening, row.held, row.expires, row.price, row.is_open)
            for row in state.rows(ChannelRow)
        },
        "keys": {
            row.account: ((row.epoch, row.node), (row.previous_epoch, row.previous), (row.expires, row.until), row.void)
            for row in state.rows(KeyRow)
        },
    }


def sorted_epochs(state: LedgerState) -> list[EpochRow]:
    return sorted(state.rows(EpochRow), key=lambda row: (row.job, row.round))


def naive_books(naive: Naive) -> dict[str, object]:
    return {
        "money": {owner: amount for owner, amount in naive.money.items() if amount},
        "nonce": {owner: nonce for owner, nonce in naive.nonce.items() if nonce},
        "nodes": {
            name: (node["free"], node["burnt"], node["price"], node["expires"], node["active"])
            for name, node in naive.nodes.items()
        },
        "jobs": {
            name: (
                (
                    job["owner"],
                    job["escrow"],
                    job["state"],
                    len(job["roots"]),
                    sum(lease["lost"] for lease in job["leases"].values()),
                ),
                (job["output"], job["until"], job["paid"]),
                (len(job["draws"]), (job["draws"] or [ZERO_HASH])[-1]),
            )
            for name, job in naive.jobs.items()
        },
        "leases": {
            (job, node): (
                (lease["units"], lease["vouched"], lease["role"], lease["lost"], lease["slashed"]),
                (not lease["over"], lease["locked"], naive.accusing(job, node)),
            )
            for job, held in naive.jobs.items()
            for node, lease in held["leases"].items()
        },
        "epochs": [(job, *epoch) for job in sorted(naive.jobs) for epoch in naive.epochs_of(naive.jobs[job])],
        "disputes": {
            names: (
                (said["state"], tuple(said["accusers"]), said["deadline"]),
                (said["taken"], said["pay"], said["bond"]),
            )
            for names, said in naive.disputes.items()
        },
        "ballots": {
            (*names, juror): vote for names, said in naive.disputes.items() for juror, vote in said["votes"].items()
        },
        "exclusions": {
            name: (
                tuple(said[part] for part in ("job", "fault", "evidence", "until", "faults", "final")),
                (said["answer"], said["bond"], said["deadline"], said["guilty"], said["innocent"]),
            )
            for name, said in naive.out.items()
        },
        "committees": [(said["first"], said["members"]) for said in naive.epochs],
        "params": (naive.p, [said["params"] for said in naive.epochs]),
        "validators": {
            name: ((said["owner"], said["stake"], said["state"], said["until"]), (said["burnt"], said["where"]))
            for name, said in naive.seats.items()
        },
        "motions": {name: (said["deadline"], said["votes"], said["state"]) for name, said in naive.moved.items()},
        "channels": {
            names: (said["times"], said["left"], said["expires"], said["price"], said["open"])
            for names, said in naive.channels.items()
        },
        "keys": {account: tuple(said.values()) for account, said in naive.keys.items()},
    }
