"""Reads the table of cards, checks it for consistency, and finds cards by the names that people and drivers use
(P3).

A row is refused whose FP32 rate is not shaders x clock x operations a clock within 3 %, or whose bandwidth is not bus x
data rate / 8 within 2 %: both are stated by makers apart, so a slip of the pen in any of six columns is found.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from io import StringIO
from typing import Final

from farflung.advice.hardware.card import GIGA, LANE_BYTES, SAME_BANDWIDTH, SAME_RATE, TERA, Card, MakerSupport
from farflung.core import limits
from farflung.core.errors import UsageError
from farflung.core.units import Bytes

COLUMNS: Final = (
    "name", "also", "maker", "family", "kind", "year", "memory_gb", "bandwidth", "bus_bits", "data_rate", "shaders",
    "boost_mhz", "per_clock", "vector_fp32", "vector_fp16", "matrix_fp16", "matrix_bf16", "matrix_fp32", "watts",
    "pcie", "lanes", "cuda", "rocm", "mps", "xpu", "bf16", "derived", "source",
)  # fmt: skip
KINDS: Final = ("consumer", "professional", "data-centre")
NONE: Final = "-"  # there is none
UNKNOWN: Final = "?"
NEAREST: Final = 3
# Words that say who made a card or how it is fixed, and not which card it is. `laptop`, `mobile` and `max-q` are
# not among them: those are other cards with the same number.
_SPARE: Final = frozenset(
    ("nvidia", "amd", "intel", "apple", "geforce", "radeon", "instinct", "tesla", "graphics", "gpu", "tm", "r")
)
# Words by which variants of one card differ, or that people leave out.
_VARIANT: Final = re.compile(r"\d+gb|\d+core|pcie|sxm|nvl|rtx|gtx|rx|arc")


class CardTable:
    """Cards in the order of the file."""

    def __init__(self, cards: Iterable[Card]) -> None:
        self.cards = tuple(cards)
        self._known: dict[frozenset[str], Card] = {}
        for card in self.cards:
            for name in (card.name, *card.also):
                self._known.setdefault(_words(name), card)

    def find(self, name: str, memory_bytes: int | None = None) -> Card:
        """The card of that name, as people or drivers write it: `rtx 3090`, `NVIDIA A100-SXM4-80GB`.

        Where a name is that of several variants, the one of that memory (within 10 %) is meant. Raises UsageError
        FF-PLAN-031 (no such card: the nearest names), FF-PLAN-032 (several: which).
        """
        words = _words(name[: limits.CARD_NAME_CHARACTERS + 1])
        if len(name) > limits.CARD_NAME_CHARACTERS or not words:
            raise self._unknown(name)
        if words in self._known:
            return self._known[words]
        found = [card for card in self.cards if _is_variant(words, _words(card.name))]
        if memory_bytes is not None:
            found = [card for card in found if abs(memory_bytes - card.memory_bytes) <= 0.1 * card.memory_bytes]
        if not found:
            raise self._unknown(name)
        if len(found) > 1:
            raise UsageError(
                "FF-PLAN-032",
                f"several cards are called {name!r}",
                cause=", ".join(card.name for card in found),
                hint=f'say which: "{found[0].name}"',
            )
        return found[0]

    def _unknown(self, name: str) -> UsageError:
        names = {_plain(known): card.name for card in self.cards for known in (card.name, *card.also)}
        near = get_close_matches(_plain(name[: limits.CARD_NAME_CHARACTERS]), names, NEAREST, 0.5)
        said = [names[one] for one in near]
        return UsageError(
            "FF-PLAN-031",
            f"no card is called {name[: limits.CARD_NAME_CHARACTERS]!r}",
            cause=f"of {len(self.cards)} cards the nearest are {', '.join(dict.fromkeys(said))}"
            if said
            else f"none of {len(self.cards)} cards has a name like it",
            hint="take a name of the table: farflung plan --cards",
        )


def _plain(name: str) -> str:
    """`NVIDIA A100-SXM4-80GB` is `a100 sxm 80gb`."""
    text = re.sub(r"(\d+) ?(gb|gib)\b", r"\1gb", name.lower().replace("(tm)", " ").replace("(r)", " "))
    text = re.sub(r"(\d+)[ -]?core\b", r"\1core", re.sub(r"\bsxm\d?\b", "sxm", text))
    return " ".join(word for word in re.split(r"[^a-z0-9]+", text) if word and word not in _SPARE)


def _words(name: str) -> frozenset[str]:
    return frozenset(_plain(name).split())


def _is_variant(asked: frozenset[str], known: frozenset[str]) -> bool:
    """Whether a known card is the one that is asked for, but for its memory or how it is fixed."""
    return asked < known and all(_VARIANT.fullmatch(word) for word in known - asked)


def parse(text: str) -> CardTable:
    """The table as CSV with `COLUMNS`; `-` says that there is none, `?` that it is not known.

    Units there: GB (10^9), GB/s, Gbit/s a pin, MHz, TFLOP/s, W. Raises UsageError FF-PLAN-030 with line and column.
    """
    if len(text) > limits.CARD_TABLE_CHARACTERS:
        raise _wrong(1, "name", f"the table has more than {limits.CARD_TABLE_CHARACTERS} characters")
    lines = csv.reader(StringIO(text, newline=""), strict=True)
    try:
        rows = list(lines)
    except csv.Error as error:
        raise _wrong(lines.line_num, "name", f"it is no CSV: {error}") from error
    if not rows or tuple(rows[0]) != COLUMNS:
        raise _wrong(1, "name", f"the columns are {','.join(COLUMNS)}")
    cards: list[Card] = []
    seen: dict[frozenset[str], str] = {}
    for number, row in enumerate(rows[1:], 2):
        if len(row) != len(COLUMNS):
            raise _wrong(number, "name", f"{len(row)} fields, and {len(COLUMNS)} columns")
        card = _CardRow(number, dict(zip(COLUMNS, row, strict=True))).card()
        for name in (card.name, *card.also):
            if seen.setdefault(_words(name), card.name) != card.name:
                raise _wrong(number, "name", f"{name} is also {seen[_words(name)]}")
        cards.append(card)
    return CardTable(cards)


class _CardRow:
    """One line, whose fields are read by what they must be."""

    def __init__(self, line: int, fields: Mapping[str, str]) -> None:
        self.line, self.fields = line, fields

    def card(self) -> Card:
        card = Card(
            name=self.text("name"),
            also=tuple(part for part in self.fields["also"].split("|") if part),
            maker=self.text("maker"),
            family=self.text("family"),
            kind=self.one_of("kind", KINDS),
            year=self.whole("year", 2006, 2100),
            memory_bytes=Bytes(round(self.number("memory_gb", 0.5, 4096) * GIGA)),
            bandwidth=self.number("bandwidth", 1, 1e5) * GIGA,
            bus_bits=self.whole("bus_bits", 16, 1 << 16),
            data_rate=self.number("data_rate", 0.5, 100) * GIGA,
            shaders=self.whole("shaders", 16, 1 << 20),
            boost=self.number("boost_mhz", 100, 10_000) * 1e6,
            per_clock=self.whole("per_clock", 1, 64),
            vector_fp32=self.number("vector_fp32", 0.01, 1e4) * TERA,
            vector_fp16=self.number("vector_fp16", 0.001, 1e4) * TERA,
            matrix_fp16=self.rate("matrix_fp16"),
            matrix_bf16=self.rate("matrix_bf16"),
            matrix_fp32=self.rate("matrix_fp32"),
            watts=self.known("watts", 1, 10_000),
            pcie=0 if self.is_none("pcie") else self.whole("pcie", 1, max(LANE_BYTES)),
            lanes=0 if self.is_none("lanes") else self.whole("lanes", 1, 32),
            capability=self.capability(),
            rocm=None if self.is_none("rocm") else MakerSupport(self.one_of("rocm", tuple(MakerSupport))),
            has_mps=self.one_of("mps", ("yes", NONE)) == "yes",
            has_xpu=self.one_of("xpu", ("yes", NONE)) == "yes",
            has_bf16={"yes": True, "no": False, UNKNOWN: None}[self.one_of("bf16", ("yes", "no", UNKNOWN))],
            derived=self.derived(),
            source=self.text("source"),
        )
        self.hold(card)
        return card

    def hold(self, card: Card) -> None:
        """What columns say of each other."""
        rate, bandwidth = card.recomputed()
        if abs(rate - card.vector_fp32) > SAME_RATE * card.vector_fp32:
            self.refuse("vector_fp32", f"per_clock x shaders x boost is {rate / TERA:.4g}, within 3 % of it")
        if abs(bandwidth - card.bandwidth) > SAME_BANDWIDTH * card.bandwidth:
            self.refuse("bandwidth", f"bus x data rate / 8 is {bandwidth / GIGA:.4g}, within 2 % of it")
        if (card.pcie == 0) != (card.lanes == 0):
            self.refuse("lanes", "a connector has a generation and lanes, or there is none")
        if card.matrix_bf16 and not card.has_bf16:
            self.refuse("bf16", "matrix units that take bfloat16 are hardware for it")

    def refuse(self, column: str, cause: str) -> None:
        raise _wrong(self.line, column, f"{self.fields['name'][:40]}: {cause}, not {self.fields[column][:40]!r}")

    def text(self, column: str) -> str:
        if not self.fields[column].strip():
            self.refuse(column, "it is not empty")
        return self.fields[column]

    def is_none(self, column: str) -> bool:
        return self.fields[column] == NONE

    def one_of(self, column: str, words: tuple[str, ...]) -> str:
        if self.fields[column] not in words:
            self.refuse(column, f"it is one of {', '.join(words)}")
        return self.fields[column]

    def number(self, column: str, least: float, most: float) -> float:
        try:
            value = float(self.fields[column])
        except ValueError:
            value = math.nan
        if not least <= value <= most:
            self.refuse(column, f"it is a number from {least:g} to {most:g}")
        return value

    def whole(self, column: str, least: int, most: int) -> int:
        value = self.number(column, least, most)
        if value != int(value):
            self.refuse(column, "it is a whole number")
        return int(value)

    def known(self, column: str, least: float, most: float) -> float | None:
        return None if self.fields[column] == UNKNOWN else self.number(column, least, most)

    def rate(self, column: str) -> float | None:
        if self.is_none(column):
            return 0.0
        found = self.known(column, 0.01, 1e5)
        return None if found is None else found * TERA

    def capability(self) -> tuple[int, int] | None:
        if self.is_none("cuda"):
            return None
        found = re.fullmatch(r"(\d{1,2})\.(\d)", self.fields["cuda"])
        if not found:
            self.refuse("cuda", "it is like 8.6, or -")
        assert found is not None
        return int(found[1]), int(found[2])

    def derived(self) -> frozenset[str]:
        names = self.fields["derived"].split()
        for name in names:
            if name not in COLUMNS:
                self.refuse("derived", f"it names columns, and {name[:40]} is none")
        return frozenset(names)


def _wrong(line: int, column: str, cause: str) -> UsageError:
    return UsageError(
        "FF-PLAN-030",
        f"the table of cards is wrong in line {line}: {column}",
        cause=cause,
        hint="mend the line: docs/plan/cards.md says what each column is",
    )
