"""Lists the loss that methods were measured to cost: figures of bench/train.py, for those settings and no
others.

`above` is how many per cent the validation loss ended above that of the best dense run, on the same tokens, each method
at its own best learning rate. A test holds the table to bench/results/train.jsonl, and writes it from there:
tests/advice/test_advice_method_loss_table.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from farflung.job.spec import SyncSpec
from farflung.plan.run_plan import describe_codec


class LossSetting(NamedTuple):
    """What a figure holds for: the method, its local steps, and how it encodes."""

    method: str
    steps: int
    codec: str


CONDITION: Final = "a GPT of 1.03 M parameters on bytes, 4 peers, 2,000 steps, 3 seeds"
ABOVE: Final[Mapping[LossSetting, float]] = MappingProxyType(
    {
        # measured: begin
        LossSetting("muloco", 12, "dense 2-bit"): 3.7,
        LossSetting("muloco", 20, "dense 2-bit"): 4.2,
        LossSetting("muloco", 30, "topk 256/4096 2-bit"): 13.4,
        LossSetting("sparse_loco", 20, "topk 64/4096 2-bit"): 23.5,
        LossSetting("dense", 1, "dense fp32"): 24.3,
        LossSetting("diloco", 20, "dense fp32"): 35.9,
        LossSetting("demo", 1, "topk 32/4096 4-bit dct"): 36.3,
        LossSetting("demo", 1, "topk 32/4096 fp32 dct"): 37.4,
        LossSetting("powersgd", 1, "low_rank 4"): 39.9,
        LossSetting("local_sgd", 20, "dense fp32"): 43.9,
        LossSetting("dgc", 1, "topk 4/4096 fp32, 200 rounds of warm-up"): 60.2,
        # measured: end
    }
)


def setting_of(sync: SyncSpec) -> LossSetting:
    """A job's [sync] as the table names it."""
    warm = f", {sync.warmup_rounds} rounds of warm-up" if sync.warmup_rounds else ""
    late = ", a round late" if sync.delay else ""
    parts = f", {sync.fragments} fragments" if sync.fragments > 1 else ""
    return LossSetting(sync.method, sync.steps, describe_codec(sync) + warm + late + parts)


def above(sync: SyncSpec) -> float | None:
    """Per cent of loss above the best dense run; None: this setting was not measured."""
    return ABOVE.get(setting_of(sync))


def nearest(sync: SyncSpec) -> LossSetting | None:
    """Of the measured settings of the same method, the one whose codec, then rounds are most like it; None: none."""

    def unlike(setting: LossSetting) -> tuple[bool, float]:
        return setting.codec.split()[0] != sync.codec, abs(math.log(setting.steps / sync.steps))

    return min((setting for setting in ABOVE if setting.method == sync.method), key=unlike, default=None)


def told(sync: SyncSpec) -> str:
    """What was measured of it, or of what is most like it, in words."""
    found, near = above(sync), nearest(sync)
    if found is not None:
        return f"{found:g} % above the best dense run's"
    if near is None:
        return f"not measured, nor was {sync.method} at any settings"
    said = f"{near.method} H={near.steps} {near.codec}"
    return f"not measured at these settings; {said}: {ABOVE[near]:g} % above the best dense run's"


SLOPE: Final = 0.06  # per cent of loss for each local step away from a measured one: muloco's, from 12 to 20


def expected(sync: SyncSpec) -> float:
    """Per cent of loss above the best dense run that a [sync] is taken to cost: that of its method's nearest measured
    setting, of the same codec if there is one, and SLOPE for each local step beyond. Of a method that was not measured:
    the most that any one lost.
    """
    wanted = setting_of(sync)
    own = {one: loss for one, loss in ABOVE.items() if one.method == wanted.method}
    alike = {one: loss for one, loss in own.items() if one.codec == wanted.codec} or own
    if not alike:
        return max(ABOVE.values(), default=0.0)
    _, steps, loss = min((abs(one.steps - sync.steps), one.steps, loss) for one, loss in alike.items())
    return loss + SLOPE * max(0, sync.steps - steps)
