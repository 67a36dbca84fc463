"""Checks the whole content of a ledger file against itself. This is slow, and meant for a disk that is in doubt.

Opening a store looks at the rows, the last header and the last blocks. This looks at all headers, certificates and
transactions, and executes every block again where none was pruned.
"""

from __future__ import annotations

from collections.abc import Iterator

from farflung.core.errors import ProtocolError, VerificationError
from farflung.core.ids import PeerId
from farflung.ledger import light_client
from farflung.ledger.block import Block, BlockHeader, has_certificate, txs_root
from farflung.ledger.chain import Chain
from farflung.ledger.history import keyed_by
from farflung.ledger.io.ledger_store import LedgerStore
from farflung.ledger.io.sqlite_file import damaged
from farflung.ledger.row_receipt import LedgerReceipt
from farflung.ledger.transactions import tx_id
from farflung.ledger.votes import VoteKind

_PAGE = 64


def audit(store: LedgerStore, chain: Chain) -> int:
    """`chain`: as it was loaded from the store. Returns the number of blocks that were executed again.

    Raises RunError FF-LEDG-081.
    """
    try:
        _check_headers(store, chain)
        _check_index(store, chain)
        return _execute(store, chain) if store.first == 1 else 0
    except (ProtocolError, VerificationError) as error:
        raise damaged(store.path, f"{error.message}: {error.cause}") from error


def _steps(store: LedgerStore) -> Iterator[LedgerReceipt]:
    epoch = 0
    while page := store.steps(epoch, _PAGE):
        yield from page
        epoch += len(page)


def _check_headers(store: LedgerStore, chain: Chain) -> None:
    trust, steps = light_client.trust_in(chain.genesis), _steps(store)
    parent: BlockHeader | None = None
    for header, certificate in store.headers():
        while trust.epoch < header.epoch:
            trust = light_client.follow(trust, next(steps))
        follows = parent is None or (header.height, header.parent) == (parent.height + 1, parent.id)
        if not follows or not has_certificate(header, certificate, trust.committee):
            raise damaged(store.path, f"header {header.height} is not certified, or does not follow")
        parent = header
    if parent is not None and parent != chain.head:
        raise damaged(store.path, "the last header is not the chain's")


def _blocks(store: LedgerStore) -> Iterator[Block]:
    """All blocks that are whole, page by page."""
    height = store.first
    while page := tuple(store.blocks(height, _PAGE)):
        yield from page
        height += len(page)


def _check_index(store: LedgerStore, chain: Chain) -> None:
    keyed: list[tuple[int, PeerId]] = []
    count, height = 0, store.first
    for block in _blocks(store):
        if block.header.height != height or block.header.txs != txs_root(block.txs):
            raise damaged(store.path, f"the transactions of block {height} are not those of its header")
        for signed in block.txs:
            place = store.find(tx_id(signed))
            if place is None or place[0] != height:
                raise damaged(store.path, f"a transaction of block {height} is not found")
        keyed += [(height, account) for account in keyed_by(block.txs)]
        count, height = count + len(block.txs), height + 1
    if height != chain.head.height + 1 or count != store.count_txs():
        raise damaged(store.path, "blocks are missing, or transactions are found that no block holds")
    if keyed != list(store.keyed(store.first - 1, 1 << 62)):
        raise damaged(store.path, "the changes of node keys are not those of the blocks")


def _execute(store: LedgerStore, chain: Chain) -> int:
    again, waiting = Chain(chain.genesis, audits=True), list[Block]()
    for block in _blocks(store):
        waiting.append(block)
        if block.certificate.kind == VoteKind.FINALIZE:
            again.adopt_many(waiting)
            names = [tx_id(signed) for each in waiting for signed in each.txs]
            if any(store.find(name) != again.history.find(name) for name in names):
                raise damaged(store.path, f"what became of block {block.header.height} is not what it says")
            waiting.clear()
    if waiting or again.state.root != chain.state.root:
        raise damaged(store.path, "its rows are not those that its blocks lead to")
    if list(again.history.steps(0, 1 << 62)) != list(_steps(store)):
        raise damaged(store.path, "its committees are not those that its blocks lead to")
    return again.head.height
