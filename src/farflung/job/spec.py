"""Defines a job as frozen structs: what a person writes in TOML, and the terms the ledger fixes before work.

Every degree of freedom that a worker could have chosen (data order, schedule, seed, initial weights, sync
method) is in here and hashed into the job's id (V2: "spec before work").
"""

from __future__ import annotations

from typing import Any, Final, Literal

from msgspec.structs import astuple, replace

from farflung.core.canon.program import CanonicalProgram, job_id
from farflung.core.codec import Wire, encode
from farflung.core.crypto import NS_TERMS, digest
from farflung.core.ids import ZERO_HASH, Hash, PeerId
from farflung.core.money import MICRO, format_credits
from farflung.core.tensor_layout import TensorLayout

TOKEN_FILES: Final = (".npy", ".safetensors")  # data that are tokens already


class ModelSpec(Wire, frozen=True):
    """A built-in byte-level GPT by its sizes, or `module = "file.py:function"` that returns an nn.Module.

    The user's module is called as `module(x_BT, y_BT)` with int64 tokens and returns a scalar loss.
    `start`: the finished run, or published model, whose final weights this one begins with (V4); '': from the seed.
    `recompute`: `blocks` keeps the input of each repeated block alone and computes the block again in the backward pass
    (Chen et al. 2016), to the same bits.
    """

    kind: Literal["gpt", "module"] = "gpt"
    layers: int = 4
    width: int = 128
    heads: int = 4
    context: int = 256
    vocabulary: int = 256
    module: str = ""
    start: str = ""
    recompute: Literal["none", "blocks"] = "none"


class DataSpec(Wire, frozen=True):
    """`stdlib`, or the path of a text file, a folder of text files, or a .npy / .safetensors file of tokens.

    `limit` > 0 takes whole text files, drawn by their names, of at most so many bytes together.
    """

    path: str = "stdlib"
    heldout: float = 0.05
    limit: int = 0

    @property
    def is_text(self) -> bool:
        """Whether tokens are the bytes of text, not numbers that only their maker can read."""
        return not self.path.endswith(TOKEN_FILES)


class OptimizerSpec(Wire, frozen=True):
    """The inner optimizer, run by each peer on its own.

    `adamw` (Loshchilov & Hutter 2019), `sgd` with heavy-ball momentum, `muon` (Jordan et al. 2024: orthogonalised
    momentum for matrices, AdamW for embeddings, heads and vectors), or `gradient`: weights stay where they are, the
    gradient itself is sent each step, and the outer optimizer moves them at rate `lr`.
    """

    name: Literal["adamw", "sgd", "muon", "gradient"] = "muon"
    lr: float = 1e-2
    beta1: float = 0.9
    beta2: float = 0.99
    eps: float = 1e-8
    weight_decay: float = 0.1
    momentum: float = 0.95
    clip: float = 1.0


class ScheduleSpec(Wire, frozen=True):
    """Learning rate over all steps of the run: linear warm-up, then cosine down to `final` of the peak.

    `begin`: steps that runs before this one made (`model.start`): the schedule goes on behind them, to this run's end.
    """

    kind: Literal["cosine", "constant"] = "cosine"
    warmup: int = 30
    final: float = 0.1
    begin: int = 0


class SyncSpec(Wire, frozen=True):
    """How peers agree: H local steps, one codec with error feedback, one outer step. `method` names one of
    job.methods.registry, which sets them.

    `dense` sends every element, `topk` the largest of each chunk, `low_rank` factors of each matrix; `value_bits` each,
    of the values or of their `transform`. The outer optimizer adds the merged change times outer_lr (`sgd`; with
    outer_momentum 0 plain averaging), or feeds it to `adamw`, or takes its `sign`. `warmup_rounds`: dgc's density
    falls to topk / chunk over them. `fragments` > 1: a round sends one part of the tensors in turn; `delay` 1: what a
    round sends is applied a round later. `merge`: each contribution's norm is held to the median around zero
    (`clip`), or around the centre of all (`centered`: Karimireddy et al. 2021), tensor by tensor.
    """

    method: str = "muloco"
    steps: int = 20
    codec: Literal["dense", "topk", "low_rank"] = "dense"
    value_bits: Literal[1, 2, 4, 8, 16, 32] = 2
    topk: int = 64
    chunk: int = 4096
    transform: Literal["raw", "dct", "auto"] = "raw"
    rank: int = 4
    error_decay: float = 0.95
    outer: Literal["sgd", "adamw", "sign"] = "sgd"
    outer_lr: float = 0.8
    outer_momentum: float = 0.6
    nesterov: bool = True
    warmup_rounds: int = 0
    fragments: int = 1
    delay: int = 0
    merge: Literal["clip", "centered"] = "clip"


