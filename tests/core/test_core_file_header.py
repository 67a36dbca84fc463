"""The header that files begin with: what another version, damage, and a file from before headers are called."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from farflung.core.codec import Wire, encode
from farflung.core.errors import FarflungError, VersionError
from farflung.core.file_header import HEAD_BYTES, FileFormat, body_of, file_of, headed, value_of
from farflung.core.release import VERSION

FORM = FileFormat("story", 3, "tell another one")


class Story(Wire, frozen=True):
    title: str
    pages: int


class LongerStory(Wire, frozen=True):
    title: str
    pages: int
    teller: str = "nobody"


TALE = Story("ten green bottles", 10)
FILE = file_of(FORM, TALE)


def said(data: bytes, kind: type = Story, limit: int = 1000) -> FarflungError:
    with pytest.raises(FarflungError) as caught:
        value_of(FORM, data, kind, limit)
    return caught.value


def test_a_file_says_its_kind_its_version_and_its_program_in_one_readable_line() -> None:
    line, end, body = FILE.partition(b"\n")
    assert line.decode().split()[:-1] == ["farflung", "story", "3", VERSION]
    assert body_of(FORM, FILE) == body == encode(TALE)
    assert value_of(FORM, FILE, Story, 1000) == TALE
    assert len(line + end) <= HEAD_BYTES
    assert headed(FORM, b"") == headed(FORM, b"")


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda: FILE.replace(b" 3 ", b" 2 ", 1), (f"another build of farflung {VERSION}", "form 2", "reads form 3")),
        (lambda: FILE.replace(VERSION.encode(), b"0.2.0rc1", 1).replace(b" 3 ", b" 4 ", 1), ("0.2.0rc1", "form 4")),
        (lambda: file_of(FORM, LongerStory("a", 1)), ("mean another by it",)),
        (lambda: file_of(FORM, (1, 2)), ("mean another by it",)),
        (lambda: encode(TALE), ("an earlier farflung", "does not name its version")),
        (lambda: encode(LongerStory("a", 1)), ("an earlier farflung",)),
    ],
    ids=["earlier form", "later program", "another struct", "other types", "no header", "no header, another struct"],
)
def test_another_version_is_named_and_never_called_damaged(made: Callable[[], bytes], words: tuple[str, ...]) -> None:
    error = said(made())
    assert isinstance(error, VersionError)
    text = " ".join(error.lines())
    assert error.code == "FF-CORE-095"
    assert f"this is farflung {VERSION}" in text
    assert "tell another one" in error.hint
    assert "damaged" not in text
    for word in words:
        assert word in text


def test_a_flipped_bit_is_damage_but_in_the_names_of_versions() -> None:
    version, program = FILE.index(b" 3 ") + 1, FILE.index(VERSION.encode())
    for place in range(len(FILE)):
        broken = bytearray(FILE)
        broken[place] ^= 1
        if place == version:
            assert said(bytes(broken)).code == "FF-CORE-095"
        elif program <= place < program + len(VERSION) and FILE[place : place + 1].isdigit():
            assert value_of(FORM, bytes(broken), Story, 1000) == TALE  # who wrote it is told, and decides nothing
        else:
            error = said(bytes(broken))
            assert (error.code, "damaged" in error.message) == ("FF-CORE-096", True)


@pytest.mark.parametrize("data", [b"", b"farflung", FILE[:20], FILE[:-1], FILE + b"x", bytes(40), b"PK\x03\x04" * 9])
def test_what_is_no_such_file_is_damage(data: bytes) -> None:
    assert said(data, limit=1 << 20).code == "FF-CORE-096"


def test_a_file_of_another_kind_and_one_that_is_too_long_are_told_apart() -> None:
    assert "it is a song file" in said(file_of(FileFormat("song"), TALE)).cause
    assert said(FILE + bytes(HEAD_BYTES), limit=5).code == "FF-CORE-020"


def test_a_hostile_file_without_a_header_takes_no_memory_and_no_stack() -> None:
    for data in (b"\x91" * 200_000, b"\xdd\xff\xff\xff\xff" + bytes(1000), b"\xc6\xff\xff\xff\xff"):
        assert said(data, limit=1 << 20).code == "FF-CORE-096"
