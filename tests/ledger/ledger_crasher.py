"""Writes the history of `ledger_history` into the store named on the command line: a process to be killed."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(1, str(Path(__file__).parents[1] / "support"))

from ledger_history import batches, signed
from ledger_world import VALIDATOR, genesis

from farflung.ledger.block import LOGICAL_MS
from farflung.ledger.io.ledger_store import LedgerStore

store = LedgerStore.open(Path(sys.argv[1]), genesis())
chain = store.load(VALIDATOR)
for batch in batches()[chain.head.height :]:
    store.commit(chain, [signed(chain, key, op) for key, op in batch], chain.head.time + LOGICAL_MS)
store.close()
