"""How a validator that was away, or is new, begins: from a snapshot, where blocks are gone or too many."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from functools import partial

from farflung.app.ledger_client import serve_nothing
from farflung.app.panel import Panel
from farflung.app.validating import Setting
from farflung.app.ways_to_ledger import reaches_of
from farflung.core.crypto import SigningKey
from farflung.core.errors import NetworkError, VerificationError
from farflung.core.ids import ID_BYTES, PeerId
from farflung.ledger.io.joining import join
from farflung.net.counters import Counter
from farflung.net.io.endpoint import Endpoint


async def begin(setting: Setting, places: Mapping[PeerId, tuple[str, int]]) -> bool:
    """Before the validator's own files are open. Returns whether a snapshot took their place.

    That nobody answers, or that one lies, is no reason not to begin: one of them must not be able to prevent it. Raises
    RunError FF-LEDG-080 to -083 for the files.
    """
    endpoint = Endpoint(SigningKey(secrets.token_bytes(ID_BYTES)), serve_nothing, Counter())
    panel = Panel(reaches_of(((peer, *place) for peer, place in places.items()), endpoint))
    asks = [partial(panel.call, number) for number in range(len(panel))]
    try:
        return await join(asks, setting.folder / "chain.db", setting.genesis)
    except (NetworkError, VerificationError):
        return False
    finally:
        await endpoint.close()
