"""Counts the values in msgpack bytes before any object is made of them: an empty list of one byte takes eighty."""

from __future__ import annotations

from typing import Final

_FIXED: Final = {  # bytes of a value whose head says it all; a list's or a map's own, without what it holds
    0xCA: 5, 0xCB: 9, 0xCC: 2, 0xCD: 3, 0xCE: 5, 0xCF: 9, 0xD0: 2, 0xD1: 3, 0xD2: 5, 0xD3: 9,
    0xD4: 3, 0xD5: 4, 0xD6: 6, 0xD7: 10, 0xD8: 18, 0xDC: 3, 0xDD: 5, 0xDE: 3, 0xDF: 5,
}  # fmt: skip
_COUNTED: Final = {  # bytes of the length behind the head, and of what else stands before the content
    0xC4: (1, 0), 0xC5: (2, 0), 0xC6: (4, 0), 0xC7: (1, 1), 0xC8: (2, 1), 0xC9: (4, 1),
    0xD9: (1, 0), 0xDA: (2, 0), 0xDB: (4, 0),
}  # fmt: skip
_TEXT: Final = 0xA0, 0xC0  # short texts: their length is in the head
_STEPS: Final = tuple(
    0 if head in _COUNTED else 1 + (head & 31) if _TEXT[0] <= head < _TEXT[1] else _FIXED.get(head, 1)
    for head in range(256)
)


def count_values(data: bytes | bytearray | memoryview, most: int) -> int:
    """How many values are in well-formed bytes, lists and maps among them; of more than `most`, `most + 1`.

    What is not well-formed gives some number of no more than its bytes: the decoder says what it is.
    """
    at, end, count = 0, len(data), 0
    while at < end and count <= most:
        head = data[at]
        count += 1
        step = _STEPS[head]
        if not step:
            width, more = _COUNTED[head]
            step = 1 + width + more + int.from_bytes(data[at + 1 : at + 1 + width], "big")
        at += step
    return count
