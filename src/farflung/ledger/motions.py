"""Defines the committee's motions on seats, parameters and law. It votes on nothing else; no motion names money.

| table   | key     | one row for |
|---------|---------|-------------|
| params  | version | each version of the parameters that ever held, and the one that holds from the next epoch on |
| motions | motion  | each motion, whatever became of it; and the law of a version of the parameters |
"""

from __future__ import annotations

from enum import IntEnum

from farflung.core import limits
from farflung.core.codec import Wire, encode
from farflung.core.crypto import NS_MOTION, digest
from farflung.core.ids import Hash, PeerId
from farflung.ledger.params import LedgerParams
from farflung.ledger.validators import count_key


class AdmitValidator(Wire, frozen=True, tag="admit"):
    """A candidate gets a seat."""

    validator: PeerId


class RemoveValidator(Wire, frozen=True, tag="remove"):
    """A validator loses its seat, and gets its stake back as if it had left."""

    validator: PeerId


class AmendParams(Wire, frozen=True, tag="amend"):
    """Other parameters, for what begins after the next boundary."""

    params: LedgerParams


class AdoptLaw(Wire, frozen=True, tag="law"):
    """The next version of the law, from the next boundary on: its number (ledger.law_version)."""

    law: int


What = AdmitValidator | RemoveValidator | AmendParams | AdoptLaw


class Motion(Wire, frozen=True, tag="motion"):
    """The owner of a seat moves `what`, and votes for it; it lapses at `deadline`."""

    what: What
    deadline: int


class MotionVote(Wire, frozen=True, tag="motion_vote"):
    """The owner of a seat votes for a motion. There are no votes against: what is not passed lapses."""

    motion: Hash


class MotionState(IntEnum):
    """What became of a motion."""

    OPEN = 0
    PASSED = 1
    LAPSED = 2


class ParamsRow(Wire, frozen=True):
    """One version of the parameters, and the epoch from which on it holds."""

    TABLE = "params"

    version: int
    epoch: int
    params: LedgerParams

    @property
    def key(self) -> bytes:
        """Where the row is found in its table."""
        return count_key(self.version)

    @property
    def money(self) -> int:
        """Parameters hold none."""
        return 0


class MotionRow(Wire, frozen=True):
    """One motion. `voters`: the accounts that voted for it, in the order of their votes."""

    TABLE = "motions"

    motion: Hash
    mover: PeerId
    what: What
    deadline: int
    voters: tuple[PeerId, ...]
    state: MotionState = MotionState.OPEN

    @property
    def key(self) -> bytes:
        """Where the row is found in its table."""
        return self.motion

    @property
    def money(self) -> int:
        """Motions hold none."""
        return 0

    @property
    def due(self) -> int:
        """When the motion lapses."""
        return self.deadline if self.state == MotionState.OPEN else limits.NEVER


def motion_id(chain: Hash, mover: PeerId, motion: Motion) -> Hash:
    """The motion's name."""
    return digest(NS_MOTION, chain, mover, encode(motion))
