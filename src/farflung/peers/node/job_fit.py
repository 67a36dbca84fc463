"""Decides what an announced job would pay this computer an hour, and why its node cannot take it: pure.

The job's own word is taken for what it is: the node checks the proposal itself (peers.node.policy).
"""

from __future__ import annotations

from typing import NamedTuple

from farflung.core.money import Credits, format_credits
from farflung.core.units import format_bytes
from farflung.ledger.transactions import LeaseRole
from farflung.peers.protocol.job_notices import JobNotice
from farflung.plan.run_duration import EFFICIENCY


class ClassPrices(NamedTuple):
    """What a node asks for a token of jobs of a class, in pico-credits, where that is more than its standing ask.

    The standing ask is in its row of the ledger, which names one price: for these classes the node refuses what pays
    less, and is left out of the clearing as if it had not asked.
    """

    outcome: int = 0  # jobs whose work is not proven (job.proof_class)
    module: int = 0  # jobs with a model of foreign Python

    def ask(self, standing: int, *, is_outcome: bool, is_module: bool) -> int:
        """What it asks for a token of a job."""
        return max(standing, self.outcome if is_outcome else 0, self.module if is_module else 0)


class NodeTerms(NamedTuple):
    """One node: its role, FLOP/s of all cores that a job may use, bytes, ask a token, and what it is doing.

    `busy`: why it takes no job now; empty: it would. `drawn_only`: it takes no job that names its verifiers.
    """

    role: LeaseRole
    flops: int
    memory_bytes: int
    disk_bytes: int
    disk_floor: int
    unit_price: int
    allow_modules: bool
    busy: str = ""
    drawn_only: bool = False
    prices: ClassPrices = ClassPrices()

    def ask(self, notice: JobNotice) -> int:
        """What it asks for a token of this job."""
        return self.prices.ask(self.unit_price, is_outcome=notice.is_outcome, is_module=notice.is_module)


class JobPay(NamedTuple):
    """What a job would pay one node, an hour, at the node's ask and at the job's highest price; and for how long."""

    least: int
    most: int
    hours: float


def pay(notice: JobNotice, lender: NodeTerms) -> JobPay | None:
    """None where it cannot be said: a model of foreign Python, or an auditor, who is paid for what is drawn."""
    if not notice.token_flop or not lender.flops or lender.role is not LeaseRole.TRAIN:
        return None
    tokens = 3600 * lender.flops * EFFICIENCY / notice.token_flop
    least = min(lender.ask(notice), notice.unit_price_max)
    return JobPay(int(tokens * least), int(tokens * notice.unit_price_max), notice.tokens / tokens)


def obstacle(notice: JobNotice, lender: NodeTerms) -> str:
    """Why a node cannot take a job; empty: it can."""
    is_training = lender.role is LeaseRole.TRAIN
    if not (notice.providers if is_training else notice.verifiers):
        return "it looks for no providers" if is_training else "it looks for no verifiers"
    if lender.busy:
        return lender.busy
    if notice.unit_price_max < lender.ask(notice):
        pays, asks = format_credits(Credits(notice.unit_price_max)), format_credits(Credits(lender.ask(notice)))
        return f"it pays {pays} credits a token at most, this node asks {asks}"
    if notice.is_named and lender.drawn_only:
        return "its requester named the verifiers, which this node does not accept (--drawn-only)"
    if notice.is_named and not is_training:
        return "its requester named its verifiers: a node that is named is asked without this list"
    if notice.is_module and not lender.allow_modules:
        return "its model is foreign Python, which this node does not run (--allow-modules)"
    if notice.worker_bytes > lender.memory_bytes:
        needed, given = format_bytes(notice.worker_bytes), format_bytes(lender.memory_bytes)
        return f"it needs {needed} of memory, this node gives {given}"
    if lender.disk_bytes < lender.disk_floor:
        return f"{format_bytes(lender.disk_bytes)} of disk are free, this node keeps {format_bytes(lender.disk_floor)}"
    return ""
