"""A ledger with some chunks of rows, servers of its snapshot, and who fetches it."""

from __future__ import annotations

from pathlib import Path

from farflung.core.crypto import local_key
from farflung.ledger import light_client, transactions
from farflung.ledger.block import LOGICAL_MS, Genesis
from farflung.ledger.chain import Chain
from farflung.ledger.io.ledger_store import LedgerStore
from farflung.ledger.io.snapshot_download import SnapshotDownload
from farflung.ledger.ledger_state import LedgerState
from farflung.ledger.snapshot import Rows, SnapshotCache, SnapshotManifest
from farflung.ledger.table_rows import AccountRow

NOTARY = local_key(5, "notary")
OWNERS = tuple(local_key(5, "owner", number) for number in range(10))
GENESIS = Genesis("snapshots", 0, tuple((key.public, 10_000) for key in OWNERS), (NOTARY.public,))


def paid(chain: Chain, number: int, amount: int) -> transactions.SignedTx:
    """A payment from one owner to the next."""
    sender, receiver = OWNERS[number % 10], OWNERS[(number + 1) % 10]
    row = chain.state.find(AccountRow, sender.public)
    assert row is not None
    payment = transactions.Transfer(receiver.public, amount)
    return transactions.sign_tx(sender, transactions.make_tx(chain.id, sender.public, row.nonce, payment))


def grown(blocks: int = 4) -> Chain:
    chain = Chain(GENESIS, NOTARY)
    for number in range(blocks):
        block, _ = chain.propose([paid(chain, number, 5 + number)], chain.head.time + LOGICAL_MS)
        chain.adopt(block)
    return chain


def trust(manifest: SnapshotManifest) -> light_client.TrustedCommittee:
    """Who knows the genesis, and whom its one committee convinces."""
    assert manifest.header.epoch <= 1
    return light_client.trust_in(GENESIS)


class Honest:
    """Serves what its chain holds."""

    def __init__(self, chain: Chain) -> None:
        self.chain, self.snapshots, self.sent = chain, SnapshotCache(), 0

    def manifest(self) -> SnapshotManifest:
        chain = self.chain
        found = self.snapshots.manifest(chain.state, chain.head, chain.certificate)
        assert found is not None
        return found

    def chunk(self, height: int, table: str, number: int) -> Rows | None:
        self.sent += 1
        return self.snapshots.chunk(height, table, number)


def incoming(folder: Path, chain: Chain | None = None) -> SnapshotDownload:
    """What has come into a folder so far; with `chain`, all of its snapshot is to come."""
    folder.mkdir(exist_ok=True)
    made = SnapshotDownload(folder / "ledger.db", GENESIS)
    if chain is not None:
        manifest = Honest(chain).manifest()
        made.begin(manifest, ())
    return made


def fetched(folder: Path, server: Honest) -> Chain:
    """The chain that follows from a server's snapshot alone; LookupError when it has no chunk for us."""
    held, store = incoming(folder), LedgerStore.open(folder / "ledger.db", GENESIS)
    try:
        manifest = server.manifest()
        held.begin(manifest, ())
        for table, number in held.missing():
            rows = server.chunk(manifest.header.height, table, number)
            if rows is None:
                raise LookupError(table, number)
            held.put(table, number, rows)
        held.replace(store)
    finally:
        store.close()
        held.close()
    return reloaded(folder)


def reloaded(folder: Path) -> Chain:
    store = LedgerStore.open(folder / "ledger.db", GENESIS)
    try:
        return store.load(NOTARY)
    finally:
        store.close()


def contents(state: LedgerState) -> dict[str, object]:
    """All that a state holds, its indices too, in a form that can be compared."""
    return {
        name: (list(table.rows), [table.place(row.key) for row in table.rows], table.tree.root, table.soonest)
        for name, table in state.tables.items()
    }
