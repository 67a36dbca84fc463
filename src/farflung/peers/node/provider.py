"""Runs the provider's process: lends its machine to train, and takes the messages of this table."""

from __future__ import annotations

from typing import Any, Final

from farflung.ledger.transactions import LeaseRole
from farflung.peers.node.agent import NodeAgent
from farflung.peers.node.config import NodeConfig
from farflung.peers.node.lease_routes import LEASE_ROUTES
from farflung.peers.node.process import lend
from farflung.peers.node.routes import Caller, NodeCall, NodeRole, Route, by_lease, in_turn
from farflung.peers.node.training_lease import TrainingLease
from farflung.peers.process.channel import Channel, run_role
from farflung.peers.protocol import messages


async def _drop(call: NodeCall, message: messages.DropRoundRequest) -> None:
    """Training is given up at once, and what it made when its turn comes."""
    await call.lease.abandon(message)
    await call.node.in_turn(call.lease, lambda: call.lease.drop(message))


def _enter(call: NodeCall, message: messages.GroupJoinRequest) -> Any:
    """The job's group at a relay."""
    return call.lease.fanning.follow(message, call.node.lease_key)


def _open(call: NodeCall, message: messages.SegmentOpenRequest) -> Any:
    """A verifier that asks itself makes nothing happen: it is shown what was opened already."""
    if call.peer != call.node.requester:
        return call.lease.repeat(message)
    return call.node.in_turn(call.lease, lambda: call.lease.open(message))


PROVIDER: Final = NodeRole(
    "provider",
    LeaseRole.TRAIN,
    {
        **LEASE_ROUTES,
        messages.TRAIN: Route(messages.TrainRequest, Caller.REQUESTER, in_turn(TrainingLease.train)),
        messages.REVEAL: Route(messages.RevealRequest, Caller.REQUESTER, in_turn(TrainingLease.reveal)),
        messages.MERGE: Route(messages.MergeRequest, Caller.REQUESTER, NodeAgent.counted(TrainingLease.merge)),
        messages.DROP: Route(messages.DropRoundRequest, Caller.REQUESTER, _drop),
        messages.ENTER: Route(messages.GroupJoinRequest, Caller.REQUESTER, _enter),
        messages.PLANT: Route(messages.SegmentOpenRequest, Caller.REQUESTER, in_turn(TrainingLease.plant)),
        messages.OPEN: Route(messages.SegmentOpenRequest, Caller.AUDITORS, _open),
        messages.UNVEIL: Route(messages.SegmentRevealRequest, Caller.AUDITORS, by_lease(TrainingLease.unveil)),
        messages.HELD: Route(bytes, Caller.MEMBERS, lambda call, body: call.lease.fanning.answer(body)),
    },
)


async def main(config: NodeConfig, channel: Channel) -> None:
    """Serves until the channel ends."""
    await lend(PROVIDER, config, channel)


if __name__ == "__main__":
    run_role(main, NodeConfig)
