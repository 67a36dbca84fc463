"""Events of every kind with any content, as what comes from a log that nobody vouches for."""

from __future__ import annotations

import typing

import msgspec
from hypothesis import strategies as st

from farflung.core import events
from farflung.core.events import AnyEvent, FileCount, LossProbeCounts, SentBytesByKind

PEERS = tuple(f"{i:02x}" * 32 for i in range(1, 6))
NASTY = ("\x1b[2J", "a\nb", "[red]x[/red]", "日本語の名前", "e\u0301\u200d\ufe0f", "x" * 400, "", "\u202eabc")

TEXT = st.sampled_from(
    (*PEERS, *NASTY, "holds", "false", "provider", "verifier", "train", "merge", "its work is false")
)
TEXT |= st.text(max_size=30)
WHOLE = st.integers(0, 30) | st.integers(-(1 << 62), 1 << 62)
REAL = st.floats(-1.0, 300.0) | st.floats(-1e18, 1e18)


def _value(kind: object) -> st.SearchStrategy[object]:
    if kind is str:
        return TEXT
    if kind is bool:
        return st.booleans()
    if kind is int:
        return WHOLE
    if kind is float:
        return REAL
    if kind is SentBytesByKind:
        return st.builds(SentBytesByKind, WHOLE, WHOLE, WHOLE, WHOLE, WHOLE)
    if kind == tuple[str, ...]:
        return st.lists(st.sampled_from(PEERS) | TEXT, max_size=6).map(tuple)
    if kind == float | None:
        return st.none() | REAL
    if kind == tuple[int, ...]:
        return st.lists(st.integers(0, 1 << 20), max_size=4).map(tuple)
    if kind == tuple[float, ...]:
        return st.lists(REAL, max_size=6).map(tuple)
    if kind is LossProbeCounts:
        return st.builds(LossProbeCounts, WHOLE, WHOLE)
    if kind == tuple[FileCount, ...]:
        return st.lists(st.builds(FileCount, TEXT, WHOLE, WHOLE, TEXT), max_size=4).map(tuple)
    raise TypeError(f"no strategy for {kind}")


def _of(kind: type[AnyEvent]) -> st.SearchStrategy[AnyEvent]:
    types = typing.get_type_hints(kind)
    fields = {field.name: _value(types[field.name]) for field in msgspec.structs.fields(kind)}
    return st.builds(kind, **fields)


KINDS: tuple[type[AnyEvent], ...] = typing.get_args(events.AnyEvent)
ANY_EVENT = st.one_of(*[_of(kind) for kind in KINDS])
STORIES = st.lists(ANY_EVENT, max_size=25)
