"""Defines the numbers of the law. Genesis sets the first version, the committee may vote for others, all are kept."""

from __future__ import annotations

from typing import Final

from farflung.core import limits
from farflung.core.codec import Wire
from farflung.core.money import CREDIT, MAX_CREDITS

HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS
YEAR_MS: Final = 366 * DAY_MS


class LedgerParams(Wire, frozen=True):
    """One version. Money in pico-credits, times in milliseconds."""

    fee_min: int = 0
    stake_min: int = 0
    job_ms_max: int = 90 * DAY_MS  # how far ahead a job's deadline may lie
    node_ms_max: int = 400 * DAY_MS  # how far ahead a node's expiry may lie
    step_ms_max: int = HOUR_MS  # how far one block may move ledger time
    withheld_permille: int = 500  # of its stake, what a node loses that did not open what it had committed to
    window_ms: int = 0  # between a job's end and its settlement, for vouchers and accusations
    dispute_ms: int = 0  # for an accused to answer, and again for the jury; 0: a slash takes effect at once
    bond_min: int = 0  # what an accused puts up with its answer
    epoch_blocks: int = 64  # a committee can change, and a motion take effect, every so many blocks
    committee_max: int = limits.SEATS
    validator_stake_min: int = 0
    unbonding_ms: int = 21 * DAY_MS  # after a seat ended, how long its stake stays bonded: weak subjectivity
    motion_ms: int = 7 * DAY_MS  # how far ahead a motion's deadline may lie
    delta_ms: int = 1000  # a message's time between two honest validators, to begin with
    idle_ms: int = 5000  # how long a leader without work waits at least before an empty block
    exclusion_ms: int = 30 * DAY_MS  # how long who was found out holds no further lease; 0: nobody is excluded
    exclusion_faults: int = 2  # how often a node may have withheld something when it is excluded; a lie is enough
    appeal_ms: int = 7 * DAY_MS  # for a jury to look again at what a node was excluded for
    challenge_rounds: int = 0  # how old a round may be that anybody challenges; 0: verifiers alone accuse


MONEY_PARAMS: Final = ("fee_min", "stake_min", "bond_min", "validator_stake_min")


def fault_of_params(params: LedgerParams) -> str:
    """What keeps these numbers from being a law under which no money freezes, or the empty text."""
    numbers = tuple(getattr(params, name) for name in params.__struct_fields__)
    if min(numbers) < 0 or max(numbers) > MAX_CREDITS:
        return "a number is out of range"
    if params.withheld_permille > 1000:
        return "withheld_permille is above 1000"
    if params.dispute_ms > params.job_ms_max:
        return "dispute_ms is above job_ms_max"
    if not 1 <= params.committee_max <= limits.SEATS:
        return f"committee_max is not 1 to {limits.SEATS}"
    if not 1 <= params.epoch_blocks <= limits.EPOCH_BLOCKS:
        return f"epoch_blocks is not 1 to {limits.EPOCH_BLOCKS}"
    spans = (params.unbonding_ms, params.dispute_ms, params.motion_ms, params.exclusion_ms, params.appeal_ms)
    if max(spans) > YEAR_MS:
        return "unbonding_ms, dispute_ms, motion_ms, exclusion_ms or appeal_ms is above a year"
    if params.fee_min > CREDIT:
        return "fee_min is above a credit"
    if not 1 <= params.delta_ms <= HOUR_MS or not 1 <= params.idle_ms <= HOUR_MS:
        return "delta_ms or idle_ms is not 1 to an hour"
    if params.challenge_rounds > limits.ACCUSABLE_ROUNDS:
        return f"challenge_rounds is above {limits.ACCUSABLE_ROUNDS}"
    return "" if params.step_ms_max >= 1 else "step_ms_max must be at least 1"
