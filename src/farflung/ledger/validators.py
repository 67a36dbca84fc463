"""Defines committees and the validators that take their seats: rows and operations. The rules are elsewhere.

| table      | key       | one row for | holds money in |
|------------|-----------|-------------|----------------|
| committees | epoch     | the term of one committee under one version of the parameters | - |
| validators | validator | each key that ever asked for a seat, or had one at genesis | stake, and what was burnt |
"""

from __future__ import annotations

from enum import IntEnum

from farflung.core import limits
from farflung.core.codec import Wire
from farflung.core.ids import Hash, PeerId, Signature
from farflung.ledger.votes import SignedVote


class ValidatorState(IntEnum):
    """Where a validator is in its life; `rules.validators` holds the edges."""

    CANDIDATE = 0  # asks for a seat
    ADMITTED = 1  # has one, or gets one at the next boundary
    LEAVING = 2  # has none any more, or only to the next boundary; its stake is bonded until `until`
    GONE = 3
    JAILED = 4  # signed two things that exclude each other: for ever


class ValidatorJoin(Wire, frozen=True, tag="validator_join"):
    """The sender asks for a seat for `validator`, the consensus key, and bonds at least `stake` for it.

    `signature` is the consensus key's own over (chain, sender), so that nobody joins with another's key. Again: raises
    the stake to at least `stake` (never lowers it), and sets the address.
    """

    validator: PeerId
    stake: int
    address: str
    signature: Signature


class ValidatorLeave(Wire, frozen=True, tag="validator_leave"):
    """The sender (owner) gives its validator's seat back; the stake stays bonded for a while."""

    validator: PeerId


class ValidatorAccuse(Wire, frozen=True, tag="validator_accuse"):
    """Two votes of one seat in one view that no honest validator signs both of: its stake is lost."""

    first: SignedVote
    second: SignedVote


class CommitteeRow(Wire, frozen=True):
    """Who certifies from block `first` on: consensus keys in seat order. `opened`: time of the block before `first`."""

    TABLE = "committees"

    epoch: int
    first: int
    opened: int
    members: tuple[PeerId, ...]
    params: int

    @property
    def key(self) -> bytes:
        """Where the row is found in its table."""
        return count_key(self.epoch)

    @property
    def money(self) -> int:
        """Committees hold none."""
        return 0


class ValidatorRow(Wire, frozen=True):
    """One consensus key. `admitted`: the height of its admission, by which seats are ordered.

    `until`: when the clock frees the stake of a candidate that nobody admits, or of one whose seat has ended; else 0.
    """

    TABLE = "validators"

    validator: PeerId
    owner: PeerId
    stake: int
    address: str
    state: ValidatorState
    admitted: int = 0
    until: int = 0
    burnt: int = 0

    @property
    def key(self) -> bytes:
        """Where the row is found in its table."""
        return self.validator

    @property
    def money(self) -> int:
        """Pico-credits that this row holds."""
        return self.stake + self.burnt

    @property
    def due(self) -> int:
        """When the clock frees the stake."""
        return self.until or limits.NEVER


def count_key(number: int) -> bytes:
    """The key of an epoch's committee, and of a version of the parameters."""
    return number.to_bytes(8, "big")


def join_parts(chain: Hash, owner: PeerId) -> tuple[bytes, bytes]:
    """What a consensus key signs (NS_SEAT) to say who owns its seat."""
    return chain, owner
