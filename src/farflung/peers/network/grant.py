"""Defines how an account asks a network's faucet for its first credits (peers.network.faucet answers)."""

from __future__ import annotations

from typing import Final

from farflung.core import limits
from farflung.core.codec import Wire, decode, encode
from farflung.core.crypto import SigningKey
from farflung.core.errors import NetworkError, PolicyError
from farflung.core.ids import PeerId
from farflung.net.counters import ByteCounter
from farflung.net.io.endpoint import Endpoint
from farflung.net.messages import RemoteError
from farflung.peers.ledger_client.client import serve_nothing
from farflung.peers.ledger_client.connect import reaches_of, validators_in
from farflung.peers.network.join import KnownNetwork

GRANT: Final = "network.grant"
REQUEST_BYTES: Final = 256
GRANT_SECONDS: Final = 60.0  # for an answer: the ledger's committee has to agree


class GrantRequest(Wire, frozen=True):
    """`key` asks for its first credits. `token`: of an invitation, or empty."""

    key: PeerId
    token: bytes


class GrantReply(Wire, frozen=True):
    """`amount` pico-credits are in the block of `height`. `is_new`: they were not paid at an earlier request."""

    amount: int
    height: int
    is_new: bool


async def request_grant(network: KnownNetwork, key: SigningKey, token: bytes = b"") -> GrantReply:
    """Asks the network's faucet for the first credits of an account.

    Raises PolicyError as the faucet does, FF-APP-542 where no seat has one, NetworkError when none answers.
    """
    endpoint = Endpoint(key, serve_nothing, ByteCounter())
    body, away = encode(GrantRequest(key.public, token)), None
    try:
        for reach in reaches_of(validators_in(network.ledger), endpoint):
            try:
                said = await (await reach()).call(GRANT, body, timeout=GRANT_SECONDS)
                return decode(said, GrantReply, limits.CONTROL_BYTES)
            except RemoteError as error:
                if error.code != "FF-APP-542":
                    raise PolicyError(error.code, error.message, cause=error.cause, hint=error.hint) from error
            except NetworkError as error:
                away = error
    finally:
        await endpoint.close()
    raise away or no_faucet()


def no_faucet() -> PolicyError:
    """FF-APP-542: nobody gives credits here."""
    return PolicyError(
        "FF-APP-542",
        "this network has no faucet",
        cause="none of its seats that answer holds a faucet's key",
        hint="ask the operator to send credits to your account: farflung account shows its key",
    )
