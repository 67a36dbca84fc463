"""Computes how much memory one worker process takes at its peak, in bytes resident.

States are counted as Rajbhandari et al. 2020 (ZeRO) do, activations by counting the tensors that PyTorch keeps for
the backward pass of one block (after Korthikanti et al. 2022, who count half-precision ones).
"""

from __future__ import annotations

from typing import Final

import msgspec

from farflung.compress import kernels
from farflung.core.tensor_layout import TensorLayout
from farflung.core.units import Bytes
from farflung.job import proof_class
from farflung.job.codec_cost import codec_cost
from farflung.job.spec import JobSpec, ModelSpec
from farflung.plan.dataset_traffic import held_bytes
from farflung.plan.machine import CPU_BUILD, TorchBuild
from farflung.plan.state_vectors import FLOAT, carried_vectors, inner_vectors, outer_vectors, payload_bytes

# A worker without model and data: interpreter, NumPy and torch after its first backward pass (torch 2.13, CPU build,
# Linux). Fitted, with what stands below: eleven runs that peak at 0.29 to 1.31 GB measure 0.90 to 1.14 of this.
BASELINE: Final = 285_000_000
COMPILED: Final = 180_000_000  # numba and its loops, where the job's codecs are compiled
RECOMPUTING: Final = 95_000_000  # what torch.utils.checkpoint loads (train.recomputation), where blocks are recomputed
# Pages of libraries, of both, that all workers of one machine share (resident less proportional set size).
SHARED: Final = 90_000_000
SHARED_COMPILED: Final = 70_000_000
# The process of a node, the ledger, a relay, the requester, its checker or the supervisor: interpreter, NumPy and the
# network, no torch (measured 84 to 111 MB in runs of 0.8 M parameters). Those that move states hold pieces of them and
# chunks on their way, whatever the model's size (10 M parameters: 108 to 203 MB); of a model that is smaller than these
# pieces, some vectors.
AGENT: Final = 90_000_000
AGENT_PIECES: Final = 90_000_000
AGENT_STATES: Final = 8
# Of a step in exact arithmetic, beside what a worker's step keeps: weights and gradients (the optimizer's vectors are
# read from a mapped file a tensor at a time); its largest value and the work in binary64, and softmax and its gradient
# of each attention, which are not fused there (verify.canon.execute).
TRIAL_STATES: Final = 2
TRIAL_COPIES: Final = 9
TRIAL_SCORES: Final = 2
OTHERS: Final = 3  # ledger, checker and supervisor
RELAYS: Final = 2  # beside them, where somebody cannot be reached, unless the run is told another number
# Values kept per token and channel of one GPT block (measured 16.97, fused attention).
BLOCK_VALUES: Final = 17
# Of logits: their log-softmax, its gradient and theirs, alive at once when the backward pass begins.
LOGIT_COPIES: Final = 3
# In bfloat16 (measured 36.0 to 36.3): the residual stream and norms are float32, products' inputs 16 bits; a product
# keeps its weights in 16 bits as well, and logits are there once more.
NARROW: Final = 2  # bytes
NARROW_BLOCK_BYTES: Final = 37
# One block that is computed again, while it is gone back through (measured 76 and 40 bytes in a token and channel), and
# the gradient of its largest matrix.
BLOCK_WEIGHTS: Final = 12  # of a GPT block, times its width squared
RECOMPUTED_BYTES: Final = {32: 76, 16: 40}
# Of a forward pass without gradient: windows at once, at most, and values that are no matter beside a worker's
# baseline (a MiB a copy).
PASS_WINDOWS: Final = 32
PASS_VALUES: Final = 1 << 18
PROFILED: Final = 8  # states that train.noise_profile holds at once, of four classes and four shortcuts
PAGE: Final = 1 << 16  # the largest page of memory that a place in a file is rounded to
# What the C heap keeps beyond what is in use, where nobody measured it: 1.1 to 1.8 in six models (docs/plan/memory).
HEAP_SLACK: Final = 1.25


class StepMemory(msgspec.Struct, frozen=True):
    """A training step as its trace found it: bytes alive at its peak; `heap`: resident bytes of one that is alive."""

    peak: Bytes
    heap: float = HEAP_SLACK


