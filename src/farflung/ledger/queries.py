"""Defines the queries to a ledger over the wire, and their replies. Reading is a pure function of the chain.

`SubmitRequest` is the one request that writes; the validator's shell answers it (ledger.io.ledger_store), with one
result for each transaction.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from farflung.core import limits
from farflung.core.codec import Wire, decode, encode
from farflung.core.errors import PolicyError, VerificationError
from farflung.core.ids import Hash, PeerId
from farflung.ledger.block import Block, BlockHeader, Genesis
from farflung.ledger.chain import Chain
from farflung.ledger.ledger_state import exclusion_of, leases_of
from farflung.ledger.params import LedgerParams
from farflung.ledger.receipt_checks import LedgerReceipt, prove
from farflung.ledger.search_queries import (
    GetJobTxs,
    GetNames,
    GetNodeLeases,
    GetRows,
    JobTxsReply,
    NamesReply,
    RowsReply,
    job_txs_reply,
    names_reply,
    node_leases_reply,
    rows_reply,
)
from farflung.ledger.snapshot import GetSnapshot, GetSnapshotChunk, SnapshotChunkReply, SnapshotReply
from farflung.ledger.table_rows import AccountRow, JobRow, KeyRow, LeaseRow, NodeRow, NodeState
from farflung.ledger.transactions import SignedTx
from farflung.ledger.tx_results import Result
from farflung.ledger.validators import CommitteeRow
from farflung.ledger.votes import QuorumCertificate

PAGE = 256  # rows or blocks in one answer, at most
STEPS = 128  # committees in one answer, at most
PRUNED = "FF-LEDG-330"
_PAGE_BYTES = limits.CONTROL_BYTES // 2


class GetHead(Wire, frozen=True, tag="head"):
    """The newest header."""


class GetCommittee(Wire, frozen=True, tag="reign"):
    """Who certifies the next block, and by which parameters."""


class GetAccount(Wire, frozen=True, tag="account"):
    """Balance and next nonce of one key."""

    owner: PeerId


class GetNodes(Wire, frozen=True, tag="nodes"):
    """Nodes that may be hired: active and not excluded, from row index `start`."""

    start: int = 0


class GetLeases(Wire, frozen=True, tag="leases"):
    """The leases of one job, in the order in which they were made."""

    job: Hash


class GetReceipt(Wire, frozen=True, tag="receipt"):
    """Proof of one row; keys as in ledger.table_rows."""

    table: str
    key: bytes


class GetSteps(Wire, frozen=True, tag="steps"):
    """What leads from the committee of `epoch` to later ones."""

    epoch: int = 0


class GetBlocks(Wire, frozen=True, tag="blocks"):
    """Blocks from `height` on, as many as fit."""

    height: int


class GetTx(Wire, frozen=True, tag="tx"):
    """Where a transaction is."""

    tx: Hash


class GetKeys(Wire, frozen=True, tag="keys"):
    """Node keys that were certified or revoked in blocks behind `height`, or where the last answer says to go on."""

    height: int = 0


class GetGenesis(Wire, frozen=True, tag="genesis"):
    """What the chain began with."""


class SubmitRequest(Wire, frozen=True, tag="submit"):
    """Put these into a block."""

    txs: tuple[SignedTx, ...]


Read = (
    GetHead
    | GetCommittee
    | GetSnapshot
    | GetSnapshotChunk
    | GetAccount
    | GetNodes
    | GetLeases
    | GetReceipt
    | GetSteps
    | GetBlocks
    | GetTx
    | GetRows
    | GetNodeLeases
    | GetNames
    | GetJobTxs
    | GetKeys
    | GetGenesis
)
Query = Read | SubmitRequest


class HeadReply(Wire, frozen=True, tag="head"):
    """The newest header with its certificate (none at height 0)."""

    header: BlockHeader
    certificate: QuorumCertificate


class CommitteeReply(Wire, frozen=True, tag="reign"):
    """The committee and the parameters of the next block, by the word of who says it: GetSteps brings proof."""

    committee: CommitteeRow
    params: LedgerParams


class AccountReply(Wire, frozen=True, tag="account"):
    """The account; all zero where there is none yet."""

    account: AccountRow


class NodesReply(Wire, frozen=True, tag="nodes"):
    """Up to PAGE nodes; `next` is where to go on, None at the end."""

    nodes: tuple[NodeRow, ...]
    next: int | None


class LeasesReply(Wire, frozen=True, tag="leases"):
    """All leases of the job; empty for an unknown one."""

    leases: tuple[LeaseRow, ...]


class ReceiptReply(Wire, frozen=True, tag="receipt"):
    """The receipt, or None."""

    receipt: LedgerReceipt | None


class StepsReply(Wire, frozen=True, tag="steps"):
    """Receipts of the committees of the epochs that follow, in order, as many as fit; empty at the newest."""

    steps: tuple[LedgerReceipt, ...]


class BlocksReply(Wire, frozen=True, tag="blocks"):
    """Blocks in order; empty behind the head."""

    blocks: tuple[Block, ...]


class TxReply(Wire, frozen=True, tag="tx"):
    """The height of the transaction's block, or None; `code` is empty, or says why it failed there."""

    height: int | None
    code: str = ""


