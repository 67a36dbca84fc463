"""Applies relay channels: a payer's money for one relay, which is paid for traffic that both ends signed.

Theory: one channel for each payer and relay. Money leaves it by three edges, each with one signer and one time:

| operation    | signer    | from   | to     | until |
|--------------|-----------|--------|--------|-------|
| ChannelOpen  | the payer | -, closed, open | open | any time: puts money in |
| ChannelClaim | the relay | open   | open   | `expires` + GRACE_MS: pays for what is newly billed |
| ChannelClose | the relay | open   | closed | any time: the rest goes back to the payer |
| (time-out)   | the clock | open   | closed | at `expires` + GRACE_MS: the rest goes back |

So the payer cannot take its money away under a relay that carries for it, and no relay can keep it for ever. A pass is
claimed once, with the last receipts under it (`core.relay_passes`); passes are claimed in the order of their serials,
so that the row remembers one number and not every pass. The price counts over the whole opening and rounds down. What
one opening pays in all is an amount, too: above money.MAX_CREDITS nothing is paid, and a new opening is needed.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from farflung.core import limits, money, relay_passes
from farflung.core.errors import PolicyError
from farflung.core.ids import PeerId
from farflung.core.relay_passes import RelayPass, SignedRelayReceipt
from farflung.ledger.ledger_state import StateDraft
from farflung.ledger.rules.accounts import deposit, withdraw
from farflung.ledger.table_rows import ChannelRow, KeyRow, channel_key
from farflung.ledger.transactions import ChannelClaim, ChannelClose, ChannelOpen, PassReceipts

GRACE_MS: Final = 600_000  # after `expires`: for the relay to claim what was carried until then


def open_(draft: StateDraft, sender: PeerId, op: ChannelOpen) -> None:
    """Opens a channel, or adds to one that is open. Codes: FF-LEDG-010, -090 terms, -092 an open one's price or end."""
    latest = draft.now + draft.params.job_ms_max
    if not (op.amount and op.relay != sender and draft.now < op.expires <= latest):
        raise PolicyError("FF-LEDG-090", "amount, relay or expiry of a channel are out of range")
    row = draft.find(ChannelRow, channel_key(sender, op.relay)) or ChannelRow(sender, op.relay)
    if not row.is_open:
        row = ChannelRow(sender, op.relay, row.opening + 1, op.price, expires=op.expires, is_open=True)
    if op.price != row.price or op.expires < row.expires:
        raise PolicyError("FF-LEDG-092", "an open channel keeps its price, and ends no earlier")
    withdraw(draft, sender, op.amount)
    draft.put(replace(row, held=money.checked(row.held + op.amount), expires=op.expires))


def claim(draft: StateDraft, sender: PeerId, op: ChannelClaim) -> None:
    """Pays the relay for passes that are over. Codes: FF-LEDG-091, and -093 to -097 (see `_billed`)."""
    row = _open_channel(draft, op.payer, sender)
    receipts = sum(len(passage.receipts) for passage in op.passages)
    if not 1 <= len(op.passages) <= limits.CLAIM_PASSES or receipts > limits.CLAIM_RECEIPTS:
        raise PolicyError("FF-LEDG-097", "no pass, or more passes or receipts than one claim may have")
    serial, carried = row.serial, row.carried
    for passage in op.passages:
        if passage.signed.toll.serial < serial:
            raise PolicyError("FF-LEDG-095", "this pass was settled, or passes are out of order")
        carried = money.checked(carried + _billed(draft, row, passage))
        serial = passage.signed.toll.serial + 1
    total = min(relay_passes.cost(carried, row.price), row.paid + row.held, money.MAX_CREDITS)
    due = total - row.paid
    deposit(draft, row.relay, due)
    draft.put(replace(row, serial=money.checked(serial), carried=carried, paid=total, held=row.held - due))


def close(draft: StateDraft, sender: PeerId, op: ChannelClose) -> None:
    """The relay is done: the rest goes back to the payer. Code: FF-LEDG-091 no open channel."""
    _give_back(draft, _open_channel(draft, op.payer, sender))


def expire(draft: StateDraft) -> None:
    """Time-out at the begin of a block: closes channels whose time and grace are over."""
    for row in draft.due(ChannelRow, draft.now - GRACE_MS):
        _give_back(draft, row)


def _give_back(draft: StateDraft, row: ChannelRow) -> None:
    deposit(draft, row.payer, row.held)
    draft.put(replace(row, held=0, is_open=False))


def _open_channel(draft: StateDraft, payer: PeerId, relay: PeerId) -> ChannelRow:
    row = draft.find(ChannelRow, channel_key(payer, relay))
    if row is None or not row.is_open:
        raise PolicyError("FF-LEDG-091", "there is no open channel between this payer and the sender")
    return row


def _billed(draft: StateDraft, row: ChannelRow, passage: PassReceipts) -> int:
    """Bytes of one pass. Codes: FF-LEDG-093 of another channel, -094 not the payer's, -096 a receipt does not fit."""
    relay_pass = passage.signed.toll
    named = (relay_pass.chain, relay_pass.payer, relay_pass.relay, relay_pass.opening)
    if named != (draft.law.chain, row.payer, row.relay, row.opening) or not relay_passes.is_well_formed(relay_pass):
        raise PolicyError("FF-LEDG-093", "the pass is not one of this channel")
    if not relay_passes.is_pass_signed(passage.signed):
        raise PolicyError("FF-LEDG-094", "the pass is not signed by the payer")
    last: dict[PeerId, tuple[int, int]] = {}
    for signed in passage.receipts:
        said = signed.receipt
        if said.party in last or not _is_sound(draft, relay_pass, signed):
            raise PolicyError("FF-LEDG-096", "a receipt is not of this pass, or not signed by its party")
        last[said.party] = (said.sent, said.received)
    return relay_passes.billed(relay_pass.quota, last, relay_pass.lost)


def _is_sound(draft: StateDraft, relay_pass: RelayPass, signed: SignedRelayReceipt) -> bool:
    """Whether a receipt counts under the pass, by the signature of its party or of a node key that is not revoked."""
    party = signed.receipt.party
    keys = draft.find(KeyRow, party) or KeyRow(party, party, party)
    return relay_passes.is_of(signed.receipt, relay_pass) and relay_passes.is_receipt_signed(
        signed, party, *signers(keys)
    )


def signers(keys: KeyRow) -> tuple[PeerId, ...]:
    """The node keys, beside the account's own, by which an account's receipts count."""
    nodes = (keys.node,) if keys.epoch >= keys.void else ()
    return (*nodes, keys.previous) if keys.previous_epoch >= keys.void else nodes
