from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.core import limits
from farflung.core.codec import encode
from farflung.core.crypto import NS_CHUNK, digest
from farflung.core.errors import FarflungError, PolicyError, VerificationError
from farflung.core.ids import Hash
from farflung.store import sealed_objects
from farflung.store.sealed_objects import ObjectManifest, check_chunk, check_manifest, open_object, seal

KEY = bytes(range(32))
SMALL = 64  # chunk size in these tests, so that objects of many chunks stay cheap


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(limits, "CHUNK_BYTES", SMALL)
    monkeypatch.setattr(sealed_objects, "SEALED_BYTES", SMALL + sealed_objects.TAG_BYTES)


def code_of(call, *args):
    with pytest.raises(FarflungError) as caught:
        call(*args)
    return caught.value.code


def content(size):
    return bytes(i * 7 % 251 for i in range(size))


def with_chunks(manifest, chunks, size=None):
    """A manifest that names these chunks: what a liar could publish."""
    names = tuple(digest(NS_CHUNK, c) for c in chunks)
    return msgspec.structs.replace(manifest, chunks=names, size=manifest.size if size is None else size)


@pytest.mark.parametrize("size", [0, 1, SMALL - 1, SMALL, SMALL + 1, 3 * SMALL, 3 * SMALL + 5])
def test_what_is_sealed_opens_at_every_chunk_border(size):
    manifest, chunks = seal(KEY, content(size))
    check_manifest(manifest)
    assert len(chunks) == -(-size // SMALL)
    assert open_object(KEY, manifest, chunks) == content(size)


@given(plain=st.binary(max_size=5 * SMALL), job_key=st.binary(min_size=32, max_size=32))
@settings(max_examples=40)
def test_sealing_is_reproducible_and_opens_to_the_same_bytes(plain, job_key):
    manifest, chunks = seal(job_key, memoryview(plain))
    assert seal(job_key, plain) == (manifest, chunks)
    assert open_object(job_key, manifest, iter(chunks)) == plain
    assert sealed_objects.read_manifest(encode(manifest)) == manifest


def test_other_content_or_another_job_key_never_shares_a_chunk():
    first = content(3 * SMALL)
    second = first[:-1] + b"!"
    seen = [c for key, plain in [(KEY, first), (KEY, second), (bytes(32), first)] for c in seal(key, plain)[1]]
    assert len(set(seen)) == len(seen)


@pytest.mark.guarantee
def test_another_jobs_key_opens_nothing():
    manifest, chunks = seal(KEY, content(100))
    assert code_of(open_object, bytes(32), manifest, chunks) == "FF-STOR-005"


def test_truncation_is_found():
    manifest, chunks = seal(KEY, content(3 * SMALL))
    assert code_of(open_object, KEY, manifest, chunks[:-1]) == "FF-STOR-002"
    assert code_of(open_object, KEY, manifest, []) == "FF-STOR-002"
    assert code_of(open_object, KEY, manifest, [*chunks[:-1], chunks[-1][:-1]]) == "FF-STOR-003"


def test_truncation_behind_a_fitting_manifest_is_found_by_the_last_flag():
    manifest, chunks = seal(KEY, content(3 * SMALL))
    liar = with_chunks(manifest, chunks[:2], size=2 * SMALL)
    assert code_of(open_object, KEY, liar, chunks[:2]) == "FF-STOR-005"


def test_swapped_chunks_are_found_by_hash_and_behind_a_fitting_manifest_by_the_counter():
    manifest, chunks = seal(KEY, content(3 * SMALL))
    swapped = [chunks[1], chunks[0], chunks[2]]
    assert code_of(open_object, KEY, manifest, swapped) == "FF-STOR-004"
    assert code_of(open_object, KEY, with_chunks(manifest, swapped), swapped) == "FF-STOR-005"


def test_a_duplicated_tail_is_found():
    manifest, chunks = seal(KEY, content(3 * SMALL))
    longer = [*chunks, chunks[-1]]
    assert code_of(open_object, KEY, manifest, longer) == "FF-STOR-002"
    assert code_of(open_object, KEY, with_chunks(manifest, longer, size=4 * SMALL), longer) == "FF-STOR-005"


@given(data=st.data())
@settings(max_examples=40)
def test_any_flipped_bit_is_found_with_and_without_a_key(data):
    manifest, chunks = seal(KEY, content(2 * SMALL + 9))
    index = data.draw(st.integers(0, 2))
    bad = bytearray(chunks[index])
    bad[data.draw(st.integers(0, len(bad) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    assert code_of(check_chunk, manifest, index, bytes(bad)) == "FF-STOR-004"
    forged = [*chunks[:index], bytes(bad), *chunks[index + 1 :]]
    assert code_of(open_object, KEY, manifest, forged) == "FF-STOR-004"
    assert code_of(open_object, KEY, with_chunks(manifest, forged), forged) == "FF-STOR-005"


def test_a_manifest_that_claims_other_content_is_found(monkeypatch):
    manifest, chunks = seal(KEY, content(100))
    other = msgspec.structs.replace(manifest, content=Hash(bytes(32)))
    assert code_of(open_object, KEY, other, chunks) == "FF-STOR-005"
    real = sealed_objects._cipher(KEY, manifest.content)  # somebody with the key: only the content's hash is left
    monkeypatch.setattr(sealed_objects, "_cipher", lambda *_: real)
    assert code_of(open_object, KEY, other, chunks) == "FF-STOR-006"


@pytest.mark.parametrize(
    "manifest",
    [
        ObjectManifest(Hash(bytes(31)), 0, ()),
        ObjectManifest(Hash(bytes(32)), -1, ()),
        ObjectManifest(Hash(bytes(32)), 1, ()),
        ObjectManifest(Hash(bytes(32)), 0, (Hash(bytes(32)),)),
        ObjectManifest(Hash(bytes(32)), SMALL, (Hash(bytes(32)),) * 2),
        ObjectManifest(Hash(bytes(32)), 1, (Hash(bytes(33)),)),
        ObjectManifest(Hash(bytes(32)), limits.OBJECT_BYTES + 1, ()),
    ],
)
def test_a_manifest_out_of_bounds_is_refused_before_anything_is_allocated(manifest):
    assert code_of(check_manifest, manifest) == "FF-STOR-001"
    assert code_of(open_object, KEY, manifest, []) == "FF-STOR-001"
    assert code_of(sealed_objects.read_manifest, encode(manifest)) == "FF-STOR-001"


def test_bounds_of_size_and_number_hold_even_when_they_fit_each_other(monkeypatch):
    manifest, _ = seal(KEY, content(4 * SMALL))
    monkeypatch.setattr(limits, "OBJECT_CHUNKS", 3)
    assert code_of(check_manifest, manifest) == "FF-STOR-001"
    monkeypatch.setattr(limits, "OBJECT_CHUNKS", 4)
    check_manifest(manifest)
    monkeypatch.setattr(limits, "OBJECT_BYTES", 4 * SMALL - 1)
    assert code_of(check_manifest, manifest) == "FF-STOR-001"
    with pytest.raises(PolicyError):
        seal(KEY, content(4 * SMALL))


def test_the_largest_manifest_fits_into_its_bound():
    largest = ObjectManifest(Hash(bytes(32)), limits.OBJECT_BYTES, (Hash(bytes(32)),) * limits.OBJECT_CHUNKS)
    assert len(encode(largest)) <= limits.MANIFEST_BYTES


def test_a_chunk_that_does_not_exist_is_refused():
    manifest, chunks = seal(KEY, content(10))
    for index in (-1, 1):
        with pytest.raises(VerificationError, match="FF-STOR-002"):
            check_chunk(manifest, index, chunks[0])


def test_real_chunks_are_a_mebibyte_and_fit_into_a_bulk_message(monkeypatch):
    monkeypatch.undo()
    manifest, chunks = seal(KEY, bytes(limits.CHUNK_BYTES + 1))
    assert [len(c) for c in chunks] == [limits.CHUNK_BYTES + 16, 17]
    assert len(chunks[0]) + limits.KIB <= limits.BULK_BYTES
    assert open_object(KEY, manifest, chunks) == bytes(limits.CHUNK_BYTES + 1)
