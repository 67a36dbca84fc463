"""docs/protocol/payload.md is the format: its vectors are read from the document and must hold."""

import math
import re
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from farflung.compress.index_coding import tables
from farflung.compress.merge import WeightedUpdate, mean, merge
from farflung.compress.payload import HEADER_BYTES, ContributionKey
from farflung.compress.registry import make
from farflung.core.ids import Hash, PeerId
from farflung.core.tensor_layout import TensorLayout

DOCUMENT = Path(__file__).parents[2] / "docs/protocol/payload.md"
LAYOUT = TensorLayout.of({"bias": (3,), "weight": (3, 5)})
ABOUT = ContributionKey(7, 0, Hash(b"\x11" * 32), PeerId(b"\x22" * 32))


def read(kind):
    block = re.search(rf"```{kind}\n(.*?)```", DOCUMENT.read_text(), re.S).group(1)
    return [dict(line.split(" = ", 1) for line in part.splitlines()) for part in block.strip().split("\n\n")]


def floats(text):
    return np.array([float(word) for word in text.split()], np.float32)


def codec_of(kind, bits, transform, topk=2, chunk=8):
    return make(
        kind, value_bits=int(bits), transform=transform, topk=int(topk), chunk=int(chunk), rank=1, error_decay=0.5
    )


@pytest.mark.guarantee
def test_every_vector_of_the_document_is_what_the_codecs_write():
    common, *vectors = read("golden")
    assert LAYOUT.id.hex() == common["layout_id"]
    assert len(vectors) == 8
    values = floats(common["values"])
    for vector in vectors:
        codec = codec_of(*vector["codec"].split())
        state, payload = codec.encode(None, values, LAYOUT, ABOUT)
        assert payload[:HEADER_BYTES].hex() == vector["header"]
        assert payload[HEADER_BYTES:].hex() == vector["body"]
        assert ("body2" in vector) == (state is not None)
        if "body2" in vector:
            assert codec.encode(state, values, LAYOUT, ABOUT)[1][HEADER_BYTES:].hex() == vector["body2"]


def test_every_vector_of_the_document_decodes_to_its_values():
    for vector in read("golden")[1:]:
        codec = codec_of(*vector["codec"].split())
        payload = bytes.fromhex(vector["header"] + vector["body"])
        assert np.array_equal(codec.decode(payload, LAYOUT, ABOUT), floats(vector["decoded"]))


def test_the_streams_of_the_document_are_what_the_codecs_write():
    flags = set()
    for lines in read("coded"):
        name, *shape = lines.pop("layout").split()
        layout = TensorLayout.of({name: tuple(map(int, shape))})
        i = np.arange(layout.size, dtype=np.int64)
        x = (1103515245 * i + 12345) % 2**31
        values = (x // 2**16 % 1001 - 500) / 2.0 ** (i // 128 % 4 + i % 128 % 3)
        for parameters, wanted in lines.items():
            codec = codec_of(*parameters.split())
            payload = codec.encode(None, values.astype(np.float32), layout, ABOUT)[1]
            decoded = codec.decode(payload, layout, ABOUT).astype("<f4").tobytes()
            body = payload[HEADER_BYTES:]
            found = (body[0], len(body), sha256(payload).hexdigest(), sha256(decoded).hexdigest())
            assert " ".join(map(str, found)) == wanted
            flags.add((codec.name, body[0]))
    assert flags == {("topk", 1), ("topk", 3), ("topk", 7), ("dense", 2), ("dense", 6)}


def test_the_logarithms_of_the_document_are_the_ones_in_use():
    """By its own words, one number at a time."""
    logs, powers = tables()
    assert logs[0] == 1 << 30
    for i in [1, 2, 3, 5, 8191, 8192, 10_000, 16_383, 16_384]:
        bits = i.bit_length()
        z, log = i << (32 - bits), (bits - 1) << 24
        for place in range(23, -1, -1):
            z = z * z >> 31
            if z >= 1 << 32:
                z, log = z >> 1, log | 1 << place
        assert logs[i] == (14 << 24) - log
        assert abs(logs[i] / 2**24 - (14 - math.log2(i))) < 2**-22
    assert (np.diff(logs) <= 0).all()
    for i in [0, 1, 2, 3, 4097, 12_345, 16_383]:
        y, root = 1 << 32, 1 << 127
        for place in range(13, -1, -1):
            root = math.isqrt(root << 128)
            if i >> place & 1:
                y = y * (root >> 96) >> 32
        assert powers[i] == y >> 2
        assert abs(powers[i] / 2**30 - 2 ** (-i / 2**14)) < 2**-26
    assert (np.diff(powers) <= 0).all()


def test_the_merge_vector_of_the_document_holds():
    text = re.search(r"```merge\n(.*?)```", DOCUMENT.read_text(), re.S).group(1)
    rows = [line.split(" = ") for line in text.strip().splitlines()]
    parts = []
    for index, words in enumerate(value for key, value in rows if key == "part"):
        weight, values = words.split(" ", 1)
        parts.append(WeightedUpdate(PeerId(bytes([index]) * 32), int(weight), floats(values)))
    merged = merge(TensorLayout.of({"a": (2,), "b": (3,)}), parts)
    assert " ".join(map(str, merged.total.tolist())) == dict(rows)["total"]
    assert mean(merged).astype("<f4").tobytes().hex() == dict(rows)["mean"]
