"""Decides when a phase of a round is over: all have arrived; or a quorum has, and the others have had their
time.

Enough is a share, the quorum, of the tokens that were assigned to the members that the phase counts on. When it has
arrived, a window opens for the others (OpenWindow). How long it stays open only the shell knows, from arrivals; its end
is an event (WindowEndInput), and who was in is what the record says. The others are passed over, not lost: in TRAIN
and REVEAL they drop their round, and all count again as soon as they have answered.

So whoever was assigned less than 1 - quorum of the tokens, alone or together, holds no phase longer than its window.
With a quorum of 1 there is no window: everybody is waited for, and no bit depends on time.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from msgspec.structs import replace

from farflung.core.ids import PeerId
from farflung.train.coordinator_state import CoordinatorState, Effect, OpenWindow, QuorumWindow, SkipMember


class PhaseOutcome(NamedTuple):
    """Whether the phase is over, without whom, and what follows from that: once the record is written, if one is."""

    state: CoordinatorState
    is_over: bool
    effects: list[Effect]


def phase_outcome(state: CoordinatorState, arrived: Collection[PeerId]) -> PhaseOutcome:
    """The state of the open phase now that these members have arrived."""
    late = state.in_round - set(arrived)
    if not late:
        return PhaseOutcome(state, True, [])
    total, missing = (sum(state.assigned[p] for p in peers) for peers in (state.in_round, late))
    if total - missing < max(1, state.quorum * total):
        return PhaseOutcome(replace(state, window=QuorumWindow.SHUT), False, [])
    if state.window is QuorumWindow.OVER:
        return _without(state, late)
    opens: list[Effect] = [OpenWindow(state.round, state.phase)] if state.window is QuorumWindow.SHUT else []
    return PhaseOutcome(replace(state, window=QuorumWindow.OPEN), False, opens)


def _without(state: CoordinatorState, late: frozenset[PeerId]) -> PhaseOutcome:
    window_effects: list[Effect] = [SkipMember(state.round, p, state.phase) for p in sorted(late)]
    members = tuple(p for p in state.members if p not in late)
    return PhaseOutcome(replace(state, members=members, in_round=state.in_round - late), True, window_effects)
