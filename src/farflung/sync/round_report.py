"""Defines the report of a round for the peer's caller and for its log."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

log = logging.getLogger("farflung.sync")


@dataclass(frozen=True)
class RoundReport:
    """One exchange. Bytes are those of this peer: at the socket for a farflung group, of the collectives' tensors for
    torch.distributed. Seconds are wall time: `exchange_seconds` until all was merged, `waited_seconds` of them while
    training stood still.
    """

    round: int
    payload_bytes: int
    bytes_up: int
    bytes_down: int
    exchange_seconds: float
    waited_seconds: float
    accepted: tuple[int, ...]  # ranks whose contributions were merged
    left_out: Mapping[int, str]  # ranks whose were not, and why
    # Of what length of its contribution clipping to the median norm took a share, by rank: 0.5 is half, and lost.
    clipped: Mapping[int, float] = field(default_factory=dict)

    def joined(self, other: RoundReport) -> RoundReport:
        """This and a second phase of the same step: sums of bytes and seconds, and who is in the last phase."""
        return RoundReport(
            self.round,
            self.payload_bytes + other.payload_bytes,
            self.bytes_up + other.bytes_up,
            self.bytes_down + other.bytes_down,
            self.exchange_seconds + other.exchange_seconds,
            self.waited_seconds + other.waited_seconds,
            other.accepted,
            {**self.left_out, **other.left_out},
            {**self.clipped, **other.clipped},
        )

    @property
    def hidden_seconds(self) -> float:
        """How much of the exchange ran while this peer trained."""
        return max(0.0, self.exchange_seconds - self.waited_seconds)


def tell_left_out(round: int, left_out: Mapping[int, str]) -> None:
    """One warning for each contribution that did not count."""
    for rank, why in sorted(left_out.items()):
        log.warning("round %d goes on without rank %d: %s", round, rank, why)
