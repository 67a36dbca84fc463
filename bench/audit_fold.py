"""The accounts of an audited run (verify.audit_accounts): what reading on in the log takes against rebuilding them.

    python bench/audit_fold.py [--quick] [--out FILE]

A log of 1,000 rounds (--quick: 100) with four members, each audited in every round by one of two verifiers. The
accounts are wanted after each round, as a requester wants them when it tells the ledger. Seconds are processor time.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from reporting import Row, at_least, load, show, told

from farflung.core.crypto import digest
from farflung.core.ids import ZERO_HASH, PeerId, Signature
from farflung.core.tensor_layout import TensorLayout
from farflung.job.spec import AuditSpec, JobSpec, JobTerms
from farflung.ledger.transactions import SignedVerdict, Verdict, VerdictFinding
from farflung.train.run_log import AcceptSetRecord, AuditsRecord, CommitmentsRecord, Contribution, Record
from farflung.verify.audit_accounts import AuditAccounts

ROUNDS, QUICK_ROUNDS, GOAL = 1000, 100, 100.0
MEMBERS = [PeerId(bytes([i]) * 32) for i in range(4)]
VERIFIERS = [PeerId(bytes([i]) * 32) for i in (8, 9)]
HASH = digest("test/bench/1")
SPEC = JobSpec(rounds=ROUNDS, audit=AuditSpec(rate=1.0))
TERMS = JobTerms(SPEC, HASH, ZERO_HASH, TensorLayout.of({"a": (2,)}), VERIFIERS[0], HASH)


def log(rounds: int) -> list[tuple[Record, ...]]:
    """What the log says of each round, to its verdicts."""
    work = tuple(Contribution(p, SPEC.round_tokens, HASH, HASH, HASH, HASH, "none") for p in MEMBERS)
    return [
        (
            CommitmentsRecord(round, (), work),
            AcceptSetRecord(round, work),
            AuditsRecord(round, tuple(_holds(round, i, peer) for i, peer in enumerate(MEMBERS))),
        )
        for round in range(rounds)
    ]


def _holds(round: int, number: int, peer: PeerId) -> SignedVerdict:
    by = VERIFIERS[(round + number) % len(VERIFIERS)]
    verdict = Verdict(HASH, HASH, round, peer, number, HASH, by, VerdictFinding.HOLDS, 0, HASH)
    return SignedVerdict(verdict, Signature(bytes(64)))


def read_on(rounds: list[tuple[Record, ...]]) -> None:
    """One object reads each round once."""
    accounts = AuditAccounts(TERMS, len(VERIFIERS))
    for records in rounds:
        accounts.extend(records)


def rebuilt(rounds: list[tuple[Record, ...]]) -> None:
    """After each round a new object reads all of them."""
    for after in range(1, len(rounds) + 1):
        accounts = AuditAccounts(TERMS, len(VERIFIERS))
        for records in rounds[:after]:
            accounts.extend(records)


def seconds(work: Callable[[list[tuple[Record, ...]]], None], rounds: list[tuple[Record, ...]]) -> float:
    """Processor time of one call."""
    began = time.process_time()
    work(rounds)
    return time.process_time() - began


def measured(count: int) -> Iterator[Row]:
    """Both ways, one after the other, on one log."""
    rounds = log(count)
    once = min(seconds(read_on, rounds) for _ in range(5))
    each = seconds(rebuilt, rounds)
    yield told("read on", once, "s", f"{count} rounds, 4 members, the accounts after each; fastest of 5")
    yield told("rebuilt", each, "s", f"{count} rounds, 4 members, the accounts after each; once")
    goal = GOAL * count / ROUNDS
    yield at_least("rebuilt over read on", each / once, "times", goal, f"{count} rounds, both in this run")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="100 rounds")
    parser.add_argument("--out", type=Path, help="also add the rows to this file")
    options = parser.parse_args()
    busy = load()
    for row in measured(QUICK_ROUNDS if options.quick else ROUNDS):
        show("audit_fold", row, busy, options.out)


if __name__ == "__main__":
    main()
