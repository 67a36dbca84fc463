"""Computes bytes and messages of one collective: of a rank, of a hub, of all ranks, and across nodes.

n ranks, a buffer of S bytes (of an all-gather: the gathered one; of payloads: k each):

    all-reduce      ring           2 (n - 1)/n S each way    2 (n - 1) messages, the least there is in bytes
                    tree           2 (n - 1)/n S, mean       2 ceil(log2 n), two trees with half of S each, pipelined
                    direct         2 (n - 1)/n S             2 (n - 1), all at once: a sharded parameter server
                    star           S each way; hub n S       2
                    naive          (n - 1) S each way        n - 1: everybody sends all to all
    reduce-scatter, all-gather     (n - 1)/n S               n - 1
    payloads        gathered       (n - 1) k each way        n - 1; nothing can be summed on the way
                    fanned out     k up, (n - 1) k down; relay n k in, n (n - 1) k out
    all-to-all                     (n - 1)/n S               n - 1
    broadcast       tree           S to each other rank      ceil(log2 n) at the root

Sources: Patarasuk & Yuan 2009 (the bound of all-reduce and the ring that meets it); Thakur, Rabenseifner & Gropp
2005, sections 3 and 4; Sanders, Speck & Traeff 2009 (two trees); Yuan et al. 2022, section 3.1 (sharded parameter
server). torch's gloo backend makes a reduce-scatter of an all-reduce and drops what is not its own (pytorch pull
request 118911), so it moves twice as much.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from farflung.advice.traffic import input_checks
from farflung.advice.traffic.traffic_terms import TrafficPhase, TrafficTerm, told
from farflung.core import limits
from farflung.plan.run_traffic import ring_share

RING_SOURCE = "Patarasuk & Yuan 2009"
TREE_SOURCE = "Sanders, Speck & Traeff 2009"
DIRECT_SOURCE = "Yuan et al. 2022, section 3.1"
STAR_SOURCE = "Li et al. 2014"
MPI_SOURCE = "Thakur, Rabenseifner & Gropp 2005, section 4"
GLOO_SOURCE = "pytorch pull request 118911"
PLAIN_SOURCE = "counted"


class CollectiveBackend(StrEnum):
    """Who moves the bytes: as few as can be (NCCL, MPI), or torch's gloo."""

    IDEAL = "ideal"
    GLOO = "gloo"


class AllReduceAlgorithm(StrEnum):
    """How an all-reduce goes."""

    RING = "ring"
    TREE = "tree"
    DIRECT = "direct"
    STAR = "star"
    NAIVE = "naive"


class RankSpan(msgspec.Struct, frozen=True):
    """A group of ranks, and how it lies over nodes: the shares of ring hops, and of pairs, that leave a node.

    `local`: its ranks in each node, 0: not all have as many.
    """

    ranks: int
    ring: float = 1.0
    pairs: float = 1.0
    local: int = 1

    def __post_init__(self) -> None:
        input_checks.count("ranks", self.ranks)
        input_checks.amount("ring", self.ring, most=1.0)
        input_checks.amount("pairs", self.pairs, most=1.0)
        input_checks.count("local", self.local, least=0, most=self.ranks)


class CollectiveVolume(msgspec.Struct, frozen=True):
    """Bytes of one collective. `hub`: what a server or relay takes and gives, (in, out)."""

    sent: float
    received: float
    total: float
    between: float
    messages: int
    formula: str
    source: str
    hub: tuple[float, float] = (0.0, 0.0)

    def term(self, name: str, phase: TrafficPhase, source: str, times: float = 1.0, groups: float = 1.0) -> TrafficTerm:
        """So many of it a step in each of `groups` groups, for a reason that `source` gives.

        Raises UsageError FF-PLAN-021.
        """
        input_checks.amount("times", times)
        input_checks.amount("groups", groups)
        formula = self.formula if times == 1 else f"{times:g} x [{self.formula}]"
        return TrafficTerm(
            name=name,
            phase=phase,
            sent=self.sent * times,
            received=self.received * times,
            total=self.total * times * groups,
            between=self.between * times * groups,
            messages=self.messages * times,
            syncs=times if self.messages else 0.0,
            formula=formula,
            source=f"{source}; {self.source}",
        )


