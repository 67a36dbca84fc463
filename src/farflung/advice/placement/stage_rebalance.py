"""Rebalances peers while a run goes on: which one serves the next batch, and which one changes to a slower
stage.

SWARM (Ryabinin et al. 2023, section 3.2) has no plan: batches are dealt to the peers of a stage by an interleaved
weighted round robin of their throughput, and now and then a peer of the stage with the most throughput goes over to
the one with the least. Both rules are functions of what was measured; whoever calls them measures, and moves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from farflung.advice.placement.grid_objective import wrong

GAIN: Final = 1.05  # by which the poorest stage must gain, or nobody moves: a move fetches a stage's state


class StagePeer(msgspec.Struct, frozen=True):
    """A peer, the stage it serves, and batches a second that it was measured to do of a stage of mean work."""

    name: str
    stage: int
    rate: float


class StageMove(msgspec.Struct, frozen=True):
    """Who goes where, and by which factor the poorest stage's throughput grows."""

    peer: str
    source: int
    target: int
    gain: float


def throughput(peers: Sequence[StagePeer], needs: Sequence[float]) -> tuple[float, ...]:
    """Batches a second of each stage; `needs`: its work, in units of the mean. Raises UsageError FF-PLAN-049."""
    total = [0.0] * len(needs)
    for need in needs:
        if not 0 < need < float("inf"):
            raise wrong("needs", f"{need:g}")
    for peer in peers:
        if not 0 <= peer.stage < len(needs):
            raise wrong("stage", f"{peer.stage} of {len(needs)}")
        if not 0 < peer.rate < float("inf"):
            raise wrong("rate", f"{peer.rate:g} of a peer")
        total[peer.stage] += peer.rate / needs[peer.stage]
    return tuple(total)


def migrate(peers: Sequence[StagePeer], needs: Sequence[float], gain: float = GAIN) -> StageMove | None:
    """The one move from the richest stage to the poorest that helps most; None where none gains enough.

    Among the richest stage's peers the one after whose move the smaller of the two stages is largest; on a tie the
    slowest, then by name. A stage is never emptied.
    """
    now = throughput(peers, needs)
    if len(now) < 2:
        return None
    rich = max(range(len(now)), key=lambda stage: (now[stage], -stage))
    poor = min(range(len(now)), key=lambda stage: (now[stage], stage))
    staying = sorted((peer for peer in peers if peer.stage == rich), key=lambda peer: (peer.rate, peer.name))
    if rich == poor or not staying:
        return None

    def least(peer: StagePeer) -> float:
        return min(now[rich] - peer.rate / needs[rich], now[poor] + peer.rate / needs[poor])

    best = max(staying, key=least)
    if least(best) <= gain * now[poor]:
        return None
    return StageMove(best.name, rich, poor, least(best) / now[poor] if now[poor] else float("inf"))


def moves(peers: Sequence[StagePeer], needs: Sequence[float], gain: float = GAIN) -> tuple[StageMove, ...]:
    """All moves until nobody gains, one after another; at most one for each peer."""
    at = {peer.name: peer for peer in peers}
    found: list[StageMove] = []
    while len(found) < len(peers):
        move = migrate(list(at.values()), needs, gain)
        if move is None or move.peer in {one.peer for one in found}:
            break
        found.append(move)
        at[move.peer] = msgspec.structs.replace(at[move.peer], stage=move.target)
    return tuple(found)


class BatchDispatch(msgspec.Struct, frozen=True):
    """Whose turn it is in one stage: seconds that each peer has been given work for."""

    given: Mapping[str, float]

    def next(self, rates: Mapping[str, float]) -> tuple[str, BatchDispatch]:
        """The peer that would be done first, and the turns after it; `rates`: batches a second of who is there now.

        Peers are served in proportion to their rates, evenly spread. Who comes new begins where the least served peer
        is, so that it is not flooded; who is not in `rates` is forgotten. Raises UsageError FF-PLAN-049 for no peer.
        """
        if not rates or not all(0 < rate < float("inf") for rate in rates.values()):
            raise wrong("rates", "nobody serves this stage" if not rates else "a rate that is not above 0")
        known = [self.given[name] for name in rates if name in self.given]
        floor = min(known, default=0.0)
        given = {name: self.given.get(name, floor) - floor for name in rates}
        chosen = min(rates, key=lambda name: (given[name] + 1.0 / rates[name], name))
        given[chosen] += 1.0 / rates[chosen]
        return chosen, BatchDispatch(given)
