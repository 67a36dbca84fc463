"""What a member says with its commitment, before it shows anything: what may be true of it, and what that opens."""

from __future__ import annotations

from typing import Final

from farflung.app import wire
from farflung.core.codec import encode
from farflung.core.ids import ID_BYTES, ZERO_HASH, Hash
from farflung.train.roundlog import Contribution
from farflung.train.trace import Leaf, are_opened, statistics_index
from farflung.verify.check import Statement
from farflung.verify.commitments import opens

LOSS: Final = 1e9  # nats; beyond it a stated loss is a lie
SECONDS: Final = 1e9  # of one round


def is_possible(promise: wire.Promise, steps: int) -> bool:
    """Whether what a peer states about its round can be shown and averaged; that it is true nobody knows."""
    said = promise.statistics
    are_losses = len(said.losses) <= steps and all(abs(loss) < LOSS for loss in said.losses)
    return are_losses and 0 <= promise.seconds < SECONDS


def promised_by(promise: wire.Promise) -> Contribution:
    """What a commitment stands for. Which object holds the payload, and in which tier it was made, is said later."""
    said = promise.statistics
    opens = (promise.payload, ZERO_HASH, promise.nonce, promise.trace)
    return Contribution(promise.commitment.peer, said.tokens, *opens, "", said.stated)


def is_kept(promised: Contribution, promise: wire.Promise, job: Hash, round: int) -> bool:
    """Whether a promise opens its own commitment, in parts that a log can take."""
    parts = (promised.payload, promised.nonce, promised.trace)
    return all(len(part) == ID_BYTES for part in parts) and opens(promised, promise.commitment, job, round)


def is_stated(promise: wire.Promise, c: Contribution, segments: int) -> bool:
    """Whether what a member said before its opening stands under the trace that it committed to, and in the log."""
    leaf = Leaf(statistics_index(segments), encode(promise.statistics), promise.path)
    return c.stated == promise.statistics.stated and are_opened(c.trace, segments, [leaf])


def statement(promise: wire.Promise | None) -> Statement | None:
    """None: a coordinator that took over in the middle of a round did not hear it, and holds nothing against it."""
    if promise is None:
        return None
    return Statement(promise.statistics.losses, promise.statistics.tokens)
