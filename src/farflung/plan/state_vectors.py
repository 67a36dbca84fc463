"""Lists the vectors, as long as the weights, that the peers of a job keep, show and open; the rest counts them
in bytes.

Private to a peer are the vectors of its inner optimizer, the residual of error feedback, and in streaming methods the
offset of its weights from the public ones. Public beside the weights is what the outer optimizer remembers.
"""

from __future__ import annotations

import functools
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Protocol

from farflung.core import limits
from farflung.core.tensor_layout import TensorLayout
from farflung.job.methods.registry import method_of
from farflung.job.spec import JobSpec, SyncSpec


class ExpectedLength(Protocol):
    """What a plan needs to know of a payload format."""

    def expect(self, layout: TensorLayout) -> float:
        """Modelled length of one encoded payload, in bytes."""
        ...

    def __hash__(self) -> int: ...


INNER: Final[Mapping[str, int]] = MappingProxyType({"adamw": 2, "sgd": 1, "muon": 2, "gradient": 1})
FLOAT: Final = 4
LINE_SHARE: Final = 0.8  # of the longest time for a state, that moving it may take: it is sealed first, and lines vary


@dataclass(frozen=True)
class VaryingDensity:
    """A payload format whose density changes: the mean over its rounds, of which each codec has some."""

    shares: tuple[tuple[ExpectedLength, int], ...]

    def expect(self, layout: TensorLayout) -> float:
        """Modelled mean length of one encoded payload, in bytes."""
        whole = sum(rounds * codec.expect(layout) for codec, rounds in self.shares)
        return whole / sum(rounds for _, rounds in self.shares)


def codec_of(sync: SyncSpec, rounds: int = 0) -> ExpectedLength:
    """How long payloads of a job's [sync] are: the mean of its first `rounds`, where density warms up; 0: afterwards.

    Raises SpecError FF-COMP-030 to -033, -045; `expect` raises FF-COMP-046 where no matrix of the model has factors.
    """
    method = method_of(sync.method)
    shares = tuple((method.codec(sync, topk), count) for topk, count in densities(sync, rounds).items())
    return VaryingDensity(shares) if len(shares) > 1 else shares[0][0]


def densities(sync: SyncSpec, rounds: int) -> Counter[int]:
    """How many of the first `rounds` send so many coefficients of a chunk; all `topk` where nothing warms up."""
    counts = Counter[int]()
    at, warm, density = 0, min(rounds, sync.warmup_rounds), method_of(sync.method).density

    def fewer(round: int) -> int:
        return -density(sync, round)

    while at < warm:  # density only falls: rounds of one density lie side by side
        now = fewer(at)
        after = at + bisect_left(range(at, warm), now + 1, key=fewer)
        counts[-now] += after - at
        at = after
    if rounds > warm or not counts:
        counts[sync.topk] += max(1, rounds - warm)
    return counts


def inner_vectors(spec: JobSpec) -> int:
    """Vectors that the inner optimizer keeps."""
    return INNER[spec.optimizer.name]


def has_residual(sync: SyncSpec) -> bool:
    """Whether the codec keeps what it has not sent (error feedback)."""
    return method_of(sync.method).has_residual(sync)


def has_offset(sync: SyncSpec) -> bool:
    """Whether a peer's weights lie apart from the public ones when a round begins (streaming, delay)."""
    return sync.fragments > 1 or sync.delay > 0


def carried_vectors(sync: SyncSpec) -> int:
    """Vectors that a peer carries from round to round beside its optimizer's."""
    return int(has_residual(sync)) + int(has_offset(sync))


def opened_bytes(spec: JobSpec, layout: TensorLayout) -> int:
    """Bytes of the largest state that an audit opens: weights, the inner optimizer's vectors, and what is carried."""
    return FLOAT * layout.size * (1 + inner_vectors(spec) + carried_vectors(spec.sync))


def owed_rate(spec: JobSpec, layout: TensorLayout) -> float:
    """Bytes a second that a provider's line must carry, so that what an audit may ask of it comes in time; 0: nothing
    is audited. A state has the time that limits.OWED_RATE takes, and limits.OWED_SECONDS at most.
    """
    size = opened_bytes(spec, layout) if spec.is_audited else 0
    least = limits.OWED_LEAST_SECONDS + size / limits.OWED_RATE
    return size / min(least, LINE_SHARE * limits.OWED_SECONDS)


def outer_vectors(sync: SyncSpec) -> int:
    """Vectors of public state beside the weights: an outer optimizer's momentum, or mean and square; a merged change
    that waits a round; PowerSGD's warm start and, in every second round, its basis.
    """
    return len(method_of(sync.method).all_shared(sync)) + int(sync.delay > 0)


def payload_bytes(sync: SyncSpec, layout: TensorLayout, codec: ExpectedLength | None = None) -> float:
    """Modelled bytes of one payload: a fragment's share where rounds take turns, the mean where phases do."""
    return _expected(codec or codec_of(sync), layout) / min(sync.fragments, len(layout.tensors))


@functools.lru_cache(maxsize=1024)  # a search asks for the same stages of a model over many lines
def _expected(codec: ExpectedLength, layout: TensorLayout) -> float:
    return codec.expect(layout)
