"""What methods were measured to cost in loss: figures of bench/train.py, for those settings and no others.

`above` is how many per cent the held-out loss ended above that of the best dense run, on the same tokens, each method
at its own best learning rate. A test holds the table to bench/results/train.jsonl, and writes it from there:
tests/plan/test_plan_measured.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from farflung.job.spec import SyncSpec
from farflung.plan.advise import describe_codec


class Setting(NamedTuple):
    """What a figure holds for: the method, its local steps, and how it encodes."""

    method: str
    steps: int
    codec: str


CONDITION: Final = "a GPT of 1.03 M parameters on bytes, 4 peers, 2,000 steps, 3 seeds"
ABOVE: Final[Mapping[Setting, float]] = MappingProxyType(
    {
        # measured: begin
        # measured: end
    }
)


def setting_of(sync: SyncSpec) -> Setting:
    """A job's [sync] as the table names it."""
    warm = f", {sync.warmup_rounds} rounds of warm-up" if sync.warmup_rounds else ""
    late = ", a round late" if sync.delay else ""
    parts = f", {sync.fragments} fragments" if sync.fragments > 1 else ""
    return Setting(sync.method, sync.steps, describe_codec(sync) + warm + late + parts)


def above(sync: SyncSpec) -> float | None:
    """Per cent of loss above the best dense run; None: this setting was not measured."""
    return ABOVE.get(setting_of(sync))
