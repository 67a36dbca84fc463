"""Detects signs that somebody tampers with a worker: a tracer, missing sandbox restrictions, changed code.

Requirement S2. The kernel says of each process who traces it and whether its walls stand (proc(5), /proc/PID/status:
TracerPid, NoNewPrivs, Seccomp). It is the node's own watch: it tells an honest owner, and the network, that somebody
else is at work on this machine. An owner that changes this file sees nothing; what stops that one are audits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from farflung.core.codec import Wire, encode
from farflung.core.crypto import NS_TAMPERING, digest
from farflung.core.ids import Hash, PeerId
from farflung.host import sandbox

FILTERED: Final = 2  # SECCOMP_MODE_FILTER
GONE: Final = ("Z", "X")  # states of a process that has ended

TRACED: Final = "a process traces the worker"
PRIVILEGED: Final = "the worker may gain privileges again"
UNFILTERED: Final = "the worker's filter of system calls is gone"
CHANGED: Final = "the code on the disk is not the one that the lease began with"


class TamperReport(Wire, frozen=True):
    """What a node reports of itself, once; its hash goes on the ledger, in a transaction that the node signs."""

    chain: Hash
    job: Hash
    node: PeerId
    began: Hash  # the image when the lease began
    now: Hash
    signs: tuple[str, ...]


def tampering_hash(report: TamperReport) -> Hash:
    """The evidence that the ledger's row names."""
    return digest(NS_TAMPERING, encode(report))


def signs_in(tier: str, statuses: Sequence[str]) -> tuple[str, ...]:
    """What `statuses`, of the worker and all processes around it, tell; of a worker that has begun to work.

    bubblewrap itself has no filter, and what has ended tells nothing. A line that a kernel lacks is no sign.
    """
    read = [_fields(status) for status in statuses]
    alive = [fields for fields in read if fields.get("State", "")[:1] not in GONE]
    found = [TRACED] if any(_number(fields, "TracerPid", 0) for fields in alive) else []
    if tier == sandbox.LIMITS:
        return tuple(found)
    workers = [fields for fields in alive if fields.get("Name") != sandbox.BWRAP]
    if any(_number(fields, "NoNewPrivs", 1) == 0 for fields in workers):
        found.append(PRIVILEGED)
    if any(_number(fields, "Seccomp", FILTERED) != FILTERED for fields in workers):
        found.append(UNFILTERED)
    return tuple(found)


def _fields(status: str) -> dict[str, str]:
    pairs = [line.partition(":") for line in status.splitlines()]
    return {name: value.strip() for name, _, value in pairs}


def _number(fields: Mapping[str, str], name: str, default: int) -> int:
    value = fields.get(name, "")
    return int(value) if value.isdigit() else default
