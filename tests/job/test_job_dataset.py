from __future__ import annotations

import math
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.core import limits
from farflung.core.errors import ProtocolError, SpecError, VersionError
from farflung.job.dataset import (
    Dataset,
    check_dataset,
    pack,
    split_files,
    split_tokens,
    token_dtype,
    unigram_entropy,
    unpack,
)
from farflung.job.spec import ModelSpec
from farflung.job.text_files import is_text

FILES = [(f"dir/{i}.txt", bytes([97 + i % 26]) * (50 + i)) for i in range(100)]


def code_of(call, *args):
    with pytest.raises((SpecError, ProtocolError)) as caught:
        call(*args)
    return caught.value.code


def dataset(train, heldout, dtype=np.uint8):
    return Dataset(np.array(train, dtype), np.array(heldout, dtype))


@given(data=st.data(), dtype=st.sampled_from([np.uint8, np.uint16, np.uint32]))
@settings(max_examples=40)
def test_a_packed_data_set_unpacks_to_itself(data, dtype):
    tokens = st.lists(st.integers(0, int(np.iinfo(dtype).max)), min_size=1, max_size=20)
    before = dataset(data.draw(tokens), data.draw(tokens), dtype)
    raw = pack(before)
    after = unpack(raw)
    assert after.train.dtype == after.heldout.dtype == np.dtype(dtype)
    assert after.train.tolist() == before.train.tolist()
    assert after.heldout.tolist() == before.heldout.tolist()
    assert pack(after) == raw


@given(data=st.data())
@settings(max_examples=60)
def test_damaged_bytes_unpack_to_something_canonical_or_are_refused(data):
    raw = bytearray(pack(dataset([1, 2, 3], [4, 5], np.uint16)))
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    damaged = bytes(raw[: data.draw(st.integers(0, len(raw)))])
    try:
        after = pack(unpack(damaged))
    except (ProtocolError, VersionError):
        return
    assert after == damaged


def test_lengths_that_do_not_add_up_are_refused(monkeypatch):
    raw = pack(dataset([1, 2, 3], [4, 5]))
    for bad in (
        b"",
        raw[:-1],
        raw + b"\0",
        raw[:8] + bytes(16) + raw[24:],
        b"XXXX" + raw[4:],
        raw[:7] + b"\1" + raw[8:],
    ):
        assert code_of(unpack, bad) == "FF-JOB-030"
    empty_part = raw[:8] + (5).to_bytes(8, "little") + (0).to_bytes(8, "little") + raw[24:]
    assert code_of(unpack, empty_part) == "FF-JOB-030"
    monkeypatch.setattr(limits, "DATA_BYTES", 4)
    assert code_of(unpack, raw) == "FF-JOB-030"


@pytest.mark.parametrize(
    "bad", [Dataset(np.ones(3, np.uint8), np.ones(3, np.uint16)), dataset([1], [1], np.int64), dataset([1], [])]
)
def test_what_cannot_be_unpacked_is_not_packed(bad):
    with pytest.raises(ValueError, match="both parts"):
        pack(bad)


def test_the_order_of_files_changes_nothing_and_no_byte_is_lost():
    forward, backward = split_files(FILES, 0.05), split_files(FILES[::-1], 0.05)
    assert pack(forward) == pack(backward)
    parts = bytes(forward.train).split(b"\0") + bytes(forward.heldout).split(b"\0")
    assert sorted(parts) == sorted(data for _, data in FILES)


def test_held_out_is_close_to_its_share_and_made_of_whole_files():
    made = split_files(FILES, 0.05)
    share = made.heldout.size / (made.heldout.size + made.train.size)
    assert 0.03 < share <= 0.05
    assert set(bytes(made.heldout).split(b"\0")) <= {data for _, data in FILES}


def test_the_names_decide_which_files_are_held_out():
    renamed = [(f"other/{name}", data) for name, data in FILES]
    assert pack(split_files(renamed, 0.05)) != pack(split_files(FILES, 0.05))


@given(sizes=st.lists(st.integers(1, 400), min_size=1, max_size=8), heldout=st.floats(0.001, 0.5))
@settings(max_examples=60)
def test_both_sides_get_something_whatever_the_files(sizes, heldout):
    files = [(str(i), b"x" * size) for i, size in enumerate(sizes)]
    if sum(sizes) < 2:
        assert code_of(split_files, files, heldout) == "FF-JOB-020"
        return
    made = split_files(files, heldout)
    assert made.train.size
    assert made.heldout.size


def test_a_single_file_is_cut_and_its_end_held_out():
    made = split_files([("empty", b""), ("a", bytes(range(65, 85)) * 5)], 0.1)
    assert bytes(made.heldout) == bytes(range(75, 85))
    assert made.train.size == 90


def test_nothing_is_refused():
    for files in ([], [("a", b"")], [("a", b"x")]):
        assert code_of(split_files, files, 0.1) == "FF-JOB-020"
    with pytest.raises(ValueError, match="one name"):
        split_files([("a", b"x"), ("a", b"y")], 0.1)


@pytest.mark.parametrize(
    "data",
    [b"text\0text", zlib.compress(bytes(range(256)) * 9).replace(b"\0", b"\xff"), "text".encode("utf-16"), b"\xff"],
)
def test_binary_data_is_refused_and_token_files_are_suggested(data):
    assert not is_text(data)
    with pytest.raises(SpecError, match="FF-JOB-021") as caught:
        split_files([("good", b"text"), ("a.bin", data)], 0.1)
    assert "a.bin" in caught.value.message
    assert ".npy" in caught.value.hint


def test_text_of_many_kinds_is_text():
    for text in ("plain", "Straße, naïve, Ελληνικά, 日本語, 🙂", ""):
        assert is_text(text.encode())
    assert is_text("À côté du château, où l'été s'achève".encode("latin-1") * 3 + b"and more of plain ascii" * 9)


def test_too_little_data_for_one_sequence_is_refused():
    model = ModelSpec(context=4)
    check_dataset(dataset([1] * 5, [1] * 5), model)
    assert code_of(check_dataset, dataset([1] * 4, [1] * 5), model) == "FF-JOB-022"
    assert code_of(check_dataset, dataset([1] * 5, [1] * 4), model) == "FF-JOB-022"


def test_a_token_outside_the_vocabulary_is_refused():
    model = ModelSpec(context=2, vocabulary=100)
    check_dataset(dataset([99] * 5, [1] * 5), model)
    assert code_of(check_dataset, dataset([100] * 5, [1] * 5), model) == "FF-JOB-023"
    with pytest.raises(SpecError) as caught:
        check_dataset(dataset([1] * 5, [120] * 5), model)
    assert "vocabulary = 121" in caught.value.hint


def test_tokens_are_split_by_position_and_kept_small():
    made = split_tokens(np.arange(100, dtype=np.uint16), 0.05)
    assert made.heldout.tolist() == list(range(95, 100))
    assert [token_dtype(v).itemsize for v in (256, 257, 1 << 16, (1 << 16) + 1)] == [1, 2, 2, 4]


def test_unigram_entropy_is_what_counting_gives():
    train, heldout = np.array([0, 0, 0, 1], np.uint8), np.array([0, 1], np.uint8)
    assert unigram_entropy(train, heldout, 2) == pytest.approx(-(math.log(4 / 6) + math.log(2 / 6)) / 2)
    even = np.arange(256, dtype=np.uint8)
    assert unigram_entropy(even, even) == pytest.approx(math.log(256))
    assert unigram_entropy(train, np.array([300], np.uint16)) > 5