class KeysReply(Wire, frozen=True, tag="keys"):
    """Rows as they are at the head, of all accounts that changed theirs in blocks up to `height`: ask on from there.

    `head` is the newest height; when both are the same, nothing is left to ask.
    """

    keys: tuple[KeyRow, ...]
    height: int
    head: int


class GenesisReply(Wire, frozen=True, tag="genesis"):
    """The genesis: its hash is the chain's id."""

    genesis: Genesis


class SubmitReply(Wire, frozen=True, tag="submit"):
    """One result for each transaction handed in, in the same order."""

    results: tuple[Result, ...]


class QueryErrorReply(Wire, frozen=True, tag="refused"):
    """The query could not be answered."""

    code: str
    message: str
    cause: str = ""
    hint: str = ""


Reply = (
    HeadReply
    | CommitteeReply
    | SnapshotReply
    | SnapshotChunkReply
    | AccountReply
    | NodesReply
    | LeasesReply
    | ReceiptReply
    | StepsReply
    | BlocksReply
    | TxReply
    | RowsReply
    | NamesReply
    | JobTxsReply
    | KeysReply
    | GenesisReply
    | SubmitReply
    | QueryErrorReply
)


def read_query(data: bytes) -> Query:
    """Reads a query from elsewhere; raises ProtocolError FF-CORE-020..023."""
    return decode(data, cast(type[Query], Query), limits.CONTROL_BYTES)


def read_reply(data: bytes) -> Reply:
    """Reads an answer from elsewhere; raises ProtocolError FF-CORE-020..023."""
    return decode(data, cast(type[Reply], Reply), limits.CONTROL_BYTES)


def reply(chain: Chain, query: Read) -> Reply:
    """What the chain says at its head. Never raises for what a stranger can ask."""
    state = chain.state
    match query:
        case GetHead():
            return HeadReply(chain.head, chain.certificate)
        case GetCommittee():
            return CommitteeReply(state.committee, state.params)
        case GetAccount(owner):
            return AccountReply(state.find(AccountRow, owner) or AccountRow(owner))
        case GetNodes(start):
            return _nodes(chain, start)
        case GetLeases(job):
            row = state.find(JobRow, job)
            return LeasesReply(tuple(leases_of(state, row))[::-1] if row else ())
        case GetReceipt(table, key):
            return _receipt(chain, table, key)
        case GetSteps(epoch):
            return StepsReply(tuple(chain.history.steps(min(max(0, epoch), state.committee.epoch), STEPS)))
        case GetBlocks(height):
            return _blocks(chain, height)
        case GetTx(tx):
            return TxReply(chain.find(tx), chain.code_of(tx))
        case GetRows(table, start):
            return rows_reply(chain, table, start)
        case GetNodeLeases(node, start):
            return node_leases_reply(chain, node, start)
        case GetNames(digits):
            return names_reply(chain, digits)
        case GetJobTxs(job, height):
            return job_txs_reply(chain, job, height)
        case GetKeys(height):
            return _keys(chain, height)
        case GetGenesis():
            return GenesisReply(chain.genesis)
        case GetSnapshot():
            return SnapshotReply(chain.snapshots.manifest(state, chain.head, chain.certificate))
        case GetSnapshotChunk(height, table, number):
            return SnapshotChunkReply(chain.snapshots.chunk(height, table, number))


