"""Connects a process that a supervisor started to its ledger: one validator, or any of several."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from farflung.core.crypto import SigningKey
from farflung.core.errors import NetworkError
from farflung.core.events import WarningEvent
from farflung.core.ids import PeerId
from farflung.core.units import Seconds, format_seconds
from farflung.ledger.block import Genesis
from farflung.ledger.votes import is_quorum
from farflung.net.endpoint_records import EndpointAddress
from farflung.net.io.connection import Connection
from farflung.net.io.endpoint import Endpoint
from farflung.peers.ledger_client.client import LedgerClient
from farflung.peers.ledger_client.quorum_read import Reach
from farflung.peers.process.config import LedgerConfig, ListenerConfig

RUN_SECONDS: Final = 600.0  # for which a run waits for its own ledger


def validators_in(ledger: LedgerConfig) -> list[tuple[PeerId, str, int]]:
    """Key, host and port of each validator that a configuration names."""
    return [(PeerId(bytes(one.peer)), one.host, one.port) for one in (ledger, *ledger.others)]


def places_of(relays: Iterable[ListenerConfig]) -> tuple[EndpointAddress, ...]:
    """Relays as a configuration names them."""
    return tuple(EndpointAddress(relay.host, relay.port, PeerId(bytes(relay.peer))) for relay in relays)


def reaches_of(validators: Iterable[tuple[PeerId, str, int]], endpoint: Endpoint) -> list[Reach]:
    """A way to each of them."""
    return [_reach(endpoint, *one) for one in validators]


def _reach(endpoint: Endpoint, peer: PeerId, host: str, port: int) -> Reach:
    return lambda: endpoint.dial(peer, host, port)


def client_in_run(
    reaches: Sequence[Reach], key: SigningKey, genesis: Genesis, tell: Callable[[WarningEvent], None]
) -> LedgerClient:
    """A client of a run's ledger, whose validators are started again whenever they die: it waits for them, and says so.

    A ledger of which a third is away makes no blocks, and goes on by itself; so does whoever waits for it.
    """
    least = next(count for count in range(1, len(reaches) + 1) if is_quorum(count, len(reaches)))

    def waited(seconds: float, is_over: bool) -> None:
        span = format_seconds(Seconds(seconds))
        if is_over:
            tell(WarningEvent(code="FF-APP-335", message=f"the ledger answers again, after {span}"))
            return
        text = f"the ledger has made no block for {span}: {least} of {len(reaches)} validators must be up"
        hint = "nothing: it goes on when they are back"
        tell(WarningEvent(code="FF-APP-334", message=text, hint=hint))

    return LedgerClient(reaches, key, genesis, patience=RUN_SECONDS, waited=waited)


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
