"""What one validator of the ledger carries: transactions, operations, and how soon it is back.

    python bench/ledger.py [--quick] [--cases PREFIX ...] [--out FILE]

The counting rule: one transaction is signed by its own sender, arrives as bytes, is read, judged (form, signature),
executed, under the state root and in SQLite with synchronous=FULL before it counts. Operations are told apart and never
called transactions. A validator that follows is measured: full blocks (4096 transactions, or 2 MiB) arrive as bytes and
are executed, compared with their headers and stored; votes and sockets are not in it. "a core" is a second of
processor (every thread of the process, the kernel's work included), not of the clock, because a shared machine's clock
says what its neighbours do. 100,000 accounts, of which each block touches some 8,000 at random; medians of the blocks.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Final, NamedTuple

import ed25519_zebra
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from reporting import Row, at_least, at_most, load, show, told

from farflung.core.codec import decode, encode
from farflung.core.crypto import NS_TX, digest, local_key
from farflung.core.ids import PeerId
from farflung.core.limits import BLOCK_BYTES, BLOCK_FRAME_BYTES, BLOCK_TXS, TX_BYTES
from farflung.ledger import transactions as ledger_tx
from farflung.ledger.block import LOGICAL_MS, Genesis, read_block
from farflung.ledger.block_execution import execute
from farflung.ledger.chain import Chain
from farflung.ledger.io.ledger_store import LedgerStore
from farflung.ledger.io.signature_pool import Answer, SignaturePool
from farflung.ledger.mempool import CheckedTxCache
from farflung.ledger.rules.accounts import unsound
from farflung.ledger.stateless_checks import TRUSTED, UNJUDGED, Stamps

NOTARY: Final = local_key(1, "notary")
CHUNK: Final = 256  # transactions that a worker judges at a time
WORKERS: Final = 1  # and the validator's own process: two cores
TICKS: Final = os.sysconf("SC_CLK_TCK")
MANY: Final = 32  # operations of a large transaction


class Work(NamedTuple):
    """A genesis, and full blocks on top of it as they arrive."""

    genesis: Genesis
    blocks: list[bytes]
    txs: int
    ops: int


def work(accounts: int, ops: int, count: int) -> Work:
    """Blocks of transfers to accounts drawn at random, by as many senders as a block has transactions."""
    draw = random.Random(1)
    senders = [local_key(1, "sender", number) for number in range(BLOCK_TXS)]
    owners = [key.public for key in senders]
    owners += [PeerId(draw.randbytes(32)) for _ in range(accounts - len(owners))]
    genesis = Genesis("bench", 0, tuple((owner, 10**9) for owner in owners), (NOTARY.public,))
    chain, blocks = Chain(genesis, NOTARY), list[bytes]()
    like = ledger_tx.Transfer(owners[0], 100)
    size = len(encode(ledger_tx.sign_tx(NOTARY, ledger_tx.make_tx(chain.id, owners[0], 99, *[like] * ops))))
    full = min(BLOCK_TXS, (BLOCK_BYTES - BLOCK_FRAME_BYTES) // size)
    for nonce in range(count):
        txs = [
            ledger_tx.sign_tx(
                key,
                ledger_tx.make_tx(
                    chain.id, key.public, nonce, *(ledger_tx.Transfer(draw.choice(owners), 100) for _ in range(ops))
                ),
            )
            for key in senders[:full]
        ]
        block, _ = chain.propose(txs, chain.head.time + LOGICAL_MS)
        if len(block.txs) < full:
            raise RuntimeError("a block that is not full says nothing")
        chain.adopt(block)
        blocks.append(encode(block))
    return Work(genesis, blocks, full, full * ops)


class Follower:
    """A validator that somebody else's blocks arrive at."""

    def __init__(self, folder: str, genesis: Genesis) -> None:
        self.store = LedgerStore.open(Path(folder) / "chain.db", genesis)
        self.chain = self.store.load()

    def take(self, data: bytes, judged: Stamps) -> None:
        """Reads, judges, executes and stores one block."""
        block = read_block(data)
        self.chain.hold(execute(self.chain.tip, block.header, block.txs, judged=judged))
        self.store.adopt(self.chain, (block,))


def core_seconds(given: Work, judged: Stamps) -> float:
    """Processor seconds a block; the first block warms up."""
    spent: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        follower = Follower(folder, given.genesis)
        for data in given.blocks:
            gc.collect()
            before = time.process_time()
            follower.take(data, judged)
            spent.append(time.process_time() - before)
        follower.store.close()
    return statistics.median(spent[1:] or spent)


