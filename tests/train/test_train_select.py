"""The choice on a tensor's own device is the codec's choice, to the index."""

import numpy as np
import pytest
import torch

from farflung.compress.chunks import largest as chosen_by_numpy
from farflung.core.errors import RunError
from farflung.train import select

TYPES = [torch.float32, torch.float16, torch.bfloat16]
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


def tensor(kind: str, size: int, dtype: torch.dtype, device: str) -> torch.Tensor:
    draw = np.random.default_rng(size)
    values = {
        "normal": draw.standard_normal(size),
        "ties": draw.integers(-2, 3, size),
        "equal": np.full(size, -1.5),
        "zero": draw.integers(0, 2, size) * -0.0,
        "tiny": draw.standard_normal(size) * 1e-7,
    }[kind]
    return torch.from_numpy(values.astype(np.float32)).to(device=device, dtype=dtype)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("kind", ["normal", "ties", "equal", "zero", "tiny"])
def test_the_device_chooses_what_numpy_chooses(kind, dtype, device, monkeypatch):
    for slab in (1 << 24, 128):
        monkeypatch.setattr(select, "SLAB", slab)
        for size, chunk, topk in ((1, 1, 1), (63, 64, 5), (1000, 64, 64), (5000, 4096, 64), (777, 7, 3)):
            vector = tensor(kind, size, dtype, device)
            found = select.largest(vector, chunk, topk)
            whole = vector.to(torch.float32).cpu().numpy()
            assert np.array_equal(found.indices, chosen_by_numpy(whole, chunk, topk))
            assert found.values.tobytes() == whole[found.indices].tobytes()


def test_ties_alone_would_not_be_chosen_so_by_torch():
    """What the keys are for: the bare values leave the choice among equals to the library."""
    vector = tensor("ties", 4096, torch.float32, "cpu")
    bare = vector.abs().topk(512, sorted=False).indices.sort().values.numpy()
    wanted = chosen_by_numpy(vector.numpy(), 4096, 512)
    assert not np.array_equal(bare, wanted)
    assert np.array_equal(select.largest(vector, 4096, 512).indices, wanted)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_values_that_are_not_finite_are_refused(bad, dtype):
    vector = torch.ones(100, dtype=dtype)
    vector[71] = bad
    with pytest.raises(RunError, match="FF-COMP-039"):
        select.largest(vector, 64, 4)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_only_the_chosen_values_travel_and_the_residual_stays(dtype):
    vector = tensor("normal", 10_000, dtype, "cpu")
    before = vector.clone()
    found = select.largest(vector, 4096, 64)
    assert torch.equal(vector, before)
    assert len(found.values) == 3 * 64
    select.subtract(vector, found.indices, found.values)
    assert (vector[found.indices] == 0).all()
    others = np.setdiff1d(np.arange(10_000), found.indices)
    assert torch.equal(vector[others], before[others])


def test_the_residual_is_that_of_the_codec():
    vector = tensor("normal", 10_000, torch.float32, "cpu")
    expected = vector.numpy().copy()
    found = select.largest(vector, 4096, 64)
    sent = np.rint(found.values)
    expected[found.indices] -= sent
    select.subtract(vector, found.indices, sent)
    assert vector.numpy().tobytes() == expected.tobytes()