class NetworkSpec(Wire, frozen=True):
    """The local network: how many providers and verifiers, and the requester's port (0: any free one).

    The first `hidden` providers listen nowhere, as behind a home's router: they are reached through a relay. `image`:
    `mine` hires only nodes that say that they run the requester's own farflung: their word, not a proof of work.
    `machines`: the class that a plan over offers and a quote ask of a machine (advice.hardware.admission): C refuses
    one that misses a rule, `any` warns.
    """

    providers: int = 5
    verifiers: int = 3
    hidden: int = 2
    port: int = 0
    image: Literal["any", "mine"] = "any"
    machines: Literal["any", "A", "B", "C"] = "any"


class AuditSpec(Wire, frozen=True):
    """How the work is checked (V2): a round's steps are cut into `segments`; of each contribution one segment and
    the encoding are repeated with probability `rate`, and always while fewer than `probation` contributions of the
    peer were accepted in a row: whoever was away begins anew.

    `speed`: a contribution is also repeated where its peer committed so many times sooner than its machine's benchmark
    allows (verify.speed_check); 0: not judged.
    `proof`: the class of the job (job.proof_class). `auto` is proven where work is audited and the model's step can be
    traced, and outcome only elsewhere; `proven` refuses what would be outcome only; `outcome` traces nothing.
    `canaries`: share of drawn contributions of which one verifier is first shown an end that is known to be false (V2);
    who finds it is paid for the segment and `jackpot` times as much besides.
    `probe`: tokens on which a verifier measures what each contribution does to the loss (job.proof.probe_of).
    `verifiers`: keys of the only nodes that may check the work, as lower-case hex; (): the market chooses them. Named
    verifiers take no stake, and the job is outcome only (decision 097).
    """

    segments: int = 5
    rate: float = 0.1
    probation: int = 2
    speed: float = 0.0
    proof: Literal["auto", "proven", "outcome"] = "auto"
    canaries: float = 0.0
    jackpot: int = 0
    probe: int = 0
    verifiers: tuple[str, ...] = ()


class ChurnSpec(Wire, frozen=True):
    """What a round does about slow members. It waits for all (`quorum` 1); else, once members with a `quorum` of the
    round's assigned tokens have arrived, for `grace` times the median time of their arrivals.

    `adaptive`: each member gets as many of the sync.steps as it can make in the time of the median member, and all get
    the fewest with which exchanging takes no more than `exchange` of a round (0: all of them). So the result depends on
    measured time, through the log.
    """

    quorum: float = 1.0
    grace: float = 0.5
    adaptive: bool = False
    exchange: float = 0.0


class EvaluateSpec(Wire, frozen=True):
    """Validation loss: every `every` rounds on `tokens` tokens, before the first and at the end on `final_tokens`.

    `stop_loss`: the run ends after the open round when a measured loss is above so many times the one at its start, or
    is no finite number: what was checked is paid, the rest of the escrow returns. 0: never.
    """

    every: int = 4
    tokens: int = 16384
    final_tokens: int = 65536
    stop_loss: float = 2.0


class NumericsSpec(Wire, frozen=True):
    """In what a step computes. `bfloat16`: products of forward and backward pass, as torch.autocast rounds them.

    Weights, gradients, the optimizer, validation losses and everything under a root stay float32. float16 would need
    its losses scaled, and by how much would be one more private state of each peer.
    """

    compute: Literal["float32", "bfloat16"] = "float32"

    @property
    def bits(self) -> int:
        """Of a number that a product is made of."""
        return 32 if self.compute == "float32" else 16


