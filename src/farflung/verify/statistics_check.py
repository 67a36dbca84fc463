"""Compares the training statistics that the peers of a round state, in integers, so that every reader agrees.

A stated loss or gradient norm costs nothing to invent, so it proves nothing: who lies well is not seen here. Who is
seen trains on something else, diverges, or states figures that do not fit its round.

    odd(x)  ⇔  |x - m| > 6 max(d, m / floor)       m: lower median of the round; d: lower median of all |x - m|

six median absolute deviations, as verify.md section 7 asks for (of a normal distribution some four standard ones).
`floor` keeps a round in which many peers happen to agree from making the rest suspicious: 1/64 of the loss, 1/4 of the
gradient norm, which is a maximum and so varies more. Fewer than PEERS peers have no deviation worth the name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from farflung.core.ids import PeerId
from farflung.train.contribution_trace import LoggedStatistics

PEERS: Final = 8
DEVIATIONS: Final = 6
LOSS_FLOOR: Final = 64
NORM_FLOOR: Final = 4


def odd_peers(stated: Mapping[PeerId, LoggedStatistics]) -> tuple[PeerId, ...]:
    """Which accepted peers of a round state a loss or a gradient norm apart from the others', ascending."""
    peers = sorted(stated)
    if len(peers) < PEERS:
        return ()
    apart = _apart([stated[p].loss for p in peers], LOSS_FLOOR)
    apart |= _apart([stated[p].norm for p in peers], NORM_FLOOR)
    return tuple(peers[place] for place in sorted(apart))


def _apart(values: Sequence[int], floor: int) -> set[int]:
    median = _median(values)
    far = [abs(value - median) for value in values]
    # In units of 1 / floor, so that nothing is rounded.
    limit = DEVIATIONS * max(floor * _median(far), abs(median))
    return {place for place, each in enumerate(far) if floor * each > limit}


def _median(values: Sequence[int]) -> int:
    """The lower one of an even number."""
    return sorted(values)[(len(values) - 1) // 2]
