"""What a payload says of itself: every codec's parameters, from the header alone."""

import numpy as np
import pytest

from farflung.compress.payload import (
    HEADER_BYTES,
    KINDS,
    TRANSFORMS,
    CodecParameters,
    ContributionKey,
    PayloadHeader,
    describe,
    is_form,
    pack,
)
from farflung.compress.registry import make
from farflung.core.errors import ProtocolError
from farflung.core.ids import Hash, PeerId
from farflung.core.tensor_layout import TensorLayout

ABOUT = ContributionKey(3, 1, Hash(b"\x01" * 32), PeerId(b"\x02" * 32))
LAYOUT = TensorLayout.of({"a": (300,), "b": (3,)})
FORMS = [
    CodecParameters("dense"),
    CodecParameters("dense", 2),
    CodecParameters("dense", 4, "dct", 256),
    CodecParameters("topk", 2, "raw", 4096, 64),
    CodecParameters("topk", 32, "auto", 256, 9),
    CodecParameters("low_rank", rank=4),
]


def code_of(data):
    with pytest.raises(ProtocolError) as caught:
        describe(data)
    return caught.value.code


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_a_header_tells_its_codec_and_parameters(form):
    header = PayloadHeader(form, LAYOUT.id, ABOUT)
    assert describe(pack(header, b"body")) == (header, 4)


@pytest.mark.parametrize("form", FORMS[:5], ids=str)
def test_what_codecs_write_describes_them(form):
    codec = make(
        form.kind,
        value_bits=form.value_bits,
        topk=form.topk or 1,
        chunk=form.chunk or 1,
        transform=form.transform,
        rank=4,
        error_decay=0.5,
    )
    payload = codec.encode(None, np.ones(LAYOUT.size, np.float32), LAYOUT, ABOUT)[1]
    assert describe(payload).header == PayloadHeader(form, LAYOUT.id, ABOUT)
    assert codec.form == form


def test_parameters_that_no_codec_has_are_refused(subtests):
    for at, value, code in [
        (0, 0, "FF-COMP-003"),
        (4, 1, "FF-COMP-003"),
        (19, 2, "FF-COMP-004"),
        (5, 0, "FF-COMP-024"),
        (5, len(KINDS) + 1, "FF-COMP-024"),
        (6, 3, "FF-COMP-024"),
        (7, len(TRANSFORMS), "FF-COMP-024"),
        (11, 255, "FF-COMP-024"),
        (15, 1, "FF-COMP-024"),
        (12, 0, "FF-COMP-024"),
        (16, 1, "FF-COMP-024"),
        (120, 9, "FF-COMP-010"),
    ]:
        with subtests.test(at=at, value=value, code=code):
            payload = bytearray(pack(PayloadHeader(FORMS[3], LAYOUT.id, ABOUT), b"body"))
            payload[at] = value
            assert code_of(bytes(payload)) == code


def test_less_than_a_header_is_refused():
    assert code_of(bytes(HEADER_BYTES - 1)) == "FF-COMP-001"


def test_every_form_that_is_described_is_one_that_can_be_made():
    assert all(is_form(form) for form in FORMS)
    assert not is_form(CodecParameters("low_rank", chunk=4, rank=1))
    assert not is_form(CodecParameters("dense", 2, "dct"))
    assert not is_form(CodecParameters("topk", 2, "raw", 4, 5))
