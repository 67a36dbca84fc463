"""A small ledger that readers look into, served."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from farflung.ledger import queries
from farflung.ledger.chain import Chain
from farflung.peers.ledger_http.metrics import LedgerMetrics
from farflung.peers.ledger_http.rate_limit import AddressRateLimiter
from farflung.peers.ledger_http.server import LedgerHttpServer


@contextmanager
def served(chain: Chain, rates: AddressRateLimiter | None = None, **options: Any) -> Iterator[str]:
    """The URL of a listener on loopback that answers from `chain`, in a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    explorer = LedgerHttpServer(partial(queries.reply, chain), LedgerMetrics(), rates=rates, **options)
    try:
        port = asyncio.run_coroutine_threadsafe(explorer.start(), loop).result(10)
        yield f"http://127.0.0.1:{port}"
        asyncio.run_coroutine_threadsafe(explorer.close(), loop).result(10)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()
