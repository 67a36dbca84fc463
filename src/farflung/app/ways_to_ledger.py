"""How a process that a supervisor started reaches its ledger: one validator, or any of several."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from farflung.app.leash import Report
from farflung.app.panel import Reach
from farflung.core.errors import NetworkError
from farflung.core.ids import PeerId
from farflung.net.io.connection import Connection
from farflung.net.io.endpoint import Endpoint


def validators_in(ledger: Report) -> list[tuple[PeerId, str, int]]:
    """Key, host and port of each validator that a configuration names."""
    named = [ledger, *ledger.get("others", ())]
    return [(PeerId(bytes.fromhex(one["peer"])), str(one["host"]), int(one["port"])) for one in named]


def reaches_of(validators: Iterable[tuple[PeerId, str, int]], endpoint: Endpoint) -> list[Reach]:
    """A way to each of them."""
    return [_reach(endpoint, *one) for one in validators]


def _reach(endpoint: Endpoint, peer: PeerId, host: str, port: int) -> Reach:
    return lambda: endpoint.dial(peer, host, port)


def any_of(reaches: Sequence[Reach]) -> Reach:
    """A way to the first that can be reached. It raises what the last one raised."""

    async def reach() -> Connection:
        for each in reaches[:-1]:
            try:
                return await each()
            except NetworkError:
                continue
        return await reaches[-1]()

    return reach
