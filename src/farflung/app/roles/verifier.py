"""The verifier: repeats drawn segments of others' work, blind, and says what it found (app.auditing)."""

from __future__ import annotations

from farflung.app.leash import Orders, run_role
from farflung.app.lender import lend
from farflung.ledger.tx import Role


async def main(orders: Orders) -> None:
    """Serves until the supervisor closes the leash."""
    await lend(orders, Role.AUDIT)


if __name__ == "__main__":
    run_role(main)
