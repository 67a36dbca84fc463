"""Words that people read are the field's: no old one is left in strings and docstrings of the source, nor on pages.

The glossary (docs/glossary.md) maps old words to new ones. Decisions, protocols, the log of what did not work, changes
and the page of errors (made from the source) are not looked at.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src"
LEFT_OUT = {"decisions", "protocol", "errors.md", "log.md", "changelog.md", "glossary.md"}
# As a regular expression, then what is said now.
OLD = {
    r"held-out (loss|losses|data|text|tokens?|part)": "validation loss, validation data",
    r"nats a token": "nats/token",
    r"foreto(ld|lds?)|foretells?": "estimated, predicts",
    r"reckon(s|ed|ing)?": "calculates, assumes",
    r"the one machine|one machine on the same tokens|leaves out the one machine": "single-machine baseline",
    r"dearer|dearest": "more expensive",
    r"(is|are) had (with|at once)|had at once": "needs, free",
    r"(is|are|was|were) believed|believes?": "trusted",
    r"money is (not )?conserved": "ledger balanced (sum 0)",
    r"so many are hired|as far as it (goes|is)|as far as is known": "in plain words",
    r"all the same": "anyway",
    r"nobody (knows|is asked)": "unknown",
    r"the system refuses": "permission denied, with path and owner",
    r"who of (them|the|those|us|a)": "which of them",
    r"mended": "fixed",
    r"stands? still": "has stopped",
    r"anyhow": "anyway",
    r"of it payloads": "model updates only",
    r"bytes to agree|sent to agree|[a-z] to agree,|peers agree by": "sync traffic",
    r"as much \(computed, not run\)": "less than a bf16 ring all-reduce (calculated)",
    r"below the unigram entropy": "has (not) learned more than byte frequencies",
    r"noise profile …|waits for the network": "measuring numerical noise, starting nodes",
    r"several parts add up": "mostly",
    r"outcome only: not proven": "not verifiable step by step",
    r"without numbers, in the sandbox|traced without numbers": "tracing one training step (no data)",
    r"what the heap adds": "allocator overhead",
    r"these parameters cannot be shared": "unsupported parameters",
    r"writes numbers, not text": "outputs token IDs",
    r"is no GPT-2|is no verb yet": "cannot be exported, not available",
    r"is paid, so it cannot go on": "stopped and settled",
    r"One cheats so|Base of unnamed values": "make one provider misbehave, preset to start from",
    r"numbers that describe one token|how often the peers agree": "embedding size, number of sync rounds",
    r"keep books by it|Play a network": "run and inspect a ledger, simulate a network",
    r"pairs that talked|no pair talked": "connections",
    r"is caught: ": "caught cheating",
    r"says of itself is true": "the log is consistent",
    r"strangers on this computer": "local network",
}
PATTERNS = [(re.compile(rf"\b{old}".lower()), re.compile(old.lower()), new) for old, new in OLD.items()]


def texts(source: str) -> Iterator[tuple[int, str]]:
    """Strings and docstrings with their lines, each in one line."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, " ".join(node.value.split())


def found(text: str) -> list[str]:
    """A pattern that begins with a letter is looked for without its border first: that is ten times faster."""
    low = text.lower()
    near = [(old, new) for old, quick, new in PATTERNS if quick.search(low)]
    return [f"{match.group()!r} is now: {new}" for old, new in near for match in old.finditer(low)]


@pytest.mark.parametrize("text", ["validation loss 1.9 nats/token", "a baseline that is trained on the same tokens"])
def test_words_of_the_field_are_no_old_words(text: str) -> None:
    assert not found(text)


@pytest.mark.parametrize(
    "text", ["held-out loss 1.9 nats a token", "the system refuses: no", "who of the hired begins"]
)
def test_an_old_word_is_found(text: str) -> None:
    assert found(text)


def test_no_old_word_is_in_strings_and_docstrings_of_the_source() -> None:
    left = []
    for path in sorted(SOURCE.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        if found(" ".join(source.split())):  # a comment, perhaps
            left += [
                f"{path.relative_to(SOURCE)}:{line}: {each}" for line, text in texts(source) for each in found(text)
            ]
    assert not left, "\n".join(left)


def test_no_old_word_is_on_a_page() -> None:
    pages = [*sorted((ROOT / "docs").rglob("*.md")), *(ROOT / name for name in ("README.md", "SECURITY.md"))]
    left = [
        f"{page.relative_to(ROOT)}: {each}"
        for page in pages
        if not LEFT_OUT & set(page.relative_to(ROOT).parts)
        for each in found(" ".join(page.read_text(encoding="utf-8").split()))
    ]
    assert len(pages) > 20
    assert not left, "\n".join(left)


# Whoever takes the name on an index decides what is installed.
UNRESERVED = re.compile(r"pip install(?: -[\w-]+)* ['\"]?farflung\b")


@pytest.mark.parametrize(
    "text", ["pip install farflung", "pip install --upgrade farflung", "`pip install 'farflung[lan]'`"]
)
def test_an_install_by_a_name_that_is_not_ours_is_found(text: str) -> None:
    assert UNRESERVED.search(text)
    assert not UNRESERVED.search("pip install -c constraints.txt '.[lan]'")


def test_nobody_is_told_to_install_a_package_by_a_name_that_is_not_ours() -> None:
    files = [*SOURCE.rglob("*.py"), *(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]
    files += [path for path in (ROOT / "examples").rglob("*") if path.suffix in (".py", ".md", ".ipynb")]
    told = [path for path in files if "decisions" not in path.parts and UNRESERVED.search(path.read_text("utf-8"))]
    assert [path.relative_to(ROOT).as_posix() for path in told] == []
