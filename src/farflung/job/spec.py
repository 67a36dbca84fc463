"""A job, as frozen structs: what a person writes in TOML, and the terms that the ledger fixes before the work.

Every degree of freedom that a worker could have chosen (data order, schedule, seed, initial weights, sync
method) is in here and hashed into the job's id (V2: "spec before work").
"""

from __future__ import annotations

from typing import Literal

from farflung.core.codec import Wire, encode
from farflung.core.crypto import NS_SPEC, digest
from farflung.core.ids import Hash, PeerId
from farflung.core.layout import Layout


class ModelSpec(Wire, frozen=True):
    """A built-in byte-level GPT by its sizes, or `module = "file.py:function"` that returns an nn.Module.

    The user's module is called as `module(x_BT, y_BT)` with int64 tokens and returns a scalar loss.
    """

    kind: Literal["gpt", "module"] = "gpt"
    layers: int = 4
    width: int = 128
    heads: int = 4
    context: int = 64
    vocabulary: int = 256
    module: str = ""


class DataSpec(Wire, frozen=True):
    """`stdlib`, or the path of a text file, a folder of text files, or a .npy / .safetensors file of tokens.

    `limit` > 0 takes whole text files, drawn by their names, of at most so many bytes together.
    """

    path: str = "stdlib"
    heldout: float = 0.05
    limit: int = 0


class OptimizerSpec(Wire, frozen=True):
    """The inner optimizer, run by each peer on its own: `adamw` (Loshchilov & Hutter 2019) or `sgd`."""

    name: Literal["adamw", "sgd"] = "adamw"
    lr: float = 3e-3
    beta1: float = 0.9
    beta2: float = 0.99
    eps: float = 1e-8
    weight_decay: float = 0.1
    momentum: float = 0.9
    clip: float = 1.0


class ScheduleSpec(Wire, frozen=True):
    """Learning rate over all steps of the run: linear warm-up, then cosine down to `final` of the peak."""

    kind: Literal["cosine", "constant"] = "cosine"
    warmup: int = 30
    final: float = 0.1


class SyncSpec(Wire, frozen=True):
    """How peers agree: H local steps, one codec, one outer step.

    `diloco` sends the whole change (dense_fp32 or dense_2bit), `sparse_loco` its largest coefficients with error
    feedback (topk_2bit). outer_momentum 0 is plain averaging scaled by outer_lr.
    """

    method: Literal["sparse_loco", "diloco"] = "sparse_loco"
    steps: int = 20
    codec: Literal["topk_2bit", "dense_2bit", "dense_fp32"] = "topk_2bit"
    topk: int = 768
    chunk: int = 4096
    error_decay: float = 0.95
    outer_lr: float = 1.0
    outer_momentum: float = 0.0
    nesterov: bool = True


class NetworkSpec(Wire, frozen=True):
    """The local network: how many providers and verifiers, and the requester's port (0: any free one).

    The first `hidden` providers listen nowhere, as behind a home's router: they are reached through a relay.
    """

    providers: int = 5
    verifiers: int = 2
    hidden: int = 2
    port: int = 0


class AuditSpec(Wire, frozen=True):
    """How the work is checked (V2): a round's steps are cut into `segments`; of each contribution one segment and
    the encoding are repeated with probability `rate`, and always while fewer than `probation` contributions of the
    peer were accepted in a row: whoever was away begins anew.
    """

    segments: int = 4
    rate: float = 0.125
    probation: int = 2


class EvaluateSpec(Wire, frozen=True):
    """Held-out loss: every `every` rounds on `tokens` tokens, and at the end on `final_tokens`."""

    every: int = 4
    tokens: int = 16384
    final_tokens: int = 65536


class JobSpec(Wire, frozen=True):
    """The whole job as a person asks for it."""

    name: str = "local"
    seed: int = 1
    rounds: int = 20
    batch: int = 8
    budget: str = "5"
    unit_price: str = "0.000001"
    model: ModelSpec = ModelSpec()
    data: DataSpec = DataSpec()
    optimizer: OptimizerSpec = OptimizerSpec()
    schedule: ScheduleSpec = ScheduleSpec()
    sync: SyncSpec = SyncSpec()
    network: NetworkSpec = NetworkSpec()
    evaluate: EvaluateSpec = EvaluateSpec()
    audit: AuditSpec = AuditSpec()

    @property
    def steps(self) -> int:
        """Inner steps of the whole run, of each peer."""
        return self.rounds * self.sync.steps

    @property
    def round_tokens(self) -> int:
        """Tokens that one peer trains on in one round: its weight, and the units it is paid for."""
        return self.batch * self.model.context * self.sync.steps

    @property
    def borders(self) -> tuple[int, ...]:
        """Steps of a round after which its segments end, 0 first: (0, 5, 10, 15, 20) for 20 steps in 4 segments."""
        return tuple(self.sync.steps * i // self.segments for i in range(self.segments + 1))

    @property
    def segments(self) -> int:
        """Segments of a round: as many as asked for, or one a step where a round has fewer steps."""
        return min(self.audit.segments, self.sync.steps)

    @property
    def is_audited(self) -> bool:
        """Whether any contribution can be drawn."""
        return self.audit.rate > 0 or self.audit.probation > 0

    @property
    def verifiers(self) -> int:
        """How many verifiers the network has: none where nothing is ever drawn."""
        return self.network.verifiers if self.is_audited else 0

    @property
    def hidden(self) -> int:
        """How many providers are reached through the relay only."""
        return min(self.network.hidden, self.network.providers)


class Tolerance(Wire, frozen=True):
    """How far honest work may lie apart, as the job's own profile run measured it (train.profile).

    For each vector of a segment's state (`params`, then the optimizer's), one limit a tensor in layout order: 2^-30 of
    the segment's own change for weights, of the vector itself for the optimizer's (train.segments.distances). 0 marks a
    noise tensor, which no verdict looks at.
    """

    limits: tuple[tuple[str, tuple[int, ...]], ...] = ()


class Terms(Wire, frozen=True):
    """What the ledger fixes before the first step. `id` is the job's id."""

    spec: JobSpec
    dataset: Hash  # content hash of the packed data set
    module: Hash  # content hash of the user's model source, or ZERO_HASH
    layout: Layout
    requester: PeerId  # who may put the job on the ledger, and signs its log
    initial_root: Hash  # root of the public state of round 0: weights travel as a file, never as a seed
    tolerance: Tolerance = Tolerance()

    @property
    def id(self) -> Hash:
        """The job's id: the hash of its terms."""
        return digest(NS_SPEC, encode(self))