class JobSpec(Wire, frozen=True):
    """The whole job as a person asks for it. `accumulate`: a step's batch is made of so many passes of as many rows
    each, one after another, whose mean gradient moves the weights once.
    """

    name: str = "local"
    seed: int = 1
    rounds: int = 12
    batch: int = 2
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
    churn: ChurnSpec = ChurnSpec()
    accumulate: int = 1
    numerics: NumericsSpec = NumericsSpec()

    @property
    def pass_rows(self) -> int:
        """Rows that one forward and backward pass holds at once."""
        return self.batch // self.accumulate

    @property
    def steps(self) -> int:
        """Inner steps of the whole run, of each peer."""
        return self.rounds * self.sync.steps

    @property
    def round_tokens(self) -> int:
        """Tokens that one peer trains on in one round of all steps: its weight, and the units it is paid for."""
        return self.step_tokens * self.sync.steps

    @property
    def step_tokens(self) -> int:
        """Tokens of one step of one peer."""
        return self.batch * self.model.context

    def is_weight(self, weight: int) -> bool:
        """Whether a contribution may weigh so many tokens: whole steps, one a segment at least, sync.steps at most."""
        return weight % self.step_tokens == 0 and self.segments <= weight // self.step_tokens <= self.sync.steps

    def steps_of(self, weight: int) -> int:
        """Steps of a round in which a peer trains on `weight` tokens (`is_weight`)."""
        return weight // self.step_tokens

    def borders_of(self, steps: int) -> tuple[int, ...]:
        """`borders` of a round in which a peer makes so many steps."""
        return tuple(steps * i // self.segments for i in range(self.segments + 1))

    @property
    def borders(self) -> tuple[int, ...]:
        """Steps of a round after which its segments end, 0 first: (0, 5, 10, 15, 20) for 20 steps in 4 segments."""
        return self.borders_of(self.sync.steps)

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
    def named_verifiers(self) -> tuple[PeerId, ...]:
        """The only nodes that may check the work, in the order of the job file; (): the market chooses."""
        return tuple(PeerId(bytes.fromhex(key)) for key in self.audit.verifiers)

    @property
    def hidden(self) -> int:
        """How many providers are reached through the relay only."""
        return min(self.network.hidden, self.network.providers)


class Tolerance(Wire, frozen=True):
    """How far honest work may lie apart, as the job's own profile run measured it (train.noise_profile).

    For each vector of a segment's state (`params`, then the optimizer's), one limit a tensor in layout order: 2^-30 of
    the segment's own change for weights, of the vector itself for the optimizer's (train.segments.distances). 0 marks a
    noise tensor, which no verdict looks at.
    """

    limits: tuple[tuple[str, tuple[int, ...]], ...] = ()


class AncestorRun(Wire, frozen=True):
    """A finished run that another one stands on (V4): its ledger, its job, and what it came to."""

    chain: Hash  # hash of its ledger's genesis
    job: Hash
    root: Hash  # root of its public state at the end of its log


class JobTerms(Wire, frozen=True):
    """What the ledger fixes before the first step. `id` is the job's id."""

    spec: JobSpec
    dataset: Hash  # content hash of the packed data set
    module: Hash  # content hash of the user's model source, or ZERO_HASH
    layout: TensorLayout
    requester: PeerId  # who may put the job on the ledger, and signs its log
    initial_root: Hash  # root of the public state of round 0: weights travel as a file, never as a seed
    tolerance: Tolerance = Tolerance()
    lineage: tuple[AncestorRun, ...] = ()  # what it stands on, nearest first: each stands on the ones behind it
    dtype: Literal["float32"] = "float32"  # of weights and of all that has a root; a step's: spec.numerics
    stake: int = 0  # pico-credits that each provider and each verifier of the job puts up
    program: CanonicalProgram = CanonicalProgram()  # of its canonical execution; CanonicalProgram(): outcome only
    unproven: str = "no step was traced"  # why there is no program, for people; "" where there is one
    image: Hash = ZERO_HASH  # of the farflung that its nodes must say they run (core.attestations); zero: any

    @property
    def is_proven(self) -> bool:
        """Whether each step can be checked down to one operation (job.proof_class)."""
        return self.program.graph != ZERO_HASH

    @property
    def id(self) -> Hash:
        """The job's id: the hash of its terms, in two levels, so that a ledger can open it to the program alone."""
        return job_id(self.rest, self.program)

    @property
    def rest(self) -> Hash:
        """The hash of all that the terms say but for the program: of the terms with `CanonicalProgram()`."""
        plain = replace(self, program=CanonicalProgram(), spec=JobSpec())
        said = {**dict(zip(self.__struct_fields__, astuple(plain), strict=True)), "stake": _hashed_stake(self.stake)}
        said["spec"] = _hashed(self.spec)
        return digest(NS_TERMS, encode(tuple(said.values())))


def _hashed_stake(stake: int) -> int | str:
    """Whole micro-credits as their number, so that a job has the id that it had when money was counted in them."""
    return stake // MICRO if stake % MICRO == 0 else format_credits(stake)


def _hashed(spec: JobSpec) -> tuple[Any, ...]:
    """The spec as its hash takes it: the last key of [model], [schedule], [evaluate] and [audit], and what stands
    behind [churn], came later and is left out at its default, so that a job without them has the id that it always had.
    """
    model, schedule, evaluate, audit = map(astuple, (spec.model, spec.schedule, spec.evaluate, spec.audit))
    short = {
        "model": model if spec.model.recompute != "none" else model[:-1],
        "audit": audit if spec.audit.verifiers else audit[:-1],
        "schedule": schedule if spec.schedule.begin else schedule[:-1],
        "evaluate": evaluate if spec.evaluate.stop_loss != EvaluateSpec().stop_loss else evaluate[:-1],
    }
    names, added = spec.__struct_fields__, (spec.accumulate, spec.numerics)
    if added == (1, NumericsSpec()):
        names = names[: -len(added)]
    return tuple(short.get(name, getattr(spec, name)) for name in names)
