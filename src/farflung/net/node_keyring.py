"""Decides which node keys of an account count now: what the ledger's registry says of them, and the clock.

| the account in the registry | the key's epoch | counts |
|---|---|---|
| unknown | any | while its certificate lasts |
| known | below `void` | never again: revoked |
| known | above the registered one | while its certificate lasts: the account signed it, and the registry lags |
| known | the registered one | if it is the registered node |
| known | the previous one | if it is the node of that time, until the overlap ends |
| known | any other | no |

An account that never certified a key has epoch 0: its own key. What was learnt is never unlearnt: a registry that
shows an older state than before gives no revoked key back.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from farflung.core import limits
from farflung.core.errors import ProtocolError
from farflung.core.ids import PeerId, short
from farflung.net.certificates import FOREVER, Identity


@dataclass(frozen=True, slots=True)
class RegisteredKeys:
    """One account's keys on the ledger. `until`: when the previous one ends, seconds since 1970.

    `void`: the first epoch that is not revoked.
    """

    account: PeerId
    epoch: int
    node: PeerId
    previous_epoch: int
    previous: PeerId
    until: int
    void: int


class Keyring:
    """What is known of the accounts' keys. Bounded: beyond limits.KEYRING accounts no new one is learnt."""

    def __init__(self) -> None:
        self._known: dict[PeerId, RegisteredKeys] = {}

    def learn(self, rows: Iterable[RegisteredKeys]) -> None:
        """Takes rows of the registry, in any order, as often as they come."""
        for row in rows:
            old = self._known.get(row.account)
            if old is not None:
                row = replace(row if row.epoch >= old.epoch else old, void=max(row.void, old.void))
            elif len(self._known) >= limits.KEYRING:
                continue
            self._known[row.account] = row

    def check(self, identity: Identity, now: float) -> None:
        """Raises ProtocolError FF-NET-102 outside the certificate's time, FF-NET-103 when the key does not count.

        `now`: seconds since 1970.
        """
        is_over = identity.expires != FOREVER and now >= identity.expires + limits.CLOCK_SECONDS
        if is_over or now < identity.begins - limits.CLOCK_SECONDS:
            raise ProtocolError(
                "FF-NET-102",
                f"the node key of {short(identity.account)} is not of this time",
                cause="its certificate has ended" if is_over else "its certificate has not begun",
                hint="compare the clocks of both machines; if they agree, the peer has to renew its key",
            )
        fault = self.fault(identity, now)
        if fault:
            raise ProtocolError(
                "FF-NET-103",
                f"the node key of {short(identity.account)} does not count",
                cause=fault,
                hint="nothing, if the owner revoked or replaced it; if you are the owner, use the newest key",
            )

    def counts(self, identity: Identity, now: float) -> bool:
        """Whether `check` lets it pass."""
        try:
            self.check(identity, now)
        except ProtocolError:
            return False
        return True

    def fault(self, identity: Identity, now: float) -> str:
        """Why the registry refuses this key; the empty text when it does not."""
        known = self._known.get(identity.account)
        if known is None:
            return ""
        epoch = identity.epoch
        if epoch < known.void:
            return f"epoch {epoch} is revoked"
        if epoch > known.epoch:
            return ""
        if epoch == known.epoch:
            return "" if identity.node == known.node else f"epoch {epoch} has another key on the ledger"
        if (epoch, identity.node) != (known.previous_epoch, known.previous):
            return f"epoch {epoch} is replaced by epoch {known.epoch}"
        return "" if now < known.until else f"the overlap of epoch {epoch} is over"
