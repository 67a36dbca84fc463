"""A sync method as a package of somebody else has it: signSGD with majority vote, on the largest of each chunk.

Bernstein et al. 2018, arXiv 1802.04434, with error feedback: a bit for each, and an outer step by the sign of a running
vote, a vector that no other method shares.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from farflung.compress.codecs import Codec
from farflung.compress.sparse import TopKCodec
from farflung.core.canon.float_operations import apply_sign
from farflung.core.tensor_layout import Float32
from farflung.job.methods.outer_steps import OuterSetting, OuterStep
from farflung.job.methods.sync_method import FixedSetting, LinkRole, SyncMethod
from farflung.job.spec import SyncSpec

VOTES = "votes"


def vote(setting: OuterSetting, params: Float32, change: Float32, kept: Mapping[str, Float32]) -> Float32:
    kept[VOTES][:] = np.float32(0.5) * kept[VOTES] + np.sign(change)
    return apply_sign(params, kept[VOTES], setting.rate)


class MajorityVote(SyncMethod):
    def codec(self, sync: SyncSpec, density: int) -> Codec:
        return TopKCodec(1, density, sync.chunk, "raw", sync.error_decay)

    def has_residual(self, sync: SyncSpec) -> bool:
        return True

    def describe(self, sync: SyncSpec) -> str:
        return f"{sync.topk} signs of {sync.chunk}"

    def outer(self, sync: SyncSpec) -> OuterStep:
        return OuterStep(lambda sync: (VOTES,), vote)

    def clip_limit(self, limit: float, peers: int) -> float:
        return 0.0


SIGN_VOTE = MajorityVote(
    "sign_vote",
    source="Bernstein et al. 2018",
    sends="8 signs of 4096",
    optimizers=("gradient",),
    codecs=("topk",),
    outers=("sign",),
    is_stepwise=True,
    fixed=(FixedSetting("sync.value_bits", 1, "a vote is a bit"),),
    unproven="is tried here for the first time",
    role=LinkRole.LOCAL,
    own={"optimizer.lr": 1e-3, "optimizer.momentum": 0.0, "sync.value_bits": 1, "sync.topk": 8, "sync.chunk": 4096},
)
