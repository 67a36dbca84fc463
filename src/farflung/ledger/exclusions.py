"""Defines exclusion: a node caught cheating holds no further lease for a while, and may appeal.

One row for each node that a fault was ever recorded of. It names the evidence, so that whoever refuses the node can
say why, and holds the bond of its appeal while a jury looks at the evidence again.
"""

from __future__ import annotations

from enum import IntEnum

from farflung.core import limits
from farflung.core.codec import Wire
from farflung.core.ids import ZERO_HASH, Hash, PeerId


class ExclusionFault(IntEnum):
    """What a node is excluded for."""

    FALSE = 0  # work that was found false, or an accusation that was
    WITHHELD = 1  # it did not show what it had committed to
    TAMPERED = 2  # its own watch says that somebody reached into its work


class HostTampered(Wire, frozen=True, tag="host_tampered"):
    """The sender's machine was tampered with while it worked in `job`: it says so. `evidence`: its report's hash."""

    job: Hash
    evidence: Hash


class Appeal(Wire, frozen=True, tag="appeal"):
    """The sender is excluded, puts up `bond`, and names what speaks for it; others execute the evidence again."""

    bond: int
    evidence: Hash


class AppealVote(Wire, frozen=True, tag="appeal_vote"):
    """The sender, of the present committee, audited again what `node` is excluded for: it is guilty, or is not."""

    node: PeerId
    is_guilty: bool


class ExclusionRow(Wire, frozen=True):
    """One node. `until`: when it may hold leases again. `job`, `fault`, `evidence`: what it was last excluded for.

    `faults` counts what it withheld since then. `is_final`: a jury or a game has decided, so that no other one does.
    `bond` and `deadline` are of an appeal that is pending; `answer`, `guilty` and `innocent` of the last one.
    """

    TABLE = "exclusions"

    node: PeerId
    job: Hash = ZERO_HASH
    fault: ExclusionFault = ExclusionFault.WITHHELD
    evidence: Hash = ZERO_HASH
    until: int = 0
    faults: int = 0
    is_final: bool = False
    answer: Hash = ZERO_HASH
    bond: int = 0
    deadline: int = 0
    guilty: tuple[PeerId, ...] = ()
    innocent: tuple[PeerId, ...] = ()

    @property
    def key(self) -> bytes:
        """Where the row is found in its table."""
        return self.node

    @property
    def money(self) -> int:
        """Pico-credits that this row holds."""
        return self.bond

    @property
    def due(self) -> int:
        """When the clock ends the appeal."""
        return self.deadline or limits.NEVER
