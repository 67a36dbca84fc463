"""The choice on a tensor's own device is the codec's choice, to the index, and its payload the codec's, to the byte."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.compress.chunks import SLAB, plan
from farflung.compress.chunks import select as chosen_by_numpy
from farflung.compress.payload import ContributionKey
from farflung.compress.sparse import TopKCodec
from farflung.core.errors import FarflungError, RunError
from farflung.core.ids import PeerId
from farflung.core.tensor_layout import TensorLayout
from farflung.train import device_topk

ABOUT = ContributionKey(3, 0, bytes(32), PeerId(bytes(32)))
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
KINDS = ["normal", "ties", "equal", "zero", "tiny"]


def vector(kind: str, size: int) -> np.ndarray:
    draw = np.random.default_rng(size)
    values = {
        "normal": draw.standard_normal(size),
        "ties": draw.integers(-2, 3, size),
        "equal": np.full(size, -1.5),
        "zero": draw.integers(0, 2, size) * -0.0,
        "tiny": draw.standard_normal(size) * 1e-40,
    }[kind]
    return values.astype(np.float32)


def layout(*sizes: int) -> TensorLayout:
    return TensorLayout.of({f"t{number:02d}": (size,) for number, size in enumerate(sizes)})


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", KINDS)
def test_the_device_chooses_what_numpy_chooses(kind, device, monkeypatch):
    for stretch in (1 << 24, 128):
        monkeypatch.setattr(device_topk, "STRETCH", stretch)
        for sizes, chunk, topk in (
            ((1,), 1, 1),
            ((63, 1, 70, 200), 64, 5),
            ((1000,), 64, 64),
            ((5000, 3, 4096), 4096, 64),
            ((777, 5, 6, 1), 7, 3),
            ((SLAB + 4096 + 9,), 4096, 2),
        ):
            cut, whole = plan(layout(*sizes), chunk, topk), vector(kind, sum(sizes))
            found = device_topk.choose(torch.from_numpy(whole).to(device), cut.slabs)
            wanted = [chosen_by_numpy(whole[slab.place], slab) + slab.start for slab in cut.slabs]
            assert np.array_equal(found.indices, np.concatenate(wanted))
            assert found.values.tobytes() == whole[found.indices].tobytes()


def test_ties_alone_would_not_be_chosen_so_by_torch():
    """What the keys are for: the bare values leave the choice among equals to the library."""
    whole = vector("ties", 4096)
    bare = torch.from_numpy(whole).abs().topk(512, sorted=False).indices.sort().values.numpy()
    (slab,) = plan(layout(4096), 4096, 512).slabs
    wanted = chosen_by_numpy(whole, slab)
    assert not np.array_equal(bare, wanted)
    assert np.array_equal(device_topk.choose(torch.from_numpy(whole), [slab]).indices, wanted)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_values_that_are_not_finite_are_refused(bad):
    whole = torch.ones(100)
    whole[71] = bad
    with pytest.raises(RunError, match="FF-COMP-039"):
        device_topk.choose(whole, plan(layout(100), 64, 4).slabs)


@given(
    sizes=st.lists(st.integers(1, 300), min_size=1, max_size=6),
    chunk=st.sampled_from([1, 7, 64, 256]),
    topk=st.integers(1, 8),
    bits=st.sampled_from([1, 2, 4, 8, 16, 32]),
    kind=st.sampled_from(KINDS),
)
@settings(max_examples=30)
def test_payload_and_residual_of_what_the_device_chose_are_the_codec_s(sizes, chunk, topk, bits, kind):
    codec = TopKCodec(bits, min(topk, chunk), chunk, "raw", 1.0)
    whole, own = vector(kind, sum(sizes)), layout(*sizes)
    left, payload = codec.encode(None, whole, own, ABOUT)
    cut = codec.plan(own)
    flat = torch.from_numpy(whole.copy())
    ordered = device_topk.gather(flat, cut.order)
    assert ordered.numpy().tobytes() == np.concatenate([whole[place] for place in cut.order]).tobytes()
    chosen = device_topk.choose(ordered, cut.slabs)
    said, same = codec.encode_chosen(chosen.indices, chosen.values, own, ABOUT)
    assert same == payload
    device_topk.subtract(ordered, chosen.places, said)
    device_topk.scatter(ordered, cut.order, flat)
    assert flat.numpy().tobytes() == left.tobytes()


def test_what_is_not_chosen_for_this_codec_is_refused():
    own, raw = layout(200), TopKCodec(2, 4, 64, "raw", 1.0)
    chosen = device_topk.choose(torch.ones(200), raw.plan(own).slabs)
    for codec, count in ((raw, -1), (TopKCodec(2, 4, 64, "dct", 1.0), None), (TopKCodec(2, 5, 64, "raw", 1.0), None)):
        with pytest.raises(FarflungError, match="FF-COMP-021"):
            codec.encode_chosen(chosen.indices[:count], chosen.values[:count], own, ABOUT)
