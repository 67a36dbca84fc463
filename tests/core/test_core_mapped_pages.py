"""What is read of a mapped file leaves memory again, and stays what it was."""

from __future__ import annotations

import mmap
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farflung.core import mapped_pages
from farflung.core.mapped_pages import PIECE_BYTES, leave, walked


def resident() -> int:
    """Bytes of mapped files in this process's memory."""
    return 1024 * int(re.findall(r"RssFile:\s+(\d+)", Path("/proc/self/status").read_text())[0])


@pytest.fixture
def mapped(tmp_path: Path) -> memoryview:
    path = tmp_path / "state"
    path.write_bytes(np.arange(4 * PIECE_BYTES, dtype="<u4").tobytes())
    with path.open("rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


@pytest.mark.skipif(mapped_pages._LEAVE is None, reason="this system keeps what it has read")
def test_a_walk_leaves_no_more_than_a_piece_in_memory(mapped: memoryview) -> None:
    """Without `walked` all of the file would stay."""
    before = resident()
    assert sum(len(piece) for piece in walked(mapped[100:-7]) if bytes(piece)) == len(mapped) - 107
    assert resident() - before < 2 * PIECE_BYTES
    values = np.frombuffer(mapped, np.uint32)[10:]
    assert int(values.sum(dtype=np.uint64)) == sum(range(10, 4 * PIECE_BYTES))
    assert resident() - before > 3 * PIECE_BYTES
    leave(values)
    assert resident() - before < 2 * PIECE_BYTES
    assert values[-1] == 4 * PIECE_BYTES - 1


@given(st.integers(0, 3 * PIECE_BYTES), st.integers(0, 3 * PIECE_BYTES))
def test_a_walk_gives_all_bytes_in_order(start: int, stop: int) -> None:
    data = memoryview(_LONG)[start:stop]
    assert b"".join(walked(data)) == bytes(data)
    assert b"".join(walked(_MAPPED[start:stop])) == bytes(data)


_LONG = bytes(range(256)) * (3 * PIECE_BYTES // 256)
_WHOLE = mmap.mmap(-1, len(_LONG))
_WHOLE[:] = _LONG
_MAPPED = memoryview(_WHOLE)
