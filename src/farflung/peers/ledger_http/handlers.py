"""Answers the ledger's HTTP readers: one function for each path, a pure function of what `ledger.queries` gives.

Whatever is said of a row, a block or a transaction comes with its proof: canonical bytes as base64, which the reader
checks against the genesis it knows. What is not there cannot be proved: such an answer says so.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

from farflung.core.codec import encode
from farflung.core.errors import PolicyError, ProtocolError, UsageError
from farflung.core.ids import ID_BYTES, Hash, PeerId
from farflung.ledger import queries, search_queries
from farflung.ledger.block import Block, BlockHeader
from farflung.ledger.inclusion_proof import prove_tx
from farflung.ledger.motions import MotionRow, ParamsRow
from farflung.ledger.receipt_checks import LedgerReceipt, read_row
from farflung.ledger.table_rows import KINDS, AccountRow, EpochRow, JobRow, LeaseRow, NodeRow, epoch_key
from farflung.ledger.transactions import tx_id
from farflung.ledger.validators import CommitteeRow, ValidatorRow, count_key
from farflung.ledger.votes import QuorumCertificate
from farflung.peers.ledger_http.json_schema import plain

Ask = Callable[[queries.Read], queries.Reply]
Words = Mapping[str, str]  # what a path and its query say, by name
Form = dict[str, Any]

PAGE: Final = 64  # rows, blocks or transactions in one answer, at most
LEAST_DIGITS: Final = 4  # of a name that is looked for

AnswerT = TypeVar("AnswerT", bound=queries.Reply)


def asked(ask: Ask, query: queries.Read, kind: type[AnswerT]) -> AnswerT:
    """The ledger's answer. Raises ProtocolError FF-APP-071 when it is of another kind."""
    said = ask(query)
    if not isinstance(said, kind):
        raise ProtocolError("FF-APP-071", f"the ledger answered {type(said).__name__}")
    return said


def in_base64(value: Any) -> str:
    """The canonical bytes of a value as text."""
    return base64.b64encode(encode(value)).decode()


def sealed(header: BlockHeader, certificate: QuorumCertificate) -> Form:
    """A block in short, with what proves it."""
    return {
        "id": header.id.hex(),
        "header": plain(header),
        "certificate": plain(certificate),
        "proof": {"header": in_base64(header), "certificate": in_base64(certificate)},
    }


def proved(receipt: LedgerReceipt) -> Form:
    """A row, with what proves it."""
    return {
        "table": receipt.table,
        "index": receipt.index,
        "height": receipt.header.height,
        "time": receipt.header.time,
        "row": plain(read_row(receipt)),
        "proof": {"receipt": in_base64(receipt)},
    }


def included(block: Block, place: int, code: str) -> Form:
    """A transaction, with what proves that it is in its block; `failed` is the source's word."""
    signed = block.txs[place]
    return {
        "id": tx_id(signed).hex(),
        "height": block.header.height,
        "time": block.header.time,
        "place": place,
        "failed": code,
        "tx": plain(signed.tx),
        "proof": {"inclusion": in_base64(prove_tx(block, place))},
    }


def head(ask: Ask, _: Words) -> Form:
    """The newest block."""
    said = asked(ask, queries.GetHead(), queries.HeadReply)
    return {"genesis": said.header.chain.hex(), "head": sealed(said.header, said.certificate)}


def genesis(ask: Ask, _: Words) -> Form:
    """What the chain began with; its hash is the chain's id."""
    said = asked(ask, queries.GetGenesis(), queries.GenesisReply).genesis
    return {"id": said.chain.hex(), "genesis": plain(said), "proof": {"genesis": in_base64(said)}}


def blocks(ask: Ask, words: Words) -> Form:
    """Blocks in short, from a height on."""
    first, limit = number_of(words, "from", 1), number_of(words, "limit", PAGE)
    check_range("limit", limit, 1, PAGE)
    found = asked(ask, queries.GetBlocks(max(1, first)), queries.BlocksReply).blocks[:limit]
    newest = asked(ask, queries.GetHead(), queries.HeadReply).header.height
    last = found[-1].header.height if found else newest
    is_whole = number_of(words, "whole", 0) == 1
    listed = [
        {
            **sealed(held.header, held.certificate),
            "transactions": len(held.txs),
            **({"canonical": in_base64(held)} if is_whole else {}),
        }
        for held in found
    ]
    return {"blocks": listed, "next": last + 1 if last < newest else None}


