"""docs/protocol/payload.md is the format: its vectors are read from the document and must hold."""

import re
from pathlib import Path

import numpy as np

from farflung.compress.merge import Part, mean, merge
from farflung.compress.payload import HEADER_BYTES, About
from farflung.compress.registry import NAMES, make
from farflung.core.ids import Hash, PeerId
from farflung.core.layout import Layout

DOCUMENT = Path(__file__).parents[2] / "docs/protocol/payload.md"
LAYOUT = Layout.of({"bias": (3,), "weight": (3, 5)})
ABOUT = About(7, 0, Hash(b"\x11" * 32), PeerId(b"\x22" * 32))


def read(kind):
    block = re.search(rf"```{kind}\n(.*?)```", DOCUMENT.read_text(), re.S).group(1)
    return [dict(line.split(" = ", 1) for line in part.splitlines()) for part in block.strip().split("\n\n")]


def floats(text):
    return np.array([float(word) for word in text.split()], np.float32)


def test_every_vector_of_the_document_is_what_the_codecs_write():
    common, *vectors = read("golden")
    assert LAYOUT.id.hex() == common["layout_id"]
    assert [vector["codec"] for vector in vectors] == list(NAMES)
    values = floats(common["values"])
    for vector in vectors:
        codec = make(vector["codec"], topk=2, chunk=8, error_decay=0.5)
        state, payload = codec.encode(None, values, LAYOUT, ABOUT)
        assert payload[:HEADER_BYTES].hex() == vector["header"]
        assert payload[HEADER_BYTES:].hex() == vector["body"]
        if "body2" in vector:
            assert codec.encode(state, values, LAYOUT, ABOUT)[1][HEADER_BYTES:].hex() == vector["body2"]


def test_every_vector_of_the_document_decodes_to_its_values():
    for vector in read("golden")[1:]:
        codec = make(vector["codec"], topk=2, chunk=8, error_decay=0.5)
        payload = bytes.fromhex(vector["header"] + vector["body"])
        assert np.array_equal(codec.decode(payload, LAYOUT, ABOUT), floats(vector["decoded"]))


def test_the_merge_vector_of_the_document_holds():
    text = re.search(r"```merge\n(.*?)```", DOCUMENT.read_text(), re.S).group(1)
    rows = [line.split(" = ") for line in text.strip().splitlines()]
    parts = []
    for index, words in enumerate(value for key, value in rows if key == "part"):
        weight, values = words.split(" ", 1)
        parts.append(Part(PeerId(bytes([index]) * 32), int(weight), floats(values)))
    merged = merge(Layout.of({"a": (2,), "b": (3,)}), parts)
    assert " ".join(map(str, merged.total.tolist())) == dict(rows)["total"]
    assert mean(merged).astype("<f4").tobytes().hex() == dict(rows)["mean"]
