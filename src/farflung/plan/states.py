"""Which vectors, as long as the weights, the peers of a job keep, show and open: everything else counts them in bytes.

Private to a peer are the vectors of its inner optimizer, the residual of error feedback, and in streaming methods the
offset of its weights from the public ones. Public beside the weights is what the outer optimizer remembers.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Protocol

from farflung.compress import registry
from farflung.core.layout import Layout
from farflung.job.spec import JobSpec, SyncSpec


class Expecting(Protocol):
    """What a plan needs to know of a payload format."""

    def expect(self, layout: Layout) -> float:
        """Modelled length of one encoded payload, in bytes."""
        ...


INNER: Final[Mapping[str, int]] = MappingProxyType({"adamw": 2, "sgd": 1, "muon": 2, "gradient": 1})
FLOAT: Final = 4
EXACT_BITS: Final = 32  # dense values of so many bits leave nothing unsent


def codec_of(sync: SyncSpec) -> Expecting:
    """How long payloads of a job's [sync] are.

    Raises SpecError FF-COMP-030 to -033, -045; `expect` raises FF-COMP-046 where no matrix of the model has factors.
    """
    return registry.make(
        sync.codec,
        value_bits=sync.value_bits,
        topk=sync.topk,
        chunk=sync.chunk,
        transform=sync.transform,
        rank=sync.rank,
        error_decay=sync.error_decay,
    )


def inner_vectors(spec: JobSpec) -> int:
    """Vectors that the inner optimizer keeps."""
    return INNER[spec.optimizer.name]


def has_residual(sync: SyncSpec) -> bool:
    """Whether the codec keeps what it has not sent (error feedback)."""
    return not (sync.codec == "dense" and sync.value_bits == EXACT_BITS)


def has_offset(sync: SyncSpec) -> bool:
    """Whether a peer's weights lie apart from the public ones when a round begins (streaming, delay)."""
    return sync.fragments > 1 or sync.delay > 0


def carried_vectors(sync: SyncSpec) -> int:
    """Vectors that a peer carries from round to round beside its optimizer's."""
    return int(has_residual(sync)) + int(has_offset(sync))


def outer_vectors(sync: SyncSpec) -> int:
    """Vectors of public state beside the weights: an outer optimizer's momentum, or mean and square; a merged change
    that waits a round; PowerSGD's warm start and, in every second round, its basis.
    """
    momentum = 1 if sync.outer == "sgd" and sync.outer_momentum > 0 else 0
    moments = 2 if sync.outer == "adamw" else momentum
    return moments + int(sync.delay > 0) + (2 if sync.codec == "low_rank" else 0)


def payload_bytes(sync: SyncSpec, layout: Layout, codec: Expecting | None = None) -> float:
    """Modelled bytes of one payload: a fragment's share where rounds take turns, the mean where phases do."""
    whole = (codec or codec_of(sync)).expect(layout)
    return whole / min(sync.fragments, len(layout.tensors))