def span(ranks: int, stride: int = 1, node: int = 1) -> RankSpan:
    """Ranks 0, stride, 2 stride, ... of nodes of `node` ranks each, nodes filled in order. Raises FF-PLAN-020."""
    input_checks.count("ranks", ranks)
    input_checks.count("stride", stride)
    input_checks.count("node", node)
    if ranks == 1:
        return RankSpan(1, 0.0, 0.0)
    homes = [at * stride // node for at in range(ranks)]
    hops = sum(homes[at] != homes[at - 1] for at in range(ranks))
    shared: dict[int, int] = {}
    for home in homes:
        shared[home] = shared.get(home, 0) + 1
    near = sum(one * (one - 1) for one in shared.values())
    local = shared[0] if len(set(shared.values())) == 1 else 0
    return RankSpan(ranks, hops / ranks, 1.0 - near / (ranks * (ranks - 1)), local)


def all_reduce(
    group: RankSpan, size: float, algorithm: AllReduceAlgorithm = AllReduceAlgorithm.RING
) -> CollectiveVolume:
    """A sum of `size` bytes that everybody then has. Raises UsageError FF-PLAN-021, FF-PLAN-026 (no such algorithm)."""
    algorithm = input_checks.word("algorithm", algorithm, AllReduceAlgorithm)
    n, bytes_ = group.ranks, input_checks.amount("size", size)
    if n == 1:
        return _alone()
    if algorithm is AllReduceAlgorithm.STAR:
        text = f"S up and S down, the server n S: n = {n}, S = {told(bytes_)}"
        moved = n * bytes_
        return CollectiveVolume(
            bytes_, bytes_, 2 * moved, 2 * moved * group.pairs, 2, text, STAR_SOURCE, (moved, moved)
        )
    if algorithm is AllReduceAlgorithm.NAIVE:
        return _even(group.pairs, n, (n - 1) * bytes_, n - 1, f"(n - 1) S: {_with(n, bytes_)}", PLAIN_SOURCE)
    messages, share, source = {
        AllReduceAlgorithm.RING: (2 * (n - 1), group.ring, RING_SOURCE),
        AllReduceAlgorithm.TREE: (2 * (n - 1).bit_length(), group.ring, TREE_SOURCE),
        AllReduceAlgorithm.DIRECT: (2 * (n - 1), group.pairs, DIRECT_SOURCE),
    }[algorithm]
    return _even(share, n, ring_share(n) * bytes_, messages, f"2 (n - 1)/n S: {_with(n, bytes_)}", source)


def reduce_scatter(
    group: RankSpan, size: float, backend: CollectiveBackend = CollectiveBackend.IDEAL
) -> CollectiveVolume:
    """A sum of `size` bytes of which everybody has its n-th. Raises UsageError FF-PLAN-021, FF-PLAN-026."""
    backend = input_checks.word("backend", backend, CollectiveBackend)
    n, bytes_ = group.ranks, input_checks.amount("size", size)
    if n == 1:
        return _alone()
    if backend is CollectiveBackend.GLOO:
        text = f"2 (n - 1)/n S, as an all-reduce: {_with(n, bytes_)}"
        return _even(group.ring, n, ring_share(n) * bytes_, 2 * (n - 1), text, GLOO_SOURCE)
    return _even(group.ring, n, (n - 1) / n * bytes_, n - 1, f"(n - 1)/n S: {_with(n, bytes_)}", RING_SOURCE)


def all_gather(group: RankSpan, size: float) -> CollectiveVolume:
    """`size` bytes, of which everybody had an n-th and then has all."""
    n, bytes_ = group.ranks, input_checks.amount("size", size)
    if n == 1:
        return _alone()
    return _even(group.ring, n, (n - 1) / n * bytes_, n - 1, f"(n - 1)/n S: {_with(n, bytes_)}", RING_SOURCE)


def all_to_all(group: RankSpan, size: float) -> CollectiveVolume:
    """`size` bytes of everybody's own, an n-th for each."""
    n, bytes_ = group.ranks, input_checks.amount("size", size)
    if n == 1:
        return _alone()
    return _even(group.pairs, n, (n - 1) / n * bytes_, n - 1, f"(n - 1)/n S: {_with(n, bytes_)}", MPI_SOURCE)


def payloads(group: RankSpan, size: float, *, is_fanned: bool = False) -> CollectiveVolume:
    """A payload of `size` bytes from each to each, which nobody on the way can sum up."""
    n, bytes_ = group.ranks, input_checks.amount("size", size)
    if n == 1:
        return _alone()
    if not is_fanned:
        text = f"(n - 1) k each way: n = {n}, k = {told(bytes_)}"
        return _even(group.ring, n, (n - 1) * bytes_, n - 1, text, PLAIN_SOURCE)
    text = f"k up, (n - 1) k down: n = {n}, k = {told(bytes_)}"
    given, moved = (n - 1) * bytes_, n * n * bytes_  # what the relay sends counts, too
    return CollectiveVolume(bytes_, given, moved, moved, 1, text, PLAIN_SOURCE, (n * bytes_, n * given))


def broadcast(group: RankSpan, size: float) -> CollectiveVolume:
    """`size` bytes of one rank's to all, down a binomial tree. `sent`: by the root."""
    n, bytes_ = group.ranks, input_checks.amount("size", size)
    if n == 1:
        return _alone()
    hops, total = (n - 1).bit_length(), (n - 1) * bytes_
    text = f"S to each of n - 1: {_with(n, bytes_)}"
    return CollectiveVolume(hops * bytes_, bytes_, total, total * group.ring, hops, text, MPI_SOURCE)


def _even(share: float, n: int, each: float, messages: int, formula: str, source: str) -> CollectiveVolume:
    total = n * each
    input_checks.amount("total", total, most=limits.PLANNED_AMOUNT)
    return CollectiveVolume(each, each, total, total * share, messages, formula, source)


def _alone() -> CollectiveVolume:
    return CollectiveVolume(0.0, 0.0, 0.0, 0.0, 0, "n = 1: nothing", PLAIN_SOURCE)


def _with(n: int, size: float) -> str:
    return f"n = {n}, S = {told(size)}"
