"""Defines the result of a submitted transaction: applied, failed, rejected, or already applied."""

from __future__ import annotations

from farflung.core.codec import Wire
from farflung.core.ids import Hash


class AppliedResult(Wire, frozen=True, tag="applied"):
    """All operations happened, in the block of `height`."""

    tx: Hash
    height: int


class FailedResult(Wire, frozen=True, tag="failed"):
    """In the block, its fee and nonce are spent, nothing else: operation number `op` was refused with `code`."""

    tx: Hash
    height: int
    op: int
    code: str
    message: str


class RejectedResult(Wire, frozen=True, tag="rejected"):
    """Not in the block and without effect: it may be handed in again, corrected or later."""

    tx: Hash
    code: str
    message: str


class AlreadyAppliedResult(Wire, frozen=True, tag="already_applied"):
    """In the block of `height` since an earlier submission; `code` is empty, or says why it failed there."""

    tx: Hash
    height: int
    code: str = ""


Outcome = AppliedResult | FailedResult | RejectedResult
Result = AppliedResult | FailedResult | RejectedResult | AlreadyAppliedResult
