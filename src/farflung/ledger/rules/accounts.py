"""Decides which senders may enter a block, and moves free money between accounts.

A transaction that cannot be charged is not let in (`refusal`), so that a block holds only what pays its fee and
uses up its nonce, whether its operations then succeed or not.
"""

from __future__ import annotations

from msgspec.structs import replace

from farflung.core import money
from farflung.core.codec import encode
from farflung.core.crypto import NS_TX, is_signed, is_small_order
from farflung.core.errors import PolicyError
from farflung.core.ids import Hash, PeerId
from farflung.ledger.ledger_state import StateDraft
from farflung.ledger.params import LedgerParams
from farflung.ledger.table_rows import AccountRow
from farflung.ledger.transactions import SignedTx, Transfer, Tx
from farflung.ledger.tx_checks import fault_of


def refusal(draft: StateDraft, signed: SignedTx, *, is_judged: bool) -> tuple[str, str] | None:
    """Code and message when the transaction may not enter the block, None when it may."""
    fault = unsound(draft.law.chain, signed, holds=is_judged or None)
    return fault or unpayable(signed.tx, draft.account(signed.tx.sender), draft.now, draft.params)


def unsound(chain: Hash, signed: SignedTx, *, holds: bool | None = None) -> tuple[str, str] | None:
    """What is wrong with a transaction whatever the state: form, chain, signature.

    `holds`: whether form and signature hold, where that was judged elsewhere; None: both are judged here.
    """
    fault = "" if holds else fault_of(signed)
    if fault:
        return "FF-LEDG-001", f"malformed transaction: {fault}"
    tx = signed.tx
    if tx.chain != chain:
        return "FF-LEDG-003", "signed for another chain"
    if not (is_signed(tx.sender, signed.signature, NS_TX, encode(tx)) if holds is None else holds):
        return "FF-LEDG-002", "wrong signature"
    return None


def unpayable(tx: Tx, account: AccountRow, now: int, params: LedgerParams) -> tuple[str, str] | None:
    """Why the sender's account cannot be charged for it in a block of time `now`: nonce, expiry, fee."""
    if tx.nonce != account.nonce:
        return "FF-LEDG-004", f"nonce {tx.nonce}, but the sender's next is {account.nonce}"
    if tx.expires and now >= tx.expires:
        return "FF-LEDG-005", f"void since {tx.expires}, it is {now}"
    if tx.fee < params.fee_min:
        return "FF-LEDG-006", f"fee {tx.fee} is below {params.fee_min}"
    if tx.fee > account.balance:
        return "FF-LEDG-006", f"fee {tx.fee} is above the balance {account.balance}"
    return None


def check_key(key: PeerId) -> None:
    """Raises PolicyError FF-LEDG-203 for a key that anybody can sign for; asked where the ledger takes one on."""
    if is_small_order(key):
        raise PolicyError(
            "FF-LEDG-203",
            f"the key {key[:4].hex()} has a small order",
            cause="anybody can make signatures that it fits",
            hint="make a key with `farflung`, not by hand",
        )


def charge(draft: StateDraft, tx: Tx) -> None:
    """Uses up the nonce and moves the fee to who earns those of the block."""
    account = draft.account(tx.sender)
    draft.put(replace(account, nonce=account.nonce + 1, balance=account.balance - tx.fee))
    deposit(draft, draft.payee, tx.fee)


def withdraw(draft: StateDraft, owner: PeerId, amount: int) -> None:
    """Takes free money; raises PolicyError FF-LEDG-010 when there is too little."""
    account = draft.account(owner)
    if amount > account.balance:
        raise PolicyError("FF-LEDG-010", f"needs {amount}, the balance is {account.balance}")
    draft.put(replace(account, balance=account.balance - amount))


def deposit(draft: StateDraft, owner: PeerId, amount: int) -> None:
    """Gives free money; opens the account if it is new, unless there is nothing to give."""
    if amount:
        account = draft.account(owner)
        draft.put(replace(account, balance=money.checked(account.balance + amount)))


def transfer(draft: StateDraft, sender: PeerId, op: Transfer) -> None:
    """Moves free money. Codes: FF-LEDG-010 too little, FF-LEDG-011 nothing to move."""
    if op.amount < 1:
        raise PolicyError("FF-LEDG-011", "a transfer moves at least 1 pico-credit")
    withdraw(draft, sender, op.amount)
    deposit(draft, op.to, op.amount)
