"""Defines the public state P_r that every honest peer holds alike, its root, and its byte form for peers that
join.

A snapshot is stale when it is not of the round that was asked for; the receiver compares its root with the
one in the signed run log, so that a snapshot may come from anybody.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from farflung.core.errors import RunError, VerificationError
from farflung.core.ids import Hash, short
from farflung.core.tensor_layout import Float32, TensorLayout, state_root
from farflung.job.methods.registry import shared_names
from farflung.train import tensor_file
from farflung.train.blobs import Blob
from farflung.train.tensor_file import TensorFileContent, TensorFileKind

KIND: Final = TensorFileKind(b"FFSTATE\x02", "snapshot", "fetch the snapshot again, from another peer")
PARAMS: Final = "params"
PENDING: Final = "pending"  # a merged change that is applied a round later


@dataclass(frozen=True, eq=False)
class PublicState:
    """State before `round`: flat vectors of shape (layout.size,), read-only; `vectors` are what the method shares
    besides parameters, by their names (job.methods), and what is pending.
    """

    round: int
    params: Float32
    vectors: Mapping[str, Float32] = field(default_factory=dict)
    _roots: dict[Hash, Hash] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        for vector in self.sections.values():
            vector.flags.writeable = False  # a cached root must stay true

    @property
    def sections(self) -> dict[str, Float32]:
        """The vectors by the names under which they are hashed and stored."""
        return {PARAMS: self.params, **self.vectors}

    def root(self, layout: TensorLayout) -> Hash:
        """The state's root (core.layout.state_root), computed once."""
        key = layout.id
        if key not in self._roots:
            self._roots[key] = state_root(layout, self.sections)
        return self._roots[key]


def pack(state: PublicState, layout: TensorLayout) -> bytes:
    """The one byte form of public state."""
    return bytes(pieces(state, layout))


def pieces(state: PublicState, layout: TensorLayout) -> Blob:
    """The same, with the vectors where they are."""
    return tensor_file.pieces(KIND, layout, TensorFileContent(state.round, 0, state.sections))


def unpack(data: Blob, layout: TensorLayout) -> PublicState:
    """Reads `pack`'s form; raises RunError FF-TRAIN-070 (damaged) or FF-TRAIN-071 (another model)."""
    found = tensor_file.unpack(KIND, data, layout)
    if found.step or set(found.vectors) - {PENDING, *shared_names()} != {PARAMS}:
        raise RunError(
            "FF-TRAIN-070", "damaged snapshot", cause="its sections are not those of public state", hint=KIND.hint
        )
    params = found.vectors.pop(PARAMS)
    return PublicState(found.round, params, found.vectors)


def check(state: PublicState, layout: TensorLayout, round: int, root: Hash | None = None) -> PublicState:
    """`state` when it is of `round` and under `root`.

    Raises RunError FF-TRAIN-072 (stale: another round) and VerificationError FF-TRAIN-073 (another root).
    """
    if state.round != round:
        raise RunError(
            "FF-TRAIN-072",
            "stale snapshot",
            cause=f"it is of round {state.round}, and round {round} was asked for",
            hint="fetch the newest snapshot, then replay the log from its round",
        )
    if root is not None and state.root(layout) != root:
        raise VerificationError(
            "FF-TRAIN-073",
            "snapshot is not the state in the log",
            cause=f"its root is {short(state.root(layout))}, the log says {short(root)}",
            hint=KIND.hint,
        )
    return state
