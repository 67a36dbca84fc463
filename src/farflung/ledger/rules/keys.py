"""Certifies and revokes node keys, the keys that speak for an account on the network.

Epochs only grow, and `void` only grows: what was replaced or revoked never comes back. The law moves no money here and
asks no clock: `expires` and `until` are seconds since 1970 for whoever meets the key (net.node_keyring), and ledger
time may be counted rather than read.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from farflung.core import limits
from farflung.core.errors import PolicyError
from farflung.core.ids import PeerId
from farflung.ledger.ledger_state import StateDraft
from farflung.ledger.rules.accounts import check_key
from farflung.ledger.table_rows import NOBODY, KeyRow
from farflung.ledger.transactions import KeyCertify, KeyRevoke

LAST_SECOND: Final = 253_402_300_799  # of the year 9999


def certify(draft: StateDraft, sender: PeerId, op: KeyCertify) -> None:
    """The sender's next node key. Codes: FF-LEDG-086 epoch, -087 no new key, -088 no time, -203 anybody's key."""
    row = key_row(draft, sender)
    if not max(row.epoch + 1, row.void) <= op.epoch < limits.EPOCHS:
        raise PolicyError(
            "FF-LEDG-086",
            f"epoch {op.epoch} is none that may follow",
            cause=f"the account is at epoch {row.epoch}, and all below {row.void} are revoked",
        )
    if op.node in (sender, row.node, NOBODY):
        raise PolicyError("FF-LEDG-087", "a new epoch needs a new key, and another one than the account's")
    if not 0 < op.expires <= LAST_SECOND or op.until > LAST_SECOND:
        raise PolicyError("FF-LEDG-088", "a node key ends between 1970 and the year 9999")
    check_key(op.node)
    draft.put(
        replace(
            row,
            epoch=op.epoch,
            node=op.node,
            expires=op.expires,
            previous_epoch=row.epoch,
            previous=row.node,
            until=op.until,
        )
    )


def revoke(draft: StateDraft, sender: PeerId, op: KeyRevoke) -> None:
    """Voids all epochs of the sender up to one, the account's own key (epoch 0) included. Code: FF-LEDG-089."""
    row = key_row(draft, sender)
    if not row.void <= op.epoch < limits.EPOCHS - 1:
        raise PolicyError(
            "FF-LEDG-089",
            f"epoch {op.epoch} cannot be revoked",
            cause=f"all below {row.void} are revoked" if op.epoch < row.void else "none could follow",
        )
    draft.put(replace(row, void=op.epoch + 1))


def key_row(draft: StateDraft, account: PeerId) -> KeyRow:
    """An account's keys; before it says anything its own key is epoch 0."""
    return draft.find(KeyRow, account) or KeyRow(account, account, account)
