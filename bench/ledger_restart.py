"""How long a validator takes to open its ledger: `bench/ledger_restart.py [--accounts 100000 ...] [--blocks 300]`.

The ledger has so many accounts since genesis and so many blocks behind it. Opening reads every row, builds the trees,
compares the state root, and checks the certificate and the last blocks; it executes no block. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

from reporting import machine

from farflung.core.crypto import NS_SPEC, digest, local_key
from farflung.core.ids import PeerId
from farflung.ledger.block import LOGICAL_MS, Genesis
from farflung.ledger.io.store import Store

NOTARY = local_key(1, "notary")
GOAL_SECONDS = 2.0  # per 100,000 accounts


def made(path: Path, accounts: int, blocks: int) -> Genesis:
    """A ledger of so many accounts on disk."""
    owners = (PeerId(digest(NS_SPEC, number.to_bytes(8, "little"))) for number in range(accounts))
    genesis = Genesis("restart", 0, tuple((owner, 1_000_000) for owner in owners), (NOTARY.public,))
    store = Store.open(path, genesis)
    chain = store.load(NOTARY)
    for _ in range(blocks):
        store.commit(chain, (), chain.head.time + LOGICAL_MS)
    store.close()
    return genesis


def opened(path: Path, genesis: Genesis) -> tuple[float, float]:
    """Seconds of processor and of the clock until the chain can go on."""
    processor, clock = time.process_time(), time.perf_counter()
    store = Store.open(path, genesis)
    store.load(NOTARY)
    spent = time.process_time() - processor, time.perf_counter() - clock
    store.close()
    return spent


def measured(accounts: int, blocks: int, rounds: int) -> dict[str, object]:
    """The median of some rounds."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "chain.db"
        genesis = made(path, accounts, blocks)
        found = [opened(path, genesis) for _ in range(rounds)]
        size = path.stat().st_size
    processor, clock = (statistics.median(each) for each in zip(*found, strict=True))
    return {
        "accounts": accounts,
        "blocks": blocks,
        "bytes": size,
        "processor_seconds": round(processor, 3),
        "seconds": round(clock, 3),
        "seconds_per_100000_accounts": round(clock * 100_000 / accounts, 3),
        "goal_seconds_per_100000_accounts": GOAL_SECONDS,
    }


def main() -> None:
    """Prints one JSON object."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--accounts", type=int, nargs="+", default=[10_000, 100_000])
    asked.add_argument("--blocks", type=int, default=300)
    asked.add_argument("--rounds", type=int, default=5)
    given = asked.parse_args()
    cases = [measured(accounts, given.blocks, given.rounds) for accounts in given.accounts]
    print(json.dumps({"machine": machine(), "restart": cases}, indent=1))


if __name__ == "__main__":
    main()
