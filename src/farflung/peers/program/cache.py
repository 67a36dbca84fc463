"""Caches what this machine has computed of jobs for this user: graphs of steps, that they were tried, and profiles of
numerical noise.

Each follows from its request alone. A trace takes some six seconds of a processor, a profile five, and a job is often
submitted again with another name, price or number of rounds, or just again. A file is named by the hash of all that it
follows from: the request, the sources of farflung, the versions of torch and Python; of a profile, the processor too.
It begins with the hash of what it holds; one that does not agree, is too large or cannot be read is as none. A graph is
looked at before it is used, and each node tries one step of the program it makes (decision 052), so a wrong one is
refused; and the folder is this user's alone.
"""

from __future__ import annotations

import contextlib
import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Final, NamedTuple

from farflung.core.codec import encode
from farflung.core.crypto import NS_TRACED, digest
from farflung.core.errors import FarflungError
from farflung.core.folder_owner import is_private
from farflung.core.ids import ID_BYTES, Hash
from farflung.core.io.process_mark import own_mark
from farflung.host.io.code_digest import image_digest
from farflung.job.spec import JobSpec
from farflung.peers.process.user_dirs import cache_folder
from farflung.peers.rundir.bounded_read import read_file
from farflung.verify.canon.graph_file import SHIPPED_BYTES
from farflung.verify.io.tracer import TraceStepRequest

KEPT: Final = 16  # of each kind; who keeps one more drops the one that was not asked for the longest
CPU: Final = Path("/proc/cpuinfo")


class ProfileRequest(NamedTuple):
    """All that a profile of noise follows from on one machine: hashes are of the module, data set and first state."""

    spec: JobSpec
    module: Hash
    dataset: Hash
    initial: Hash


class TrialRequest(NamedTuple):
    """All that a trial of a job's graph follows from (peers.node.graph_trial). A good one is kept, as no bytes."""

    spec: JobSpec
    module: Hash
    dataset: Hash
    initial: Hash


Request = TraceStepRequest | ProfileRequest | TrialRequest
_KINDS: Final = {TraceStepRequest: "graph", ProfileRequest: "profile", TrialRequest: "trial"}


def find(request: Request) -> bytes | None:
    """What was kept for this very request; None: it was never computed here, or what is kept is damaged."""
    path = _file(request)
    if path is None or not path.exists():
        return None
    try:
        data = read_file(path, ID_BYTES + SHIPPED_BYTES)
    except FarflungError:
        return None
    shipped = data[ID_BYTES:]
    if data[:ID_BYTES] != digest(NS_TRACED, shipped):
        return None
    with contextlib.suppress(OSError):  # another process dropped it meanwhile
        os.utime(path)
    return shipped


def keep(request: Request, shipped: bytes) -> None:
    """Keeps what was computed, for the next submission. Where that cannot be, nothing is kept, and nothing is said."""
    path = _file(request)
    if path is None:
        return
    temporary = path.with_name(f"{path.name}.{own_mark()}.tmp")
    with contextlib.suppress(OSError):
        temporary.write_bytes(digest(NS_TRACED, shipped) + shipped)
        os.replace(temporary, path)
        found = sorted(path.parent.iterdir(), key=lambda each: each.stat().st_mtime, reverse=True)
        for old in found[KEPT:]:
            old.unlink()


def _file(request: Request) -> Path | None:
    """Where its answer is kept; None: nowhere, for others could write there."""
    kind = _KINDS[type(request)]
    folder = cache_folder() / f"{kind}s"
    return folder / f"{_name(request).hex()}.{kind}" if is_private(str(folder)) else None


def _name(request: Request) -> Hash:
    made_by = f"torch {version('torch')}, Python {platform.python_version()}"
    if isinstance(request, TraceStepRequest):
        return digest(NS_TRACED, encode(request), image_digest(), made_by.encode())
    return digest(NS_TRACED, encode(tuple(request)), image_digest(), f"{made_by}, {_processor()}".encode())


def _processor() -> str:
    """What decides which instructions libraries choose here."""
    with contextlib.suppress(OSError):
        wanted = ("vendor_id", "model name", "flags", "Features")
        lines = CPU.read_text().partition("\n\n")[0].splitlines()
        return "; ".join(line for line in lines if line.startswith(wanted))
    return f"{platform.machine()} {platform.processor()}"
