"""DeMo as a drop-in optimizer: against the published algorithm, its bytes, its shapes, and its checkpoints."""

import copy
import io
import math
from typing import Any

import numpy as np
import pytest
import torch
from app_sync import Table, flat, together
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from farflung.core.errors import FarflungError
from farflung.sync import DeMo
from farflung.sync.dct_blocks import TensorBlocks, forward, inverse

SIDE, TOPK, LR, DECAY = 64, 32, 1e-3, 0.999


# The published algorithm (arXiv 2411.19870, algorithm 1 and section 3.2), written from its description: for matrices of
# whole blocks, in one process, one matrix and one peer after the other.


def dct_matrix(n: int) -> Tensor:
    rows = []
    for k in range(n):
        scale = math.sqrt((1.0 if k == 0 else 2.0) / n)
        rows.append([scale * math.cos(math.pi * k * (2 * j + 1) / (2 * n)) for j in range(n)])
    return torch.tensor(rows, dtype=torch.float64).float()


class Oracle:
    """All peers of the published algorithm: one momentum a peer, shared weights."""

    def __init__(self, weights: list[Tensor], peers: int, *, over_all: bool) -> None:
        self.weights, self.over_all = [w.clone() for w in weights], over_all
        self.momenta = [[torch.zeros_like(w) for w in weights] for _ in range(peers)]
        self.chosen: list[list[Tensor]] = []  # of the last step: by peer, by matrix
        self.C = dct_matrix(SIDE)

    def blocks(self, w: Tensor) -> Tensor:
        n, m = w.shape
        return w.reshape(n // SIDE, SIDE, m // SIDE, SIDE).permute(0, 2, 1, 3).reshape(-1, SIDE, SIDE)

    def matrix(self, blocks: Tensor, like: Tensor) -> Tensor:
        n, m = like.shape
        return blocks.reshape(n // SIDE, m // SIDE, SIDE, SIDE).permute(0, 2, 1, 3).reshape(n, m)

    def step(self, gradients: list[list[Tensor]], *, weight_decay: float) -> None:
        sent: list[list[tuple[Tensor, Tensor]]] = []
        for momentum, gradient in zip(self.momenta, gradients, strict=True):
            sent.append([])
            for m, g in zip(momentum, gradient, strict=True):
                m.mul_(DECAY).add_(g, alpha=LR)
                coefficients = (self.C @ self.blocks(m) @ self.C.T).reshape(-1, SIDE * SIDE)
                indices = coefficients.abs().topk(TOPK, dim=1).indices.sort(dim=1).values
                values = coefficients.gather(1, indices)
                said = torch.zeros_like(coefficients).scatter_(1, indices, values).view(-1, SIDE, SIDE)
                m.sub_(self.matrix(self.C.T @ said @ self.C, m))
                sent[-1].append((indices, values))
        self.chosen = [[indices for indices, _ in peer] for peer in sent]
        for place, w in enumerate(self.weights):
            total = torch.zeros(w.numel() // SIDE**2, SIDE * SIDE)
            count = torch.zeros_like(total)
            for peer in sent:
                indices, values = peer[place]
                total.scatter_add_(1, indices, values)
                count.scatter_add_(1, indices, torch.ones_like(values))
            mean = total / (len(sent) if self.over_all else count.clamp(min=1))
            update = self.matrix(self.C.T @ mean.view(-1, SIDE, SIDE) @ self.C, w)
            w.mul_(1 - LR * weight_decay).sub_(update.sign(), alpha=LR)


SHAPES = [(128, 64), (64, 192)]


def weights() -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(1)
    return [nn.Parameter(torch.randn(shape, generator=generator) * 0.1) for shape in SHAPES]


def gradients(rank: int, step: int, shapes: list[tuple[int, ...]] = SHAPES) -> list[Tensor]:
    generator = torch.Generator().manual_seed(100 * rank + step)
    return [torch.randn(shape, generator=generator) for shape in shapes]


def drive(optimizer: DeMo, own: list[nn.Parameter], rank: int, steps: range) -> None:
    for step in steps:
        for parameter, gradient in zip(own, gradients(rank, step, [tuple(p.shape) for p in own]), strict=True):
            parameter.grad = gradient.to(parameter.dtype)
        optimizer.step()


def indices_sent(optimizer: DeMo, own: list[nn.Parameter]) -> Tensor:
    """The indices in an optimizer's last payload, shape (blocks, TOPK)."""
    from farflung.compress.payload import describe

    header = describe(optimizer.last_payload).header
    blocks = TensorBlocks([tuple(p.shape) for p in own], SIDE)
    layout = optimizer._layout([(p, optimizer.param_groups[0]) for p in own], blocks)
    values = optimizer._codec.decode(optimizer.last_payload, layout, header.about)
    return torch.from_numpy(np.flatnonzero(values).reshape(-1, TOPK) % SIDE**2)


@pytest.mark.parametrize("aggregation", ["selectors", "all"])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_the_trajectory_is_the_published_algorithm_s(aggregation: Any, weight_decay: float) -> None:
    peers, steps = 2, 6
    oracle = Oracle([w.detach() for w in weights()], peers, over_all=aggregation == "all")
    chosen: list[list[list[Tensor]]] = []
    for step in range(steps):
        oracle.step([gradients(rank, step) for rank in range(peers)], weight_decay=weight_decay)
        chosen.append(oracle.chosen)
    table = Table(peers)

    def work(rank: int) -> list[Tensor]:
        own = weights()
        optimizer = DeMo(
            own, lr=LR, weight_decay=weight_decay, process_group=table.groups()[rank], aggregation=aggregation
        )
        for step in range(steps):
            drive(optimizer, own, rank, range(step, step + 1))
            assert torch.equal(indices_sent(optimizer, own), torch.cat(chosen[step][rank])), (rank, step)
        return [p.detach() for p in own]

    for end in together(peers, work):
        for mine, theirs in zip(end, oracle.weights, strict=True):
            assert torch.allclose(mine, theirs, atol=1e-7)


def sent_bytes(shapes: list[tuple[int, ...]], **options: Any) -> float:
    """Bytes of one payload for each coefficient of a peer's share: TOPK of every SIDE² elements."""
    own = [nn.Parameter(torch.zeros(shape)) for shape in shapes]
    optimizer = DeMo(own, lr=LR, **options)
    drive(optimizer, own, 0, range(2))
    return len(optimizer.last_payload)


def test_a_coefficient_costs_less_than_the_reference_s_96_bits() -> None:
    shapes = [(512, 512), (256, 1024)]
    reference = 12 * TOPK * sum(n * m for n, m in shapes) / SIDE**2
    assert reference / sent_bytes(shapes) >= 2.3
    assert reference / sent_bytes(shapes, value_bits=2) >= 8


def reference_bytes(shape: tuple[int, ...]) -> int:
    """What the published code sends of a vector: blocks of its largest divisor up to 64, 12 bytes a value."""
    (size,) = shape
    side = max(d for d in range(1, SIDE + 1) if size % d == 0)
    return 12 * min(TOPK, side) * (size // side)


@pytest.mark.parametrize("shape", [(65537,), (100003,)])
def test_prime_sizes_cost_their_share(shape: tuple[int, ...]) -> None:
    assert reference_bytes(shape) / sent_bytes([shape]) >= 30
    exact = sent_bytes([(256, 256)]) * shape[0] / 65536
    assert sent_bytes([shape]) < 1.05 * exact + 200


@settings(max_examples=60)
@given(
    st.lists(
        st.lists(st.integers(1, 40), min_size=0, max_size=4).map(tuple).filter(lambda s: math.prod(s) < 5000),
        min_size=1,
        max_size=6,
    )
)
def test_blocks_hold_every_element_once_and_are_given_back(shapes: list[tuple[int, ...]]) -> None:
    blocks = TensorBlocks(shapes, 8)
    tensors = [torch.randn(shape) for shape in shapes]
    found = blocks.gather(tensors)
    assert found.shape == (blocks.count, 8, 8)
    assert (blocks.count - 1) * 64 < sum(t.numel() for t in tensors) <= blocks.count * 64
    for mine, theirs in zip(blocks.scatter(found), tensors, strict=True):
        assert torch.equal(mine, theirs)
    assert torch.allclose(inverse(forward(found)), found, atol=1e-5)


def mixed(dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    """Matrices, a prime vector, a convolution, a scalar, an empty tensor, and one that gets no gradient."""
    generator = torch.Generator().manual_seed(3)
    shapes = [(64, 64), (97,), (8, 3, 3, 3), (), (0,)]
    return [nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in shapes]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("stop", [1, 3])
def test_a_run_resumes_bit_for_bit(dtype: torch.dtype, stop: int) -> None:
    def work(table: Table, halves: bool) -> Any:
        def one(rank: int) -> list[Tensor]:
            own = mixed(dtype)
            optimizer = DeMo(own, lr=LR, process_group=table.groups()[rank])
            drive(optimizer, own, rank, range(stop))
            if halves:
                file = io.BytesIO()
                torch.save(optimizer.state_dict(), file)
                file.seek(0)
                own = [nn.Parameter(p.detach().clone()) for p in own]
                optimizer = DeMo(own, lr=7.0, process_group=table.groups()[rank])
                optimizer.load_state_dict(torch.load(file))
            drive(optimizer, own, rank, range(stop, 5))
            return [p.detach() for p in own]

        return one

    whole = together(2, work(Table(2), halves=False))
    parts = together(2, work(Table(2), halves=True))
    for a, b in zip(whole, parts, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_a_parameter_without_a_gradient_is_left_alone() -> None:
    own = mixed()
    before = copy.deepcopy(own)
    optimizer = DeMo(own, lr=LR, weight_decay=0.5)
    own[0].grad = torch.ones_like(own[0])
    optimizer.step()
    assert not torch.equal(own[0], before[0])
    assert all(torch.equal(a, b) for a, b in zip(own[1:], before[1:], strict=True))


def test_peers_that_differ_are_told_so() -> None:
    def run(change: Any) -> None:
        table = Table(2)

        def work(rank: int) -> None:
            own = weights()
            if rank == 1 and change == "weights":
                own[0].data += 1
            optimizer = DeMo(own, lr=LR, process_group=table.groups()[rank])
            for step in range(2):
                for parameter, gradient in zip(own, gradients(rank, step), strict=True):
                    parameter.grad = gradient
                if rank == 1 and change == "gradients":
                    own[1].grad = None
                optimizer.step()

        together(2, work)

    with pytest.raises(FarflungError, match="FF-SYNC-006"):
        run("weights")
    with pytest.raises(FarflungError, match=r"FF-SYNC-0(06|21)"):
        run("gradients")


def test_nan_is_refused_and_the_parameter_is_named() -> None:
    own = weights()
    optimizer = DeMo(own, lr=LR)
    own[0].grad = torch.zeros_like(own[0])
    own[1].grad = torch.full_like(own[1], float("nan"))
    with pytest.raises(FarflungError, match="FF-SYNC-005: gradients of parameter 1"):
        optimizer.step()
    with pytest.raises(FarflungError, match="FF-SYNC-020"):
        DeMo(own, lr=-1.0)


def test_with_all_as_the_aggregation_one_peer_alone_does_not_decide_a_sign() -> None:
    """Two peers agree weakly against a third who is alone in a coefficient: over all peers it weighs a third."""
    ends = {}
    for aggregation in ("selectors", "all"):
        table = Table(3)

        def work(rank: int, aggregation: Any = aggregation, table: Table = table) -> Tensor:
            own = [nn.Parameter(torch.zeros(64, 64))]
            optimizer = DeMo(
                own, lr=LR, compression_topk=1, process_group=table.groups()[rank], aggregation=aggregation
            )
            own[0].grad = torch.full((64, 64), 1.0)  # the constant coefficient, from two
            if rank == 2:
                row = torch.tensor(np.cos(np.pi * 3 * (2 * np.arange(64) + 1) / 128), dtype=torch.float32)
                own[0].grad = 0.9 * row.repeat(64, 1) * math.sqrt(2)
            optimizer.step()
            return flat(nn.ParameterList(own))

        ends[aggregation] = together(3, work)[0]
    assert (ends["all"] < 0).all()  # the mean: 2/3 of the constant, 1/3 of the wave
    assert (ends["selectors"] > 0).any()