def block(ask: Ask, words: Words) -> Form:
    """One whole block: its canonical bytes, and its transactions in short."""
    held = block_at(ask, number_of(words, "height", 0))
    return {
        **sealed(held.header, held.certificate),
        "transactions": [
            {
                "id": tx_id(signed).hex(),
                "sender": signed.tx.sender.hex(),
                "operations": [str(op.__struct_config__.tag) for op in signed.tx.ops],
            }
            for signed in held.txs
        ],
        "canonical": in_base64(held),
    }


def block_at(ask: Ask, height: int) -> Block:
    """The block of a height. Raises PolicyError FF-APP-271."""
    found = asked(ask, queries.GetBlocks(height), queries.BlocksReply).blocks if height else ()
    if not found or found[0].header.height != height:
        raise nothing(f"block {height}")
    return found[0]


def tx(ask: Ask, words: Words) -> Form:
    """One transaction."""
    name = Hash(id_of(words, "id"))
    said = asked(ask, queries.GetTx(name), queries.TxReply)
    if said.height is None:
        raise nothing("a transaction of this id")
    held = block_at(ask, said.height)
    place = next(place for place, signed in enumerate(held.txs) if tx_id(signed) == name)
    return included(held, place, said.code)


def account(ask: Ask, words: Words) -> Form:
    """One account."""
    return {"account": row(ask, AccountRow.TABLE, id_of(words, "key"))}


def nodes(ask: Ask, words: Words) -> Form:
    """Nodes by row index; those that left, too."""
    return listed(ask, NodeRow.TABLE, "nodes", words)


def node(ask: Ask, words: Words) -> Form:
    """One node."""
    return {"node": row(ask, NodeRow.TABLE, id_of(words, "key"))}


def node_leases(ask: Ask, words: Words) -> Form:
    """The leases of one node."""
    query = search_queries.GetNodeLeases(id_of(words, "key"), number_of(words, "from", 0))
    said = asked(ask, query, search_queries.RowsReply)
    return {"leases": [proved(each) for each in said.receipts], "next": said.next}


def job(ask: Ask, words: Words) -> Form:
    """One job with a page of its leases and a page of its recorded rounds."""
    name = Hash(id_of(words, "id"))
    first, since = number_of(words, "leases_from", 0), number_of(words, "rounds_from", 0)
    leases = asked(ask, queries.GetLeases(name), queries.LeasesReply).leases
    held = row(ask, JobRow.TABLE, name)
    rounds = held["row"]["round"]
    return {
        "job": held,
        "leases": rows(ask, LeaseRow.TABLE, (lease.key for lease in leases[first : first + PAGE])),
        "next_lease": first + PAGE if first + PAGE < len(leases) else None,
        "rounds": rows(ask, EpochRow.TABLE, (epoch_key(name, n) for n in range(since, min(since + PAGE, rounds)))),
        "next_round": since + PAGE if since + PAGE < rounds else None,
    }


def life(ask: Ask, words: Words) -> Form:
    """The transactions that name a job, in blocks behind a height."""
    name = Hash(id_of(words, "id"))
    said = asked(ask, search_queries.GetJobTxs(name, number_of(words, "from", 0)), search_queries.JobTxsReply)
    found = []
    for height, place in said.places:
        held = block_at(ask, height)
        code = asked(ask, queries.GetTx(tx_id(held.txs[place])), queries.TxReply).code
        found.append(included(held, place, code))
    return {"transactions": found, "height": said.height, "head": said.head}


def steps(ask: Ask, words: Words) -> Form:
    """What leads from one epoch's committee to the next, from an epoch on."""
    said = asked(ask, queries.GetSteps(number_of(words, "from", 0)), queries.StepsReply)
    return {"steps": [proved(each) for each in said.steps]}


