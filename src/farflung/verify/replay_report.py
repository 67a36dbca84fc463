"""Defines the report of a replay: how often each kind of statement was found true, or the first that was not."""

from __future__ import annotations

import msgspec

from farflung.core.errors import VerificationError


class ReexecutionReport(msgspec.Struct, frozen=True):
    """What a second reader trained again: segments `drawn` of all `segments` that the run accepted and did not condemn,
    each by `rate` and `seed`. `equal`: the same bits came out, losses and payload included; `untold`: others did, here
    or before in the peer's chain (`breaks` names the place), so nothing is known of them. `trained`: contributions
    that were trained for it, of `contributions`.
    """

    rate: float
    seed: int
    segments: int
    drawn: int
    equal: int
    untold: int
    trained: int
    contributions: int
    breaks: tuple[str, ...] = ()


class RetrialReport(msgspec.Struct, frozen=True):
    """A contribution that the run's audits had condemned, trained again.

    `came`: as its node had committed to it ("same"), otherwise ("other"), or not at all, since something before it in
    the node's chain came out otherwise ("untold").
    """

    round: int
    peer: str
    came: str


class ReplayReport(msgspec.Struct):
    """How often each kind of statement was recomputed and found true. Money in pico-credits.

    `attested`: payloads that name what their node's lease attests: not a proof of work. `audits`: contributions
    that were drawn and judged; their round went on without `owed` of them; `slashed`: nodes that lost their stake by
    it; `canaries`: tests of verifiers, `guessed`: of those that lost their stake by them; `evidence`: accusations whose
    evidence was there and holds. `scores`: losses of contributions that verifiers stated; `unpaid`: contributions that
    are not paid for them. `lineage`: jobs of the runs that it stands on, nearest first, of which `parents` were given
    and proved; behind those nothing is checked.
    `receipt_files`: of the parties. `again`, `retried`: what was trained again, where that was asked for.
    `genesis` is the one thing that a reader must know from elsewhere: whoever forges a chain can prove anything
    on it.
    """

    rounds: int = 0
    merges: int = 0
    roots: int = 0
    commitments: int = 0
    attested: int = 0
    signatures: int = 0
    audits: int = 0
    owed: int = 0
    verdicts: int = 0
    canaries: int = 0
    guessed: int = 0
    slashed: int = 0
    evidence: int = 0
    scores: int = 0
    unpaid: int = 0
    blocks: int = 0
    transactions: int = 0
    receipts: int = 0
    receipt_files: int = 0
    paid: int = 0
    refunded: int = 0
    burnt: int = 0
    lineage: tuple[str, ...] = ()
    parents: int = 0
    model_hash: str = ""
    ledger_root: str = ""
    genesis: str = ""
    work: str = ""  # the job's class (job.proof_class)
    again: ReexecutionReport | None = None
    retried: tuple[RetrialReport, ...] | None = None


def require(is_true: bool, code: str, what: str, cause: str = "") -> None:
    """Raises VerificationError `code` unless the statement is true."""
    if not is_true:
        raise VerificationError(
            code, what, cause=cause, hint="the log was altered, or the run was not what it says it was"
        )
