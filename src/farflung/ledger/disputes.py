"""Defines the record of an accusation, the operations of its two sides, and the votes of the jury.

A dispute row holds the money that it is about: the stake that was taken from the accused, the most that its lease
may still be paid, and its bond. So the job's end does not wait for it, and the clock alone ends it.

    OPEN --DisputeAnswer, the accused--> ANSWERED --JuryVote, more than 2/3--> UPHELD or OVERTURNED
    OPEN --deadline, the clock--> UPHELD          ANSWERED --deadline, the clock--> LAPSED
    OPEN, ANSWERED --Pinpoint, a party--> PLAYED --the game (ledger.pinpoint_game)--> UPHELD, OVERTURNED or FORFEIT

Which side is right a jury says, or a game computes: otherwise the law knows signatures and deadlines.
"""

from __future__ import annotations

from enum import IntEnum

from farflung.core import limits
from farflung.core.codec import Wire
from farflung.core.ids import ZERO_HASH, Hash, PeerId


class DisputeState(IntEnum):
    """Where a dispute is in its life."""

    OPEN = 0  # the accused may answer
    ANSWERED = 1  # the jury decides
    UPHELD = 2  # against the accused: by the jury, or because it did not answer
    OVERTURNED = 3  # against the accusers, by the jury
    LAPSED = 4  # no jury decided in time: in doubt for the accused
    PLAYED = 5  # a game decides (ledger.pinpoint_game)
    FORFEIT = 6  # against both, by the game


TIMED = (DisputeState.OPEN, DisputeState.ANSWERED)  # the clock of their own deadline decides these
PENDING = (*TIMED, DisputeState.PLAYED)


class DisputeAnswer(Wire, frozen=True, tag="dispute_answer"):
    """The sender denies what it is accused of in `job`, puts up `bond` and names what it holds against it."""

    job: Hash
    bond: int
    evidence: Hash


class JuryVote(Wire, frozen=True, tag="jury_vote"):
    """The sender, of the present committee, finds `node` guilty of what it is accused of in `job`, or not."""

    job: Hash
    node: PeerId
    is_guilty: bool


class DisputeRow(Wire, frozen=True):
    """One accusation. `taken`: the stake it is about; `pay`: the most that the lease may be paid. A challenge has no
    `accusers`.

    `evidence` is the accusers', `answer` the accused's. The amounts stay on record when the money has gone.
    """

    TABLE = "disputes"

    job: Hash
    node: PeerId
    accusers: tuple[PeerId, ...]
    taken: int
    pay: int
    opened: int
    deadline: int
    evidence: Hash
    answer: Hash = ZERO_HASH
    bond: int = 0
    state: DisputeState = DisputeState.OPEN

    @property
    def key(self) -> bytes:
        """Where the row is found in its table: as the lease's."""
        return self.job + self.node

    @property
    def is_pending(self) -> bool:
        """Whether it is not decided yet."""
        return self.state in PENDING

    @property
    def money(self) -> int:
        """Pico-credits that this row holds."""
        return self.taken + self.pay + self.bond if self.is_pending else 0

    @property
    def due(self) -> int:
        """From when on the clock decides it."""
        return self.deadline if self.state in TIMED else limits.NEVER


class BallotRow(Wire, frozen=True):
    """One juror's vote in the dispute of `node` in `job`."""

    TABLE = "ballots"

    job: Hash
    node: PeerId
    juror: PeerId
    is_guilty: bool

    @property
    def key(self) -> bytes:
        """Where the row is found in its table."""
        return ballot_key(self.job, self.node, self.juror)

    @property
    def money(self) -> int:
        """Ballots hold none."""
        return 0


def ballot_key(job: Hash, node: PeerId, juror: PeerId) -> bytes:
    """The key of a ballot in its table."""
    return job + node + juror