def validators(ask: Ask, words: Words) -> Form:
    """The committee of the newest block, and a page of all who bonded a stake for a seat."""
    epoch = asked(ask, queries.GetHead(), queries.HeadReply).header.epoch
    return {
        "committee": row(ask, CommitteeRow.TABLE, count_key(epoch)),
        **listed(ask, ValidatorRow.TABLE, "validators", words),
    }


def motions(ask: Ask, words: Words) -> Form:
    """What was moved, and what became of it."""
    return listed(ask, MotionRow.TABLE, "motions", words)


def committee(ask: Ask, words: Words) -> Form:
    """The committee of an epoch."""
    return {"committee": row(ask, CommitteeRow.TABLE, count_key(number_of(words, "epoch", 0)))}


def params(ask: Ask, _: Words) -> Form:
    """The parameters of the newest block."""
    version = validators(ask, {})["committee"]["row"]["params"]
    return {"params": row(ask, ParamsRow.TABLE, count_key(version))}


def receipt(ask: Ask, words: Words) -> Form:
    """The proof of one row of any table."""
    table = words["table"]
    if table not in KINDS:
        raise nothing(f"a table {table[:20]!r}")
    return row(ask, table, id_of(words, "key", least=1, most=4 * ID_BYTES))


def find(ask: Ask, words: Words) -> Form:
    """Names that begin with some hexadecimal digits."""
    digits = words["digits"].lower()
    if not LEAST_DIGITS <= len(digits) <= 2 * ID_BYTES or not set(digits) <= set("0123456789abcdef"):
        raise wrong("digits", f"{LEAST_DIGITS} to {2 * ID_BYTES} hexadecimal digits")
    said = asked(ask, search_queries.GetNames(digits), search_queries.NamesReply)
    return {"found": [{"where": each.where, "name": each.name.hex()} for each in said.found], "is_all": said.is_all}


def listed(ask: Ask, table: str, name: str, words: Words) -> Form:
    """A page of one table."""
    said = asked(ask, search_queries.GetRows(table, number_of(words, "from", 0)), search_queries.RowsReply)
    return {name: [proved(each) for each in said.receipts], "next": said.next}


def row(ask: Ask, table: str, key: bytes) -> Form:
    """One row. Raises PolicyError FF-APP-271."""
    held = asked(ask, queries.GetReceipt(table, key), queries.ReceiptReply).receipt
    if held is None:
        raise nothing(f"a row of {table} under this key")
    return proved(held)


def rows(ask: Ask, table: str, keys: Iterable[bytes]) -> list[Form]:
    """Rows that are there."""
    return [row(ask, table, key) for key in keys]


def number_of(words: Words, name: str, default: int) -> int:
    """A whole number of a path or query. Raises UsageError FF-APP-272."""
    text = words.get(name, str(default))
    if not text.isascii() or not text.isdigit() or len(text) > 15:
        raise wrong(name, "a whole number of at most 15 digits")
    return int(text)


def check_range(name: str, value: int, least: int, most: int) -> None:
    """Raises UsageError FF-APP-272."""
    if not least <= value <= most:
        raise wrong(name, f"{least} to {most}")


def id_of(words: Words, name: str, least: int = ID_BYTES, most: int = ID_BYTES) -> PeerId:
    """Bytes that are written as hexadecimal digits. Raises UsageError FF-APP-272."""
    text = words[name]
    if not set(text) <= set("0123456789abcdef") or len(text) % 2 or not least <= len(text) // 2 <= most:
        raise wrong(name, f"{2 * least} lower-case hexadecimal digits")
    return PeerId(bytes.fromhex(text))


def wrong(name: str, wanted: str) -> UsageError:
    """What a word of a request is not."""
    return UsageError(
        "FF-APP-272",
        f"{name!r} is not what it must be",
        cause=f"it is {wanted}",
        hint="/v1/openapi.json says what each path takes",
    )


def nothing(what: str) -> PolicyError:
    """What the ledger does not hold. The word of this source alone: no proof of it can be made."""
    return PolicyError(
        "FF-APP-271",
        f"the ledger does not hold {what}",
        cause="a dense tree cannot prove absence: this is the word of this source alone",
        hint="ask a second source, or wait for the next block",
    )
