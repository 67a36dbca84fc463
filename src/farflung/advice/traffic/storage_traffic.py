"""Computes the traffic between cards and storage: training data to its readers, checkpoints out and back (P1,
J1).

    data         tokens x bytes a token, once an epoch: each reader its share, or all of it where all read all
    checkpoint   P x (e + K) bytes: weights, and K of optimizer state (12 with Adam in mixed precision: Rajbhandari
                 et al. 2020, section 3.1), written by the ranks that hold shares of it; their lines limit it, or
                 the storage nodes', which also copy
    restore      the same bytes to each replica

A rate that training needs is bytes a step over seconds a step.
"""

from __future__ import annotations

import msgspec

from farflung.advice.traffic import input_checks
from farflung.advice.traffic.traffic_terms import TrafficClass, TrafficPhase, TrafficTerm, told
from farflung.core.units import Seconds
from farflung.plan.link_syntax import Link

STATES = "Rajbhandari et al. 2020, section 3.1"
COUNTED = "counted"
ADAM = 12.0  # bytes a parameter: float32 weights, mean and square


class StorageNodes(msgspec.Struct, frozen=True):
    """`nodes` alike with a line each, shared by all that read and write there; `copies` of what is written.

    Raises UsageError FF-PLAN-020, FF-PLAN-021 (the line).
    """

    nodes: int
    link: Link
    copies: int = 1

    def __post_init__(self) -> None:
        input_checks.count("nodes", self.nodes)
        input_checks.count("copies", self.copies, most=self.nodes)
        input_checks.link("link", self.link)


def epoch(tokens: float, width: float, readers: int, *, is_shared: bool = True) -> TrafficTerm:
    """One pass over `tokens` tokens of `width` bytes by `readers`; not shared: everybody reads all of them."""
    input_checks.amount("tokens", tokens)
    input_checks.amount("width", width, most=1e9)
    input_checks.count("readers", readers)
    size = tokens * width
    each = size / readers if is_shared else size
    split = f" / {readers} readers" if is_shared else f", by each of {readers}"
    return _term("training data", each, each * readers, f"{tokens:.4g} tokens x {width:g} B = {told(size)}{split}")


def batch(sequences: int, sequence: int, width: float, readers: int) -> TrafficTerm:
    """One step's data, of all replicas together `sequences` of `sequence` tokens."""
    input_checks.count("sequences", sequences)
    input_checks.count("sequence", sequence, most=1 << 24)
    return epoch(float(sequences * sequence), width, readers)


def checkpoint_bytes(parameters: float, element: float = 2.0, optimizer: float = ADAM) -> float:
    """Bytes of a checkpoint that training can go on from."""
    input_checks.amount("parameters", parameters)
    input_checks.amount("element", element, most=16.0)
    input_checks.amount("optimizer", optimizer, most=64.0)
    return parameters * (element + optimizer)


def checkpoint(size: float, writers: int) -> TrafficTerm:
    """`size` bytes written by so many ranks, an even share each."""
    input_checks.amount("size", size)
    input_checks.count("writers", writers)
    return _term("checkpoint", size / writers, size, f"{told(size)} / {writers} writers")


def writing(size: float, writers: int, link: Link, storage: StorageNodes) -> Seconds:
    """Seconds until a checkpoint is stored: the slower of the writers' lines and the storage nodes'.

    Raises UsageError FF-PLAN-020, FF-PLAN-021.
    """
    input_checks.link("link", link)
    term = checkpoint(size, writers)
    inward = 8.0 * size * storage.copies / (storage.nodes * storage.link.down)
    copied = 8.0 * size * (storage.copies - 1) / (storage.nodes * storage.link.up)
    way = (link.round_trip + storage.link.round_trip) / 2
    return Seconds(max(8.0 * term.sent / link.up, inward, copied) + way)


def restoring(size: float, replicas: int, readers: int, link: Link, storage: StorageNodes) -> Seconds:
    """Seconds until each of `replicas`, of `readers` ranks each, has all of it.

    Raises UsageError FF-PLAN-020, FF-PLAN-021.
    """
    input_checks.link("link", link)
    term = checkpoint(size, input_checks.count("readers", readers))
    total = size * input_checks.count("replicas", replicas)
    outward = 8.0 * total / (storage.nodes * storage.link.up)
    way = (link.round_trip + storage.link.round_trip) / 2
    return Seconds(max(8.0 * term.sent / link.down, outward) + way)


def _term(name: str, each: float, total: float, formula: str) -> TrafficTerm:
    source = STATES if name == "checkpoint" else COUNTED
    return TrafficTerm(
        name, TrafficPhase.UPDATE if name == "checkpoint" else TrafficPhase.FORWARD, each, each, total, total, 1.0, 1.0,
        formula, source, TrafficClass.STORAGE,
    )  # fmt: skip