class WorkerMemory(msgspec.Struct, frozen=True):
    """Peak resident bytes of one worker by purpose, and of the whole local network."""

    baseline: Bytes
    parameters: Bytes
    gradients: Bytes
    optimizer: Bytes
    exchange: Bytes  # of encoding a round, while the optimizer rests in the file of states
    dataset: Bytes
    activations: Bytes
    agents: Bytes  # the other processes of a local network, together
    agent: Bytes  # of them, one node's
    trial: Bytes  # the process beside a node's that tries the job's graph, before its worker makes a step
    workers: int  # of providers, of verifiers, and the supervisor's own
    verifiers: int  # of them
    shared: Bytes  # of each worker, what all have in common
    heap: float = HEAP_SLACK

    @property
    def step(self) -> Bytes:
        """What a training step holds, without what the heap keeps beside it."""
        return Bytes(self.parameters + self.gradients + self.optimizer + self.activations)

    @property
    def worker(self) -> Bytes:
        """One worker process at its peak: in a step, or when it encodes what a round led to."""
        encoding = self.parameters + self.gradients + self.exchange
        return Bytes(self.baseline + self.dataset + max(int(self.heap * self.step), encoding))

    @property
    def lease(self) -> Bytes:
        """A worker and what runs beside it for a job, at their peak: it waits while the job's graph is tried."""
        waiting = self.baseline + self.dataset + self.parameters + self.gradients
        return Bytes(max(self.worker, waiting + self.trial))

    @property
    def network(self) -> Bytes:
        """All processes of a local network: each node's worker, the supervisor's own, and the agents."""
        return Bytes(self.workers * (self.lease - self.shared) + self.shared + self.agents)

    def members_in(self, usable: int, members: int) -> int:
        """How many providers instead of `members` a local network may have in `usable` bytes; below 1: none fits."""
        return members + (usable - self.network) // (self.lease - self.shared + self.agent)


def gpt_activations(spec: JobSpec) -> Bytes:
    """Bytes kept for one backward pass of the built-in GPT: a pass' rows x context tokens of `width` channels."""
    model, tokens, width = spec.model, spec.pass_rows * spec.model.context, spec.model.width
    is_narrow = spec.numerics.bits < 32
    logits = (FLOAT * LOGIT_COPIES + NARROW * is_narrow) * model.vocabulary
    copies = NARROW * is_narrow * BLOCK_WEIGHTS * width**2  # of one block's weights
    outside = tokens * 2 * FLOAT * width + NARROW * is_narrow * model.vocabulary * width
    if spec.model.recompute == "blocks":
        again = tokens * RECOMPUTED_BYTES[spec.numerics.bits] * width + copies + 4 * FLOAT * width**2
        return Bytes(outside + tokens * FLOAT * model.layers * width + max(again, tokens * logits))
    block = NARROW_BLOCK_BYTES if is_narrow else FLOAT * BLOCK_VALUES
    return Bytes(outside + tokens * logits + model.layers * (tokens * block * width + copies))


def module_activations(spec: JobSpec, layout: TensorLayout) -> Bytes:
    """The same for a user's module, from its shapes alone: each matrix keeps its input and its output.

    A head is one matrix, or the embedding once more, and its logits are there as often as in our own. What narrow
    numbers or blocks that are computed again would spare is not known without a trace.
    """
    sides = [side for tensor in layout.tensors if len(tensor.shape) >= 2 for side in tensor.shape]
    lacking = max(0, LOGIT_COPIES - sides.count(spec.model.vocabulary)) * spec.model.vocabulary
    return Bytes(FLOAT * spec.pass_rows * spec.model.context * (sum(sides) + lacking))


def closed_form(spec: JobSpec, layout: TensorLayout) -> Bytes:
    """Activations as the sizes alone say."""
    return gpt_activations(spec) if spec.model.kind == "gpt" else module_activations(spec, layout)


