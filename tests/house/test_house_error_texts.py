"""Every error reads as a sentence, whatever is filled in: tools/error_texts.py renders them all.

The page of errors is compared here as well, as both read the whole source.
"""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from farflung.core.errors import type_and_text

ROOT = Path(__file__).resolve().parents[2]
# Sentences with a phrase of another module in their middle, which has to fit their grammar, and each that may come.
# Who adds one reads it aloud first. Behind a colon, a bracket or a quote any phrase is right.
VECTORS = {"basis values", "public factors", "residual values"}
READ = {
    "the <> do not fit the layout": VECTORS,
    "… NaN or infinite <>, the first at element …": VECTORS,
    "<> is not what was written": {"block …", "header …", "place …", "step …"},
}
RIGHT = [
    "audits of this job would not see a shortcut: products in bfloat16",
    "a unit, a user, a one-way line, an hour, an honest node, an nn.Module and an X25519 key",
    "call share() and step(), or farflung key new node.key --account account.key",
    'its hash is Xx7..., and it lies in [model] or "a b"',
    "::1 is no address, and 10::2 neither",
]
WRONG = {
    "the run has  no result": "two blanks, or one at an end",
    "processes gave no answer: ": "two blanks, or one at an end",
    "it is here , and there": "a blank before a point or comma",
    "it is here: , and there": "two points or commas",
    "no verb 'x'.": "a point, comma or bracket at its end",
    "the ledger answered Xx7: ''": "nothing between quotes or brackets",
    "it must lie from 1 to 2 ()": "nothing between quotes or brackets",
    "run {name} is in use": "a name that was not filled in",
    "exit status None": "a name that was not filled in",
    "it is not not there": "a word that comes twice",
    "a account has 64 digits": "a where an belongs, or an where a",
    "an model": "a where an belongs, or an where a",
    "the of a run": "an article before nothing",
    "the parameters of is wrong": "a preposition before nothing",
}
SOURCE = """
from farflung.core.errors import RunError

CAUSES = {"a": "it is full", "b": "it is shut"}


def refused(what: str, why: str = "it is old") -> RunError:
    cause = f"{why}{' (again)' if what else ''}"
    return RunError("FF-APP-001", f"the {what} is refused", cause=cause, hint=CAUSES[what])


def first() -> None:
    raise refused("door")


def second(number: int) -> None:
    for name in ("gate", "wall"):
        raise refused(name, why=f"{number:.2f} of {number!r}: {', '.join(str(n) for n in range(number))}")
"""


@pytest.fixture(scope="module")
def texts() -> ModuleType:
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        return importlib.import_module("error_texts")
    finally:
        sys.path.remove(str(ROOT / "tools"))


def test_the_page_of_errors_is_what_the_source_says(texts: ModuleType) -> None:
    """`python tools/errors.py` writes it."""
    assert texts.errors.page() == texts.errors.PAGE.read_text("utf-8")


def test_every_error_reads_as_a_sentence_and_its_phrases_fit(texts: ModuleType) -> None:
    """`python tools/error_texts.py` prints the broken ones."""
    every = list(texts.sentences(texts.Renderer()))
    assert len({each.place for each in every}) > 700
    broken = [(each.place, each.part, fault, texts.shown(each.text)) for each in every for fault in texts.faults(each)]
    assert broken == []
    glued = {texts.shown(each.text) for each in every if texts.is_glued(each.text)}
    found: dict[str, set[str]] = {}
    for text in glued:
        found.setdefault(re.sub("<[^>]*>", "<>", text), set()).update(re.findall("<([^>]*)>", text))
    assert found == READ


@pytest.mark.parametrize("text", RIGHT)
def test_a_whole_sentence_has_no_fault(text: str, texts: ModuleType) -> None:
    assert list(texts.faults(texts.Sentence("x.py:1", "message", text))) == []


@pytest.mark.parametrize("text", WRONG)
def test_a_broken_sentence_is_found(text: str, texts: ModuleType) -> None:
    assert WRONG[text] in list(texts.faults(texts.Sentence("x.py:1", "cause", text)))


def test_a_message_without_words_is_found(texts: ModuleType) -> None:
    assert list(texts.faults(texts.Sentence("x.py:1", "message", ""))) == ["a message without words"]
    assert not list(texts.faults(texts.Sentence("x.py:1", "cause", "")))


@pytest.mark.parametrize(
    ("text", "is_glued"),
    [
        ("audits would not find who <products in bfloat16>", True),
        ("the <basis values> do not fit", True),
        ("audits would not see a shortcut: <products in bfloat16>", False),
        ("<too little data>: <it is short>", False),
        ("it cannot be checked (<no form>)", False),
        ("<it is short>", False),
    ],
)
def test_a_phrase_in_the_middle_of_a_sentence_is_glued(text: str, is_glued: bool, texts: ModuleType) -> None:
    marked = text.replace("<", texts.OPEN).replace(">", texts.CLOSE)
    assert texts.is_glued(marked) is is_glued


def test_all_ways_through_a_sentence_are_rendered(
    texts: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "doors.py").write_text(SOURCE)
    module = texts.errors.Module(tmp_path / "doors.py")
    monkeypatch.setattr(texts.errors, "modules", lambda: {texts.errors.SOURCE / "doors.py": module})
    monkeypatch.setattr(texts, "callers", texts.callers.__wrapped__)
    monkeypatch.setattr(texts, "makers", texts.makers.__wrapped__)
    monkeypatch.setattr(texts.errors, "classes", lambda: {"RunError": "1"})
    found: dict[str, set[str]] = {}
    for each in texts.sentences(texts.Renderer()):
        found.setdefault(each.part, set()).add(texts.shown(each.text))
    assert found["message"] == {"the door is refused", "the gate is refused", "the wall is refused"}
    assert found["hint"] == {"it is full", "it is shut"}
    why = {"it is old", "… of '…': …", "… of '…': …, …"}
    assert found["cause"] == {f"{text}{end}" for text in why for end in ("", " (again)")}


def test_an_error_that_says_nothing_is_told_by_its_type() -> None:
    assert type_and_text(ValueError("no number")) == "ValueError: no number"
    assert type_and_text(TimeoutError()) == "TimeoutError"
    assert type_and_text(KeyError(" ")) == "KeyError: ' '"
    assert type_and_text(RuntimeError(" \n")) == "RuntimeError"
