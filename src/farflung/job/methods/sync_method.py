"""Defines what the rest of the house asks of a sync method, with the answer that most methods give.

A method is one value of this class, in one file, under one name (`registry`). It says which parts it is made of and
what it sets by itself; where it does something of its own, it overrides what follows below. Vectors have shape (size,),
float32; a round's state is train.public_state's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from farflung.compress import registry
from farflung.compress.codecs import Codec
from farflung.compress.dgc import kept
from farflung.core.tensor_layout import Float32, TensorLayout
from farflung.job.methods.outer_steps import OUTER_STEPS, OuterStep
from farflung.job.spec import SyncSpec

METHOD: Final = "sync.method"
EXACT_BITS: Final = 32  # values of so many bits are sent as they are
FIRST_PARTS: Final = {"optimizer.name": "optimizers", "sync.codec": "codecs", "sync.outer": "outers"}
USUAL: Final[Mapping[str, Any]] = MappingProxyType(
    {"sync.outer_lr": 1.0, "sync.outer_momentum": 0.0, "optimizer.lr": 3e-3, "optimizer.momentum": 0.9}
)
AGREED: Final[Mapping[str, Any]] = MappingProxyType({"sync.steps": 1, "audit.segments": 1})
Vector = TypeVar("Vector", bound=Any)  # of numpy or of torch


class LinkRole(StrEnum):
    """What a method is tried for when a plan chooses one for given links (advice.method_choice)."""

    NONE = "none"
    LOCAL = "local network"  # in the order of the registry
    BROAD = "broad uplinks"
    NARROW = "narrow uplinks"  # with as many coefficients as fit


class FixedSetting(NamedTuple):
    """A setting that a method leaves no choice in, by its dotted key; `hint`: what to do about another value."""

    key: str
    value: Any
    hint: str = ""


class SharedState(Protocol):
    """What a method sees of public state."""

    @property
    def round(self) -> int:
        """The round that it is the state before."""

    @property
    def vectors(self) -> Mapping[str, Float32]:
        """What is shared beside the weights."""


@dataclass(frozen=True, eq=False)
class SyncMethod:
    """One method. `optimizers`, `codecs` and `outers` are what its parts may be, the first by default; `own` is what
    else it sets, by dotted key. `sends` and `source` are the words of docs/train/methods.

    `is_stepwise`: it agrees after each step, H = 1. `phases`: rounds that one outer step takes. `unproven`: why what a
    step does does not follow from committed state; empty where it does.
    """

    name: str
    source: str
    sends: str
    optimizers: tuple[str, ...]
    codecs: tuple[str, ...]
    outers: tuple[str, ...]
    own: Mapping[str, Any]
    is_stepwise: bool = False
    phases: int = 1
    fixed: tuple[FixedSetting, ...] = ()
    unproven: str = ""
    role: LinkRole = LinkRole.NONE

    @property
    def defaults(self) -> Mapping[str, Any]:
        """What naming it sets, by dotted key."""
        first = {key: getattr(self, parts)[0] for key, parts in FIRST_PARTS.items()}
        return MappingProxyType({**first, **USUAL, **(AGREED if self.is_stepwise else {}), **self.own})

    # What is sent.

    def density(self, sync: SyncSpec, round: int) -> int:
        """Coefficients of a chunk that a round sends: never more than in the round before."""
        return kept(round, sync.warmup_rounds, sync.topk, sync.chunk)

    def codec(self, sync: SyncSpec, density: int) -> Codec:
        """The codec of a round of such `density`. Raises SpecError FF-COMP-030 to -033, -045."""
        return registry.make(
            sync.codec,
            value_bits=sync.value_bits,
            topk=density,
            chunk=sync.chunk,
            transform=sync.transform,
            rank=sync.rank,
            error_decay=sync.error_decay,
        )

    def has_residual(self, sync: SyncSpec) -> bool:
        """Whether a peer keeps what it has not sent (error feedback)."""
        return not (sync.codec == "dense" and sync.value_bits == EXACT_BITS)

    def describe(self, sync: SyncSpec) -> str:
        """What is sent in a few words: `dense 2-bit`, `topk 32/4096 fp32 dct`."""
        density = f" {sync.topk}/{sync.chunk}" if sync.codec == "topk" else ""
        bits = "fp32" if sync.value_bits == EXACT_BITS else f"{sync.value_bits}-bit"
        transform = "" if sync.transform == "raw" else f" {sync.transform}"
        return f"{sync.codec}{density} {bits}{transform}"

    # What a peer does alone.

    def clip_limit(self, limit: float, peers: int) -> float:
        """The norm that one of so many peers holds its own gradient to, where a job's optimizer.clip is `limit`."""
        return limit

    def begun(self, vector: Vector, residual: Vector) -> Vector:
        """A vector of the inner optimizer as a round begins with it, given what is unsent of earlier rounds."""
        return vector

    # What all do alike.

    def outer(self, sync: SyncSpec) -> OuterStep:
        """The step that follows a merge."""
        return OUTER_STEPS[sync.outer]

    def shared(self, sync: SyncSpec, round: int) -> frozenset[str]:
        """Names of the vectors that public state may hold before `round`, beside the weights and what is pending."""
        return frozenset(self.outer(sync).vectors(sync))

    def first(self, sync: SyncSpec) -> frozenset[str]:
        """Those of `shared` that begin as zeros; the others are absent until a round makes them."""
        return self.shared(sync, 0)

    def all_shared(self, sync: SyncSpec) -> frozenset[str]:
        """Names of all that public state may ever hold on its account."""
        return frozenset().union(*(self.shared(sync, round) for round in range(2 * self.phases)))

    def encoder(self, codec: Codec, state: SharedState, layout: TensorLayout, seed: int) -> Codec:
        """The codec as it encodes contributions to `state`'s round."""
        return codec

    def settled(
        self, codec: Codec, state: SharedState, layout: TensorLayout, mean: Float32 | None
    ) -> tuple[Float32 | None, Mapping[str, Float32]]:
        """The mean of a round's decoded payloads (None without any) → the change to apply (None: none yet), and what
        public state shares from here on.
        """
        return mean, state.vectors

    def taken(self, codec: Codec, state: SharedState, layout: TensorLayout, said: Float32) -> Float32:
        """What a payload that decodes to `said` took out of its maker's residual."""
        return said
