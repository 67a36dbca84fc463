"""Keeps compiled kernels for the processes of a suite, which read what one of them compiled, as those of a user do.

A pytest plugin. The folder is one for these very sources: numba does not see that a part of a loop was changed in
another file. Where it is empty, the first of several processes compiles what most tests use (20 s) before its first
test. Meanwhile the others run the twins, which give the same bytes at ten times the cost; then they load the loops.
"""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from farflung.compress import kernels
from farflung.compress.payload import ContributionKey
from farflung.compress.registry import make
from farflung.core.ids import Hash, PeerId
from farflung.core.tensor_layout import TensorLayout

SOURCES = Path(kernels.__file__).parents[1]
READY = pytest.StashKey[Path]()  # a file that is there once the first process has compiled
LOADING = 1_000_000_000  # nanoseconds of twins: about what it takes to load what is compiled
MANY = 1000  # tests: for fewer, nothing is compiled before it pays


def _name() -> str:
    texts = [
        *sorted((SOURCES / "compress" / "loops").glob("*.py")),
        SOURCES / "verify" / "canon" / "numba_kernels.py",
        *sorted((SOURCES / "advice" / "placement").glob("*_loops.py")),
        *sorted((SOURCES / "advice" / "simulation").glob("*.py")),
    ]
    return hashlib.sha256(b"".join(path.read_bytes() for path in texts)).hexdigest()[:16]


def pytest_configure(config: pytest.Config) -> None:
    cache = getattr(config, "cache", None)  # none with -p no:cacheprovider
    if cache is not None:
        folder = Path(cache.mkdir("kernels")) / _name()
        kernels.use("auto", cache=str(folder))
        config.stash[READY] = folder.with_suffix(".ready")
        if os.environ.get("PYTEST_XDIST_WORKER", "gw0") != "gw0":
            kernels.CODECS.pays = sys.maxsize
        _look(config)


def _look(config: pytest.Config) -> None:
    """Once all is compiled, loading it pays soon."""
    ready = config.stash.get(READY, None)
    if ready is not None and kernels.CODECS.pays != LOADING and ready.exists():
        kernels.CODECS.pays = LOADING


@pytest.hookimpl(trylast=True)  # pytest-xdist has told by then what was collected: the others begin
def pytest_collection_finish(session: pytest.Session) -> None:
    ready = session.config.stash.get(READY, None)
    is_first = os.environ.get("PYTEST_XDIST_WORKER") == "gw0"
    if ready is not None and is_first and not ready.exists() and len(session.items) > MANY and kernels.installed():
        compile_codecs()
        if any(ready.with_suffix("").rglob("*.nbc")):  # a folder that others may write to keeps nothing
            ready.touch()
        _look(session.config)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    _look(item.config)


def compile_codecs() -> None:
    """Runs the loops of the codecs once, on values that are coded, not stored as they are."""
    kernels.CODECS.pays = 0
    layout = TensorLayout.of({"w": (128, 64)})
    about = ContributionKey(3, 1, Hash(b"\x01" * 32), PeerId(b"\x02" * 32))
    values = np.random.default_rng(1).standard_normal(layout.size).astype(np.float32)
    for kind, bits, transform in (("topk", 2, "auto"), ("topk", 8, "raw"), ("dense", 2, "raw"), ("dense", 8, "raw")):
        codec = make(kind, value_bits=bits, transform=transform, topk=64, chunk=256, rank=1, error_decay=0.9)
        codec.decode(codec.encode(None, values, layout, about)[1], layout, about)
