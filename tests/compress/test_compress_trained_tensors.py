"""Sparse payloads name the tensors that were trained; what is unsent of the others waits as it is."""

import numpy as np
import pytest

from farflung.compress.merge import WeightedUpdate, mean, merge
from farflung.compress.payload import HEADER_BYTES, ContributionKey, describe
from farflung.compress.registry import make
from farflung.core.errors import ProtocolError
from farflung.core.ids import Hash, PeerId
from farflung.core.tensor_layout import TensorLayout

LAYOUT = TensorLayout.of({"a": (300,), "b": (3,), "c": (5, 9), "d": (4,), "e": (2,)})
PLACE = {tensor.name: place for tensor, place in LAYOUT.slices()}
ABOUT = ContributionKey(3, 0, Hash(b"\1" * 32), PeerId(b"\2" * 32))
CODECS = [("topk", 2, "raw"), ("topk", 32, "dct"), ("dense", 2, "raw"), ("dense", 8, "auto"), ("dense", 32, "raw")]


def codec_of(kind, bits, transform, topk=4):
    return make(kind, value_bits=bits, topk=topk, chunk=256, transform=transform, rank=1, error_decay=0.5)


def change_of(*untrained):
    change = np.random.default_rng(1).standard_normal(LAYOUT.size).astype(np.float32)
    for name in untrained:
        change[PLACE[name]] = 0.0
    return change


def mask(*untrained):
    return tuple(tensor.name not in untrained for tensor in LAYOUT.tensors)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("untrained", ["a", "bd", "ce", "bde", "abcde"])
def test_of_what_was_not_trained_nothing_is_sent_and_the_rest_waits(codec, untrained):
    made = codec_of(*codec)
    state, _ = made.encode(None, change_of(), LAYOUT, ABOUT)
    left, payload = made.encode(state, change_of(*untrained), LAYOUT, ABOUT, mask(*untrained))
    said = made.decode(payload, LAYOUT, ABOUT)
    for name, place in PLACE.items():
        if name in untrained:
            assert said[place].tobytes() == bytes(said[place].nbytes)
            assert left is None or left[place].tobytes() == state[place].tobytes()
        else:
            assert said[place].view(np.uint32).any()


@pytest.mark.parametrize("codec", CODECS)
def test_where_all_was_trained_the_payload_has_the_bytes_that_it_had(codec):
    made, change = codec_of(*codec), change_of()
    assert made.encode(None, change, LAYOUT, ABOUT, mask())[1] == made.encode(None, change, LAYOUT, ABOUT)[1]


@pytest.mark.parametrize(
    ("plane", "code"), [(0b00111111, "FF-COMP-016"), (0b00011111, "FF-COMP-016"), (0b00100001, "FF-COMP-016")]
)
def test_a_plane_that_could_be_said_otherwise_is_refused(plane, code):
    made = codec_of("topk", 2, "raw")
    payload = bytearray(made.encode(None, change_of("b"), LAYOUT, ABOUT, mask("b"))[1])
    assert describe(payload).header.is_partial
    payload[HEADER_BYTES] = plane
    with pytest.raises(ProtocolError) as caught:
        made.decode(bytes(payload), LAYOUT, ABOUT)
    assert caught.value.code == code


def test_a_dense_payload_is_never_partial():
    payload = bytearray(codec_of("dense", 2, "raw").encode(None, change_of(), LAYOUT, ABOUT)[1])
    payload[19] = 1
    with pytest.raises(ProtocolError) as caught:
        codec_of("dense", 2, "raw").decode(bytes(payload), LAYOUT, ABOUT)
    assert caught.value.code == "FF-COMP-004"


@pytest.mark.parametrize("rule", ["mean", "clip", "centered"])
@pytest.mark.parametrize("count", [2, 3, 4, 5])
@pytest.mark.parametrize("codec", CODECS)
def test_an_expert_that_one_peer_trains_moves_as_if_it_were_alone(rule, count, codec):
    made = codec_of(*codec)
    parts = []
    for index in range(count):
        untrained = "cd" if index else ""
        about = ABOUT._replace(peer=PeerId(bytes([index]) * 32))
        payload = made.encode(None, change_of(*untrained), LAYOUT, about, mask(*untrained))[1]
        parts.append(WeightedUpdate(about.peer, index + 1, made.decode(payload, LAYOUT, about)))
    merged, alone = (mean(merge(LAYOUT, some, rule)) for some in (parts, parts[:1]))
    for name in "cd":
        assert merged[PLACE[name]].tobytes() == alone[PLACE[name]].tobytes()


def test_a_small_tensor_that_was_trained_weighs_though_nothing_of_it_was_sent():
    made, change = codec_of("topk", 32, "raw", topk=1), change_of()
    parts = []
    for index, name in enumerate(("b", "d")):  # the same trained, but each says only its largest
        own = change.copy()
        own[PLACE[name].start] = 50.0
        about = ABOUT._replace(peer=PeerId(bytes([index]) * 32))
        payload = made.encode(None, own, LAYOUT, about, mask())[1]
        parts.append(WeightedUpdate(about.peer, 1, made.decode(payload, LAYOUT, about)))
    merged = mean(merge(LAYOUT, parts))
    assert merged[PLACE["b"].start] == merged[PLACE["d"].start] == 25.0
    untold = merged[PLACE["e"]]
    assert untold.view(np.uint32).all()
    assert not untold.any()
