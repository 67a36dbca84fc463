"""Runs the verifier's process: repeats sampled segments of others' work, blind, and takes these messages."""

from __future__ import annotations

from collections.abc import Awaitable
from functools import partial
from typing import Final

from farflung.ledger.earnings_tally import PartySignature
from farflung.ledger.transactions import LeaseRole
from farflung.peers.node.agent import NodeAgent
from farflung.peers.node.audit_lease import AuditLease
from farflung.peers.node.config import NodeConfig
from farflung.peers.node.lease_routes import LEASE_ROUTES
from farflung.peers.node.process import lend
from farflung.peers.node.routes import Caller, NodeCall, NodeRole, Route, in_turn
from farflung.peers.process.channel import Channel, run_role
from farflung.peers.protocol import messages


def _attest(call: NodeCall, said: messages.OutputAttestRequest) -> Awaitable[PartySignature]:
    """For the job's requester, also where this verifier was started again and holds no lease any more."""
    mark: Awaitable[PartySignature] = call.node.attest(said.job, partial(call.node.admission.job_of, call.peer))
    return mark


VERIFIER: Final = NodeRole(
    "verifier",
    LeaseRole.AUDIT,
    {
        **LEASE_ROUTES,
        messages.AUDIT: Route(messages.AuditRequest, Caller.REQUESTER, in_turn(AuditLease.run)),
        messages.JUDGE: Route(messages.VerdictRequest, Caller.REQUESTER, NodeAgent.counted(AuditLease.judge)),
        messages.ATTEST: Route(messages.OutputAttestRequest, Caller.ANYONE, _attest),
        messages.SCORE: Route(messages.ScoreRequest, Caller.REQUESTER, in_turn(AuditLease.score)),
    },
)


async def main(config: NodeConfig, channel: Channel) -> None:
    """Serves until the channel ends."""
    await lend(VERIFIER, config, channel)


if __name__ == "__main__":
    run_role(main, NodeConfig)