def single(quick: bool) -> Iterator[Row]:
    """One operation a transaction, one core."""
    given = work(10_000 if quick else 100_000, 1, 2 if quick else 6)
    rule = "signed, read, judged, executed, under the root, in SQLite (FULL); a second of processor"
    yield at_least("single, one core", given.txs / core_seconds(given, UNJUDGED), "tx/s", 6000, rule)
    rest = core_seconds(given, TRUSTED)
    yield told("single, judged elsewhere", given.txs / rest, "tx/s", "the same without form and signature")


def many(quick: bool) -> Iterator[Row]:
    """32 operations a transaction, one core."""
    given = work(10_000 if quick else 100_000, MANY, 2 if quick else 6)
    seconds = core_seconds(given, UNJUDGED)
    rule = f"operations, {MANY} under each signature, blocks of {given.txs}; all else as `single`"
    yield at_least("many, one core", given.ops / seconds, "operations/s", 50_000, rule)
    yield told("many, transactions", given.txs / seconds, "tx/s", "the same seconds")


def processor_of(number: int) -> float:
    """Seconds of processor that another process has had."""
    fields = Path(f"/proc/{number}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def workers(quick: bool) -> Iterator[Row]:
    """Signatures in worker processes: a block is judged while the one before it is executed."""
    given = work(10_000 if quick else 100_000, 1, 3 if quick else 10)
    sent = [[encode(signed) for signed in read_block(data).txs] for data in given.blocks]
    with tempfile.TemporaryDirectory() as folder, SignaturePool(WORKERS) as judges:
        follower = Follower(folder, given.genesis)
        verdicts = CheckedTxCache(lambda signed: unsound(follower.chain.id, signed))
        for _ in range(WORKERS):  # all processes are up
            [answer.result() for answer in [judges.ask(sent[0][:CHUNK]) for _ in range(8)]]
        pids = judges.pids
        others, ours, clock = sum(map(processor_of, pids)), time.process_time(), time.perf_counter()
        asked = asking(judges, sent[0])
        for number, data in enumerate(given.blocks):
            known, asked = asked, asking(judges, sent[number + 1]) if number + 1 < len(sent) else []
            learn(verdicts, sent[number], known)
            follower.take(data, verdicts)
        clock, ours = time.perf_counter() - clock, time.process_time() - ours
        others = sum(map(processor_of, pids)) - others
        follower.store.close()
    count, cores = given.txs * len(given.blocks), len(os.sched_getaffinity(0))
    rule = f"by the clock, {cores} cores, own process and {WORKERS} worker; each transaction read twice (pool, block)"
    yield at_least("workers, by the clock", count / clock, "tx/s", 12_000, rule)
    bound = count / max(ours, (ours + others) / 2)
    yield at_least("workers, of 2 cores", bound, "tx/s", 12_000, "the same run, computed: 2 s of processor a second")
    yield told("workers, own process", ours / count * 1e6, "us/tx", "processor; what must happen in order")
    yield told("workers, judging", others / count * 1e6, "us/tx", "processor; form and signature, all workers")


def asking(judges: SignaturePool, txs: list[bytes]) -> list[Future[Answer]]:
    """Hands a block's transactions out."""
    return [judges.ask(txs[start : start + CHUNK]) for start in range(0, len(txs), CHUNK)]


def learn(verdicts: CheckedTxCache, txs: list[bytes], answers: list[Future[Answer]]) -> None:
    """What a pool does with what was found sound: reads it, and remembers that."""
    flags = [flag for answer in answers for flag in answer.result(60)]
    for data, is_sound in zip(txs, flags, strict=True):
        if is_sound:
            signed = decode(data, ledger_tx.SignedTx, TX_BYTES)
            verdicts.learn(ledger_tx.tx_id(signed), signed)


def restart(quick: bool) -> Iterator[Row]:
    """From a file that was closed to a chain that can go on."""
    accounts = 10_000 if quick else 100_000
    given = work(accounts, 1, 2 if quick else 6)
    with tempfile.TemporaryDirectory() as folder:
        follower = Follower(folder, given.genesis)
        for data in given.blocks:
            follower.take(data, TRUSTED)
        follower.store.close()
        spent: list[float] = []
        for _ in range(3):
            gc.collect()
            before = time.process_time()
            again = Follower(folder, given.genesis)
            spent.append(time.process_time() - before)
            if again.chain.state.root != follower.chain.state.root:
                raise RuntimeError("another state")
            again.store.close()
    seconds = statistics.median(spent) * 100_000 / accounts
    against = f"processor; all rows read, their root compared, the last {len(given.blocks)} full blocks looked at"
    yield at_most("restart, 100,000 accounts", seconds, "s", 2, against)


def yardsticks(quick: bool) -> Iterator[Row]:
    """What a signature costs alone, and what storing costs alone."""
    key, count = local_key(1, "anybody"), 500 if quick else 5000
    messages = [digest(NS_TX, number.to_bytes(8, "little")) for number in range(count)]
    signatures = [bytes(key.private.sign(message)) for message in messages]
    public = Ed25519PublicKey.from_public_bytes(key.public)
    pairs = list(zip(signatures, messages, strict=True))
    zebra = core_time(lambda: [ed25519_zebra.ed_verify(s, m, key.public) for s, m in pairs])
    openssl = core_time(lambda: [public.verify(s, m) for s, m in pairs])
    yield told("yardstick, ed25519-zebra", count / zebra, "signatures/s", "verified alone: our ceiling a core")
    yield told("yardstick, OpenSSL", count / openssl, "signatures/s", "`cryptography`, verified alone; another rule")
    plain = "unsigned transfers, SQLite alone: 4096 a transaction, FULL, two balances and a line each; no root or proof"
    yield told("yardstick, SQLite", BLOCK_TXS / plain_seconds(quick), "transfers/s", plain)


def core_time(run: Callable[[], object]) -> float:
    """Processor seconds of a call."""
    before = time.process_time()
    run()
    return time.process_time() - before


def plain_seconds(quick: bool) -> float:
    """A block of transfers between rows of a plain table, on the disk and with the settings of the ledger's file."""
    draw, accounts = random.Random(1), 10_000 if quick else 100_000
    owners = [draw.randbytes(32) for _ in range(accounts)]
    with tempfile.TemporaryDirectory() as folder:
        connection = sqlite3.connect(Path(folder) / "plain.db", isolation_level=None)
        for setting in ("locking_mode = EXCLUSIVE", "journal_mode = TRUNCATE", "synchronous = FULL"):
            connection.execute(f"PRAGMA {setting}")
        connection.execute("CREATE TABLE accounts (owner BLOB PRIMARY KEY, balance INTEGER) WITHOUT ROWID")
        connection.execute("CREATE TABLE transfers (number INTEGER PRIMARY KEY, payer BLOB, payee BLOB, sum INTEGER)")
        connection.execute("BEGIN")
        connection.executemany("INSERT INTO accounts VALUES (?, 1000000000)", [(owner,) for owner in owners])
        connection.execute("COMMIT")
        spent = [core_time(lambda: plain_block(connection, draw, owners)) for _ in range(2 if quick else 6)]
        connection.close()
    return statistics.median(spent[1:])


def plain_block(connection: sqlite3.Connection, draw: random.Random, owners: list[bytes]) -> None:
    """4096 transfers in one transaction, synced."""
    made = [(payer, draw.choice(owners), 100) for payer in owners[:BLOCK_TXS]]
    connection.execute("BEGIN IMMEDIATE")
    take = "UPDATE accounts SET balance = balance - ? WHERE owner = ? AND balance >= ?"
    connection.executemany(take, [(amount, payer, amount) for payer, _, amount in made])
    give = "UPDATE accounts SET balance = balance + ? WHERE owner = ?"
    connection.executemany(give, [(amount, payee) for _, payee, amount in made])
    connection.executemany("INSERT INTO transfers (payer, payee, sum) VALUES (?, ?, ?)", made)
    connection.execute("COMMIT")


CASES: Final[dict[str, Callable[[bool], Iterator[Row]]]] = {
    "yardsticks": yardsticks,
    "single": single,
    "many": many,
    "workers": workers,
    "restart": restart,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="10,000 accounts, two or three blocks: some 20 s")
    parser.add_argument("--cases", nargs="*", metavar="PREFIX", help=f"only these of: {' '.join(CASES)}")
    parser.add_argument("--out", type=Path, help="a results file to add to")
    asked = parser.parse_args()
    prefixes, before = tuple(asked.cases or ("",)), load()
    if unknown := [one for one in prefixes if not any(name.startswith(one) for name in CASES)]:
        parser.error(f"no case {unknown[0]!r}; there are: {', '.join(CASES)}")
    for name, rows in CASES.items():
        if name.startswith(prefixes):
            for row in rows(asked.quick):
                show("ledger", row, before, asked.out)


if __name__ == "__main__":
    main()
