"""Decodes one validator's replies: the reply to a query, and the outcome of a transaction."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, TypeVar

from farflung.core.errors import ProtocolError, RunError
from farflung.ledger import queries
from farflung.ledger.transactions import SignedTx, tx_id
from farflung.ledger.tx_results import AlreadyAppliedResult, AppliedResult, FailedResult, RejectedResult
from farflung.peers.ledger_client.quorum_read import NotYetError

NONCE, EXPIRED = "FF-LEDG-004", "FF-LEDG-005"
# It may be handed in again, as it is.
_LATER: Final = ("FF-LEDG-007", "FF-LEDG-350", "FF-LEDG-351", "FF-LEDG-352", "FF-LEDG-353")

AnswerT = TypeVar("AnswerT", bound=queries.Reply)


@dataclass(frozen=True, slots=True)
class TransactionOutcome:
    """What became of a transaction: in the block of `height` (None: in none), refused with `code` if not empty."""

    height: int | None
    code: str
    why: str = field(default="", compare=False)  # in the words of whoever said it


def answer_of(data: bytes, kind: type[AnswerT]) -> AnswerT:
    """The answer, if it is one to what was asked. Raises ProtocolError, RunError."""
    answer = queries.read_reply(data)
    if isinstance(answer, queries.QueryErrorReply):
        raise RunError(answer.code, answer.message, cause=answer.cause, hint=answer.hint)
    if not isinstance(answer, kind):
        raise ProtocolError("FF-APP-071", f"the ledger answered {type(answer).__name__}")
    return answer


def fate_of(signed: SignedTx, data: bytes) -> TransactionOutcome:
    """What one validator says of this transaction. Raises ProtocolError, RunError, NotYetError."""
    results = answer_of(data, queries.SubmitReply).results
    if len(results) != 1:
        raise ProtocolError("FF-APP-292", f"the ledger gave {len(results)} answers for one transaction")
    match results[0]:
        case AppliedResult(name, height):
            fate = TransactionOutcome(height, "")
        case FailedResult(name, height, _, code, why):
            fate = TransactionOutcome(height, code, why)
        case AlreadyAppliedResult(name, height, code):
            fate = TransactionOutcome(height, code, "it failed when it was handed in before" if code else "")
        case RejectedResult(name, code, why):
            if code in _LATER:
                raise NotYetError(code, why)
            return TransactionOutcome(None, code, why)
    if name != tx_id(signed):
        raise ProtocolError("FF-APP-293", "the ledger speaks of another transaction")
    return fate


def is_void(fate: TransactionOutcome) -> bool:
    """Whether it can never enter the ledger, so that what it was to do may be signed anew."""
    return fate.height is None and fate.code in (NONCE, EXPIRED)
