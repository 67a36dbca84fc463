"""The rows that say who decides and by which numbers: committees and versions of the parameters, both kept for ever.

| table      | key     | one row for |
|------------|---------|-------------|
| committees | epoch   | the reign of one committee under one version of the parameters |
| params     | version | each version that ever held |
"""

from __future__ import annotations

from farflung.core.codec import Wire
from farflung.core.ids import PeerId
from farflung.ledger.params import Params


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


class ParamsRow(Wire, frozen=True):
    """One version of the parameters, and the epoch from which on it held."""

    TABLE = "params"

    version: int
    epoch: int
    params: Params

    @property
    def key(self) -> bytes:
        """Where the row is found in its table."""
        return count_key(self.version)

    @property
    def money(self) -> int:
        """Parameters hold none."""
        return 0


def count_key(number: int) -> bytes:
    """The key of an epoch's committee, and of a version of the parameters."""
    return number.to_bytes(8, "big")