def _nodes(chain: Chain, start: int) -> NodesReply:
    state = chain.state
    rows = state.rows(NodeRow)
    found: list[NodeRow] = []
    for place in range(max(0, start), len(rows)):
        if len(found) == PAGE:
            return NodesReply(tuple(found), place)
        if rows[place].state == NodeState.ACTIVE and not exclusion_of(state, rows[place].node, state.time):
            found.append(rows[place])
    return NodesReply(tuple(found), None)


def _receipt(chain: Chain, table: str, key: bytes) -> ReceiptReply:
    try:
        return ReceiptReply(prove(chain, table, key))
    except (PolicyError, VerificationError):
        return ReceiptReply(None)


def _keys(chain: Chain, height: int) -> KeysReply:
    """Whole blocks until they name PAGE accounts; one block names at most BLOCK_TXS."""
    past, head = chain.history, chain.head.height
    if max(0, height) < past.keyed_from:
        return _all_keys(chain, height)
    most = PAGE + limits.BLOCK_TXS
    changes, last = past.keyed(min(max(0, height), head), most), head
    if len(changes) == most:  # the last block is perhaps not whole
        changes = [each for each in changes if each[0] < changes[-1][0]]
        last = changes[-1][0]
    senders: dict[PeerId, None] = {}
    for number, (block, sender) in enumerate(changes):
        if len(senders) >= PAGE and block > changes[number - 1][0]:
            return _keys_of(chain, senders, changes[number - 1][0])
        senders[sender] = None
    return _keys_of(chain, senders, last)


def _all_keys(chain: Chain, height: int) -> KeysReply:
    """A snapshot does not say when a row was changed: all rows, PAGE at a time from the last to the first.

    Behind page n is height -n; new rows go behind the last page, and are found from the snapshot's block on.
    """
    rows = chain.state.rows(KeyRow)
    page = min(-height, -(-len(rows) // PAGE)) if height < 0 else -(-len(rows) // PAGE)
    held = rows[max(0, page - 1) * PAGE : page * PAGE]
    return KeysReply(tuple(held), 1 - page if page > 1 else chain.history.keyed_from, chain.head.height)


def _keys_of(chain: Chain, senders: Iterable[PeerId], height: int) -> KeysReply:
    found = (chain.state.find(KeyRow, sender) for sender in senders)
    return KeysReply(tuple(row for row in found if row is not None), height, chain.head.height)


def _blocks(chain: Chain, height: int) -> BlocksReply | QueryErrorReply:
    """The block of `height` in any case, further ones while they fit into half of a control message."""
    first = min(max(1, height), chain.head.height + 1)
    if first < chain.history.first and first <= chain.head.height:
        return QueryErrorReply(
            PRUNED,
            f"block {first} is not kept",
            cause=f"this validator keeps transactions from block {chain.history.first} on",
            hint="begin from its snapshot, or ask a validator that keeps all blocks",
        )
    found: list[Block] = []
    room = _PAGE_BYTES
    for block in chain.history.blocks(first, PAGE):
        room -= len(encode(block))
        if found and room < 0:
            break
        found.append(block)
    return BlocksReply(tuple(found))
