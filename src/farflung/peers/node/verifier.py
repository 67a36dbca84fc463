"""Runs the verifier's process: repeats sampled segments of others' work, blind, and reports (`AuditLease`)."""

from __future__ import annotations

from farflung.ledger.transactions import LeaseRole
from farflung.peers.node.agent import lend
from farflung.peers.process.channel import ControlChannel, run_role


async def main(orders: ControlChannel) -> None:
    """Serves until the supervisor closes the leash."""
    await lend(orders, LeaseRole.AUDIT)


if __name__ == "__main__":
    run_role(main)
