"""A validator that also tells where its own process's time goes: `python ledger_stages.py VALIDATOR.TOML OUT`.

Runs `farflung ledger validator` with a clock around each stage, in seconds of its thread's processor; what a stage
calls that is a stage itself is counted there, not here. The clocks cost some microseconds a transaction.
"""

from __future__ import annotations

import functools
import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from farflung.app.cli.main import main
from farflung.ledger import block_execution, ledger_node, ledger_state, mempool, queries, votes
from farflung.ledger.io import ledger_store, votelog
from farflung.ledger.rules import accounts
from farflung.ledger.sdbft import replica_checks
from farflung.peers.validator import committee, send_queue

STAGES: Final[tuple[tuple[Any, str, str], ...]] = (
    (accounts, "is_signed", "signatures of transactions, in the own process"),
    (votes, "is_signed", "signatures of votes"),
    (committee, "read_message", "reading messages"),
    (queries, "read_query", "reading messages"),
    (committee, "encode", "writing messages"),
    (send_queue.PeerSendQueue, "put", "writing messages"),
    (block_execution, "apply_block", "executing"),
    (ledger_state.LedgerTable, "with_rows", "roots"),
    (block_execution, "txs_root", "roots"),
    (replica_checks, "txs_root", "roots"),
    (mempool.Mempool, "offer", "pool, taking in"),
    (mempool.Mempool, "take", "pool, for a block"),
    (mempool.Mempool, "settled", "pool, after a block"),
    (ledger_store.LedgerStore, "_append", "store"),
    (votelog.VoteLog, "append", "vote log"),
    (ledger_node.LedgerNode, "handle", "the rest of the node"),
    (ledger_node.LedgerNode, "submit", "the rest of the node"),
    (ledger_node.LedgerNode, "examined", "the rest of the node"),
)


class Clock:
    """Seconds of processor by stage."""

    def __init__(self) -> None:
        self.spent: defaultdict[str, float] = defaultdict(float)
        self._inner = [0.0]

    def around(self, stage: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """The call, with its own time noted."""

        @functools.wraps(call)
        def timed(*words: Any, **named: Any) -> Any:
            self._inner.append(0.0)
            begun = time.thread_time()
            try:
                return call(*words, **named)
            finally:
                took = time.thread_time() - begun
                self.spent[stage] += took - self._inner.pop()
                self._inner[-1] += took

        return timed


def serve(config: str, out: Path) -> None:
    """Until the process is told to end."""
    clock = Clock()
    for owner, name, stage in STAGES:
        setattr(owner, name, clock.around(stage, getattr(owner, name)))
    sys.argv = ["farflung", "ledger", "validator", config]
    try:
        main()
    finally:
        out.write_text(json.dumps({**clock.spent, "all": time.process_time()}))


if __name__ == "__main__":
    serve(sys.argv[1], Path(sys.argv[2]))
