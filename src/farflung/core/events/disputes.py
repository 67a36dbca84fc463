"""Defines the events of a dispute over a segment: each stage that its game reaches, and its end."""

from __future__ import annotations

from farflung.core.events.base import Event


class DisputeStageEvent(Event, frozen=True, tag="played"):
    """The game over a segment that `peer` is accused of has come to another place (docs/protocol/dispute).

    stage: offered, first, descend, verdict, show or referee; `turn`: either, both or anybody. At `level` of the trees
    and leaf `first` both sides' nodes, `accused` and `other`, differ; `leaves` lie below, of `total`. `step` to `until`
    of `steps` of the segment are there; the number `steps` names the judgement behind them. `game`: accusers play one
    after the other, until one wins.
    """

    peer: str
    round: int
    segment: int
    stage: str
    turn: str
    height: int
    level: int = 0
    first: int = 0
    leaves: int = 0
    total: int = 0
    step: int = 0
    until: int = 0
    steps: int = 0
    game: int = 0
    accused: str = ""
    other: str = ""
    challenger: str = ""


class DisputeEndEvent(Event, frozen=True, tag="ruled"):
    """A dispute over a segment of `peer` is over. Money in pico-credits.

    ended: upheld, overturned, forfeit or lapsed; `by`: element, verdict, silence, clock or jury; `silent`: accused,
    challenger; `roots`: of both sides' trees. With `by` element: leaf `leaf` is of value `value` of the program, made
    by `op` from `made_of` (an input has a `name`), with the tensor `near` and, where it is one after the step,
    `becomes`; `accused`, `other` and `law`: its `element` as each side said it, and as the law computed it.
    `blocks` from the accusation on; `sent`: bytes of both sides' hashes, `shown`: of what the referee was shown.
    `slashed` was the accused's stake and bond, of which `bounty` and `burnt`; `lost` was its accusers', of which
    `gained` is the accused's and the rest burnt.
    """

    peer: str
    round: int
    segment: int
    ended: str
    by: str
    height: int
    blocks: int = 0
    challenger: str = ""
    silent: tuple[str, ...] = ()
    roots: tuple[str, ...] = ()
    leaf: int = -1
    step: int = -1
    steps: int = 0
    value: int = -1
    op: str = ""
    name: str = ""
    made_of: tuple[str, ...] = ()
    becomes: str = ""
    near: str = ""
    shape: tuple[int, ...] = ()
    element: tuple[int, ...] = ()
    accused: str = ""
    other: str = ""
    law: str = ""
    sent: int = 0
    shown: int = 0
    slashed: int = 0
    bounty: int = 0
    burnt: int = 0
    lost: int = 0
    gained: int = 0
