"""Defines the messages of a lease that every node takes, to train or to audit."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

from farflung.core.errors import PolicyError
from farflung.peers.node.policy import check_passes
from farflung.peers.node.routes import Caller, NodeCall, Route
from farflung.peers.protocol import messages


def _keep(call: NodeCall, said: messages.VoucherUpdate) -> None:
    """A voucher of the lease, also of one whose worker is gone. Raises PolicyError FF-APP-305."""
    if said.job not in call.node.jobs:
        raise PolicyError("FF-APP-305", "a voucher is of a job that is not worked on here")
    call.node.vouchers.take(call.peer, said)


async def _propose(call: NodeCall, said: messages.LeaseOfferRequest) -> messages.LeaseOfferReply:
    """Nobody who left this node unpaid has it work on another job."""
    await call.node.voucher_bound.check_requester(call.peer, said.terms.id)
    reply: messages.LeaseOfferReply = await call.node.propose(call, said)
    return reply


async def _start(call: NodeCall, said: messages.LeaseStartRequest) -> messages.LeaseStartReply:
    """Not while work of this job is refused: a member that refuses every round would be lost in every round."""
    await call.node.voucher_bound.check_start(said.job)
    reply: messages.LeaseStartReply = await call.node.start(call, said)
    return reply


def _admit(call: NodeCall, said: messages.MembersUpdate) -> None:
    call.node.know(said.members)
    call.lease.admit(frozenset(a.peer for a in said.members) | {call.peer})


def _show(call: NodeCall, said: messages.RelayPassesUpdate) -> None:
    """Passes for ways through relays, at the requester's cost. Raises PolicyError FF-APP-241."""
    endpoint = call.node.endpoint
    check_passes(said.passes, call.peer, endpoint.credential.account, int(time.time()))
    for signed in said.passes:
        endpoint.payer.put(signed)


LEASE_ROUTES: Final[Mapping[str, Route]] = {
    messages.PROPOSE: Route(messages.LeaseOfferRequest, Caller.ANYONE, _propose),
    messages.START: Route(messages.LeaseStartRequest, Caller.REQUESTER, _start),
    messages.MEMBERS: Route(messages.MembersUpdate, Caller.REQUESTER, _admit),
    messages.PASSES: Route(messages.RelayPassesUpdate, Caller.REQUESTER, _show),
    messages.VOUCH: Route(messages.VoucherUpdate, Caller.PAYER, _keep),
    messages.END: Route(
        messages.LeaseEndRequest, Caller.LEAVING_REQUESTER, lambda call, said: call.node.end(call, said)
    ),
}
