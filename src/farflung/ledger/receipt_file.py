"""Defines the file that a party keeps after a job: it proves, without any network, how the job was paid.

    file = header (core.file_header) | canonical bytes of ReceiptFile

A file of form 1 has the magic FFRECPT and one byte 1 for its header. Money is in pico-credits from form 3 on, and in
micro-credits before (`scale_of`). Files of every form are read for ever: who changes what lies behind the header keeps
a reader of the form before (tests/old).

It holds the genesis, the steps to the committee of one block, and the receipts of the party's rows after that block.
Whoever knows the genesis hash from elsewhere needs nothing more: the hash names the first committee, each step the
next one, and the last one's certificate names the rows. A file
can leave out a whole job of its party, or be older than the ledger; whatever it says is true at its block.

What belongs into a file is fixed (`_fault`), so that rows can neither be slipped in nor taken out one by one:
the party's account; each of its leases, with the job and the party's node; each job that the party itself asked for;
each channel that it pays from or is paid from as a relay. One job or one channel at least.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from farflung.core import limits
from farflung.core.codec import Wire, decode, encode
from farflung.core.errors import ProtocolError, VerificationError
from farflung.core.file_header import HEAD_BYTES, FileFormat, file_of, is_headed, value_of
from farflung.core.ids import Hash, PeerId
from farflung.core.money import MICRO
from farflung.ledger import light_client
from farflung.ledger.block import Genesis, check_genesis
from farflung.ledger.receipt_checks import LedgerReceipt, read_row
from farflung.ledger.table_rows import KINDS, AccountRow, ChannelRow, JobRow, LeaseRow, NodeRow, Row
from farflung.ledger.validators import CommitteeRow

FORMAT: Final = FileFormat("receipt", 3, "ask its sender for one that this farflung reads")
_MICRO_FORM: Final = FileFormat("receipt", 2)
MAGIC: Final = b"FFRECPT\x01"  # of form 1
BYTES: Final = limits.RECEIPT_FILE_BYTES + HEAD_BYTES  # of a file, at most
_TABLES: Final = tuple(KINDS)


class ReceiptFile(Wire, frozen=True):
    """The rows of `party`, proved: by table in the order of ledger.table_rows, then by row number.

    `steps` leads from the genesis to the committee of their block: one receipt of a committee for each epoch from 1 on.
    """

    genesis: Genesis
    party: PeerId
    steps: tuple[LedgerReceipt, ...]
    receipts: tuple[LedgerReceipt, ...]


def write_receipt_file(
    genesis: Genesis, party: PeerId, receipts: Iterable[LedgerReceipt], steps: Iterable[LedgerReceipt] = ()
) -> bytes:
    """The file's bytes; `receipts` may come in any order, from one block, `steps` in theirs, and no fewer than needed.

    Raises what `check_receipt_file` raises.
    """
    rows = tuple(sorted(receipts, key=_place))
    epoch = rows[0].header.epoch if rows else 0
    file = ReceiptFile(genesis, party, tuple(steps)[:epoch], rows)
    check_receipt_file(file, genesis.chain)
    return file_of(FORMAT, file)


def read_receipt_file(data: bytes) -> ReceiptFile:
    """Reads a file, in form only.

    Raises VerificationError FF-LEDG-077 not a receipt file, -078 damaged, VersionError FF-CORE-095 of another version.
    """
    is_first = data.startswith(MAGIC)
    if not is_first and not is_headed(data):
        raise VerificationError(
            "FF-LEDG-077",
            "this is not a receipt file",
            cause="it does not begin like a receipt file",
            hint="give the file that the run wrote for this party",
        )
    try:
        if is_first:
            return decode(data[len(MAGIC) :], ReceiptFile, limits.RECEIPT_FILE_BYTES)
        form = _MICRO_FORM if _is_micro(data) else FORMAT
        return value_of(form, data, ReceiptFile, limits.RECEIPT_FILE_BYTES)
    except ProtocolError as error:
        raise VerificationError(
            "FF-LEDG-078",
            "the receipt file is damaged",
            cause=error.message + (f": {error.cause}" if error.cause else ""),
            hint="ask its sender for a fresh copy",
        ) from None


def scale_of(data: bytes) -> int:
    """Pico-credits in one unit of the money of a file that was read."""
    return MICRO if data.startswith(MAGIC) or _is_micro(data) else 1


def _is_micro(data: bytes) -> bool:
    return data.startswith(f"farflung {FORMAT.name} {_MICRO_FORM.version} ".encode())


def check_receipt_file(file: ReceiptFile, chain: Hash | None) -> tuple[Row, ...]:
    """The rows that the file proves, in its order, if its genesis is that of `chain` (None: whichever it is).

    Raises VerificationError: FF-LEDG-060 unusable genesis, -071 to -076 and -253 a receipt or step does not hold, -079
    another genesis than `chain`, -085 not the rows of the party after one block.
    """
    if chain is not None and file.genesis.chain != chain:
        raise VerificationError(
            "FF-LEDG-079",
            "the receipt file is of another ledger",
            cause=f"its genesis is {file.genesis.chain.hex()}",
            hint=f"ask for the receipt of the ledger that starts from {chain.hex()}",
        )
    check_genesis(file.genesis)
    trust = light_client.follow_steps(light_client.trust_in(file.genesis), file.steps, len(file.steps))
    rows = tuple(light_client.check(trust, receipt) for receipt in file.receipts)
    fault = _fault(file, rows)
    if fault:
        raise VerificationError(
            "FF-LEDG-085",
            "the receipt file is not what a party of a job is given",
            cause=fault,
            hint="ask its sender for the whole file, as the run wrote it",
        )
    return rows


def committee_of(file: ReceiptFile) -> tuple[PeerId, ...]:
    """Who certified a file that was checked."""
    row = read_row(file.steps[-1]) if file.steps else None
    return row.members if isinstance(row, CommitteeRow) else file.genesis.validators


def _place(receipt: LedgerReceipt) -> tuple[int, int]:
    """Where a receipt is in a file; an unknown table comes last."""
    table = _TABLES.index(receipt.table) if receipt.table in KINDS else len(_TABLES)
    return table, receipt.index


def _fault(file: ReceiptFile, rows: Sequence[Row]) -> str:
    """What keeps proved rows from being the party's rows after one block, or the empty text."""
    if len({(encode(receipt.header), receipt.certificate) for receipt in file.receipts}) != 1:
        return "its rows are not of one block"
    places = [_place(receipt) for receipt in file.receipts]
    if places != sorted(set(places)):
        return "its rows are out of order, or there twice"
    jobs = {row.job: row for row in rows if isinstance(row, JobRow)}
    hired = {row.job for row in rows if isinstance(row, LeaseRow)}
    if not all(_is_of(file.party, row, hired) for row in rows):
        return "it holds a row of somebody else"
    has_channel = any(isinstance(row, ChannelRow) for row in rows)
    if not (jobs or has_channel) or not hired <= jobs.keys():
        return "it does not hold the job"
    kinds = {row.TABLE for row in rows}
    needed = {AccountRow.TABLE, *([NodeRow.TABLE] if hired else [])}
    return "" if needed <= kinds else "it does not hold the party's account and node"


def _is_of(party: PeerId, row: Row, hired: set[Hash]) -> bool:
    """Whether a row belongs into the party's file."""
    match row:
        case AccountRow(owner=key) | NodeRow(node=key) | LeaseRow(node=key):
            return key == party and (not isinstance(row, NodeRow) or bool(hired))
        case JobRow():
            return row.requester == party or row.job in hired
        case ChannelRow():
            return party in (row.payer, row.relay)
        case _:
            return False
