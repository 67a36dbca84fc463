"""Structs that many threads decode for the first time at once, in a process of their own."""

import subprocess
import sys
from pathlib import Path

HEAD = """from __future__ import annotations
from farflung.core.codec import Wire
"""
STRUCTS = """
class Outer{0}(Wire, frozen=True):
    a: int
    b: tuple[Inner{0}, ...]
    c: Inner{0} | None = None

class Inner{0}(Wire, frozen=True):
    a: str
    b: Leaf{0}
    c: dict[str, int]

class Leaf{0}(Wire, frozen=True):
    a: bytes
    b: list[int]
"""

PROGRAM = """
import sys, threading
import structs
from farflung.core.codec import describe, encode, decode

sys.setswitchinterval(1e-6)
describe()
barrier, right = threading.Barrier(16), []

def read():
    for i in range(40):
        outer, inner, leaf = (getattr(structs, f"{name}{i}") for name in ("Outer", "Inner", "Leaf"))
        one = inner("a", leaf(b"b", [1, 2]), {"c": 3})
        value = outer(4, (one, one), one)
        data = encode(value)
        barrier.wait(60)
        right.append(decode(data, outer, 1000) == value)

threads = [threading.Thread(target=read) for _ in range(16)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert len(right) == 640 and all(right)
"""


def test_threads_may_decode_a_struct_for_the_first_time_at_once(tmp_path: Path) -> None:
    (tmp_path / "structs.py").write_text(HEAD + "".join(STRUCTS.format(i) for i in range(40)))
    ended = subprocess.run([sys.executable, "-c", PROGRAM], cwd=tmp_path, capture_output=True, timeout=100, check=False)
    assert ended.returncode == 0, ended.stderr
