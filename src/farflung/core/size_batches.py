"""Splits a sequence, in its order, into batches that fit a size limit such as that of a message or a frame."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def batches(things: Iterable[T], size: Callable[[T], int], room: int) -> Iterator[tuple[T, ...]]:
    """Groups whose sizes come to `room` at most, none of them empty; a thing over `room` is a group of its own."""
    group, left = list[T](), room
    for thing in things:
        cost = size(thing)
        if group and cost > left:
            yield tuple(group)
            group, left = [], room
        group.append(thing)
        left -= cost
    if group:
        yield tuple(group)
