"""Decides which keys an endpoint or a relay lets in, by its owner's rule and by the node keys that count now."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from farflung.core.ids import PeerId
from farflung.net.certificates import Identity
from farflung.net.node_keyring import Keyring


@dataclass(frozen=True, slots=True)
class Admission:
    """The default lets in every account whose node key is certified."""

    admit: Callable[[PeerId], bool] | None = None  # which accounts may stay; None: all
    keyring: Keyring = field(default_factory=Keyring)  # which of their node keys count
    clock: Callable[[], float] = time.time  # seconds since 1970

    def admits(self, account: PeerId) -> bool:
        """Whether the owner lets this account in."""
        return self.admit is None or self.admit(account)

    def check(self, identity: Identity) -> None:
        """Raises ProtocolError FF-NET-102 or 103 for a node key that does not count now."""
        self.keyring.check(identity, self.clock())

    def counts(self, identity: Identity) -> bool:
        """Whether `check` lets it pass."""
        return self.keyring.counts(identity, self.clock())