def pass_windows(batch: int, model: ModelSpec, layout: TensorLayout) -> int:
    """Windows that a forward pass without gradient takes at once: no more than a training step of `batch`.

    A small model is not measured window by window: as many as have PASS_VALUES of its widest values together.
    """
    return min(PASS_WINDOWS, max(batch, PASS_VALUES // (model.context * widest(model, layout))))


def widest(model: ModelSpec, layout: TensorLayout) -> int:
    """Values of one token at the widest place: logits, or what a matrix gives."""
    return max(model.vocabulary, *(side for tensor in layout.tensors for side in tensor.shape))


def pass_activations(spec: JobSpec, layout: TensorLayout) -> Bytes:
    """Bytes that such a pass holds where it takes more windows than a step: some copies of the widest values."""
    windows = pass_windows(spec.pass_rows, spec.model, layout)
    if windows <= spec.pass_rows:
        return Bytes(0)
    return Bytes(FLOAT * LOGIT_COPIES * windows * spec.model.context * widest(spec.model, layout))


def profile_bytes(spec: JobSpec, layout: TensorLayout) -> Bytes:
    """Bytes that the profile of an audited job holds beside a step (train.noise_profile).

    The weights that it puts others in the place of; and with products in 16 bits the logits in 16 and in 32 bits: where
    the job's own are not, that is more.
    """
    if not spec.is_audited:
        return Bytes(0)
    tokens = spec.pass_rows * spec.model.context if spec.numerics.bits == 32 else 0
    return Bytes(FLOAT * layout.size + (FLOAT + FLOAT // 2) * tokens * spec.model.vocabulary)


def exchange_bytes(spec: JobSpec, layout: TensorLayout) -> Bytes:
    """Bytes that encoding a round takes beside weights and gradients: its change, the sum with what was unsent, those
    elements in the order of the codec, and the payload three times, in parts, joined and framed. A merge takes less.
    """
    return Bytes(3 * FLOAT * layout.size + 3 * int(payload_bytes(spec.sync, layout)))


def trial_bytes(spec: JobSpec, layout: TensorLayout, activations: int) -> Bytes:
    """What the process beside a node's agent holds that tries one step by the job's graph, with the heap's share of it.

    `activations`: of a pass that recomputes nothing, as a graph does not. Nothing where no graph can be, as the job's
    settings alone say. Attention of a user's module is not known here.
    """
    if proof_class.known(spec):
        return Bytes(0)
    model, tokens = spec.model, spec.pass_rows * spec.model.context
    heads = model.heads if model.kind == "gpt" else 0
    scores = FLOAT * tokens * heads * model.context
    largest = max(scores, FLOAT * tokens * widest(model, layout))
    states = FLOAT * (layout.size * TRIAL_STATES + max(tensor.size for tensor in layout.tensors))
    kept = activations + TRIAL_SCORES * model.layers * scores
    return Bytes(AGENT + int(HEAP_SLACK * kept) + TRIAL_COPIES * largest + states)


def border_vectors(spec: JobSpec) -> int:
    """Vectors of `layout.size` elements that a trained round adds to a worker's file until it is merged.

    Weights and optimizer at each of K borders: those of border 0 are held anyway. With a delay the same once more, for
    the round that is trained ahead, and the weights that it begins with. Where work is audited also the opened states
    of one segment, packed: its start with what is carried (residual, offset), its end, and weights and what is carried
    of the round's end.
    """
    held = 1 + inner_vectors(spec)
    ahead = spec.segments * held + 1 if spec.sync.delay else 0
    return spec.segments * held + ahead + opened_vectors(spec)


def profile_vectors(spec: JobSpec) -> int:
    """Vectors that an audited job's profile adds to a worker's file: states of its classes and of its shortcuts."""
    return PROFILED * (1 + inner_vectors(spec)) if spec.is_audited else 0


def state_file_bytes(spec: JobSpec, layout: TensorLayout) -> Bytes:
    """The most that a worker holds in its file of states (train.vector_store), which takes disk as it is written.

    Public state before and after a merge, what is merged and its result, the first weights, what is carried, and the
    states at the borders or those of a profile.
    """
    public, merged = 1 + outer_vectors(spec.sync), spec.network.providers + 1
    most = max(border_vectors(spec), profile_vectors(spec), 3 * (1 + inner_vectors(spec)))
    vectors = 2 * public + merged + 1 + 3 * carried_vectors(spec.sync) + most
    return Bytes(vectors * (FLOAT * layout.size + PAGE))


def opened_vectors(spec: JobSpec) -> int:
    """Of these, one segment's, as an audit opens it."""
    held, carried = 1 + inner_vectors(spec), carried_vectors(spec.sync)
    return (held + carried) + held + (1 + carried) if spec.is_audited else 0


def memory(
    spec: JobSpec,
    layout: TensorLayout,
    dataset_bytes: int,
    step: StepMemory | None = None,
    torch: TorchBuild = CPU_BUILD,
) -> WorkerMemory:
    """Peak memory by purpose; what an exact dense codec or plain averaging does not keep is not counted.

    With a traced `step` its activations are what is alive at its peak beside parameters, gradients and optimizer;
    without one, they are a closed form's. No pass of a worker holds more (train.forward_passes), or it is counted here.
    `torch`: the build that workers load.
    """
    state, is_recomputed = FLOAT * layout.size, spec.model.recompute == "blocks"
    if step is not None:
        lasting = state * (2 + inner_vectors(spec)) + layout.size
        activations = Bytes(max(0, step.peak - lasting))
    else:
        activations = closed_form(spec, layout)
    whole = msgspec.structs.replace(spec, model=msgspec.structs.replace(spec.model, recompute="none"))
    in_graph = max(activations, closed_form(whole, layout)) if is_recomputed else activations
    trial = trial_bytes(spec, layout, in_graph)
    activations = Bytes(max(activations + profile_bytes(spec, layout), pass_activations(spec, layout)))
    nodes, is_compiled = spec.network.providers + spec.verifiers, kernels.compiles(codec_cost(spec, layout.size))
    data = held_bytes(spec, dataset_bytes)  # mapped from a file, of which all may be resident
    agent = AGENT + min(AGENT_STATES * state, AGENT_PIECES) + data
    others = OTHERS + (RELAYS if spec.hidden else 0)
    return WorkerMemory(
        baseline=Bytes(BASELINE + torch.resident + (COMPILED if is_compiled else 0) + RECOMPUTING * is_recomputed),
        parameters=Bytes(state + layout.size),  # and, a byte each, where weights decay
        gradients=Bytes(state),
        optimizer=Bytes(state * inner_vectors(spec)),
        exchange=exchange_bytes(spec, layout),
        dataset=data,
        activations=activations,
        agents=Bytes((nodes + 1) * agent + others * AGENT),
        agent=Bytes(agent),
        trial=trial,
        workers=nodes + 1,
        verifiers=spec.verifiers,
        shared=Bytes(SHARED + torch.shared + (SHARED_COMPILED if is_compiled else 0)),
        heap=step.heap if step is not None else HEAP_SLACK,
    )
