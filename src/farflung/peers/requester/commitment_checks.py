"""Checks what a member states with its commitment before the reveal: whether it can be true, and what it opens."""

from __future__ import annotations

from typing import Final

from farflung.core.codec import encode
from farflung.core.ids import ID_BYTES, ZERO_HASH, Hash
from farflung.peers.protocol import messages
from farflung.train.contribution_trace import TraceLeaf, are_opened, statistics_index
from farflung.train.run_log import Contribution
from farflung.verify.commitment_check import opens
from farflung.verify.submission_checks import TrainingStatement

LOSS: Final = 1e9  # nats; beyond it a stated loss is a lie
SECONDS: Final = 1e9  # of one round


def is_possible(promise: messages.TrainReply, steps: int) -> bool:
    """Whether what a peer states about its round can be shown and averaged; whether it is true is unknown."""
    said = promise.statistics
    are_losses = len(said.losses) <= steps and all(abs(loss) < LOSS for loss in said.losses)
    return are_losses and 0 <= promise.seconds < SECONDS


def promised_by(promise: messages.TrainReply) -> Contribution:
    """What a commitment stands for. Which object holds the payload, and in which tier it was made, is said later."""
    said = promise.statistics
    opens = (promise.payload, ZERO_HASH, promise.nonce, promise.trace)
    return Contribution(promise.commitment.peer, said.tokens, *opens, "", said.stated)


def is_kept(promised: Contribution, promise: messages.TrainReply, job: Hash, round: int) -> bool:
    """Whether a promise opens its own commitment, in parts that a log can take."""
    parts = (promised.payload, promised.nonce, promised.trace)
    return all(len(part) == ID_BYTES for part in parts) and opens(promised, promise.commitment, job, round)


def is_stated(promise: messages.TrainReply, c: Contribution, segments: int) -> bool:
    """Whether what a member said before its opening stands under the trace that it committed to, and in the log."""
    leaf = TraceLeaf(statistics_index(segments), encode(promise.statistics), promise.path)
    return c.stated == promise.statistics.stated and are_opened(c.trace, segments, [leaf])


def statement(promise: messages.TrainReply | None) -> TrainingStatement | None:
    """None: a coordinator that took over in the middle of a round did not hear it, and holds nothing against it."""
    if promise is None:
        return None
    return TrainingStatement(promise.statistics.losses, promise.statistics.tokens)
