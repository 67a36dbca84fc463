"""Defines the row of a node's message table: what a message is decoded as, who may send it, and what answers it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from enum import Enum
from typing import Any, NamedTuple

from farflung.core import limits
from farflung.core.codec import decode
from farflung.core.errors import ProtocolError
from farflung.core.ids import Hash, PeerId
from farflung.core.release import JOB_FORMATS, VERSION, format_list
from farflung.ledger.transactions import LeaseRole
from farflung.peers.protocol.messages import LeaseOfferRequest, order, read_proposal


class Caller(Enum):
    """Who may send a message."""

    ANYONE = "anyone"
    PAYER = "the last requester, whatever has become of its lease"
    REQUESTER = "the requester of the lease"
    LEAVING_REQUESTER = "the requester of the lease, also of one that has lost its worker"
    AUDITORS = "that requester, and the verifiers of its job"
    MEMBERS = "who may fetch objects of the lease"


class NodeCall(NamedTuple):
    """One message on its way: the `NodeAgent`, the lease that it is about (None: no lease yet), and who sent it."""

    node: Any
    lease: Any
    peer: PeerId


Answer = Callable[[NodeCall, Any], Any]  # a reply, None for an empty one, or a coroutine that returns it


class Route(NamedTuple):
    """One message's row."""

    request: Any
    caller: Caller
    answer: Answer


class NodeRole(NamedTuple):
    """What a node lends itself for: its name in errors, its role on the ledger, and the messages that it takes."""

    name: str
    role: LeaseRole
    routes: Mapping[str, Route]

    def unserved(self, method: str) -> ProtocolError:
        """The error FF-APP-043 for a message that it does not know."""
        return ProtocolError(
            "FF-APP-043",
            f"a {self.name} does not serve {method[:40]!r}",
            cause=f"it runs farflung {VERSION}, which takes jobs of format {format_list(JOB_FORMATS)}",
        )


def decoded(route: Route, job: Hash | None, body: bytes) -> Any:
    """A message; one about a lease names its job. Raises ProtocolError, PolicyError FF-APP-057."""
    if route.request is bytes:
        return body
    if route.request is LeaseOfferRequest:
        return read_proposal(body)
    return order(job, body, route.request) if job is not None else decode(body, route.request, limits.CONTROL_BYTES)


def by_lease(verb: Callable[[Any, Any], Any]) -> Answer:
    """The lease answers at once, out of what it holds."""
    return lambda call, message: verb(call.lease, message)


def in_turn(verb: Callable[[Any, Any], Awaitable[Any]]) -> Answer:
    """The lease answers, one order after the other."""
    return lambda call, message: call.node.in_turn(call.lease, lambda: verb(call.lease, message))
