"""A shell's low bound on open files, and strangers that use it up: roles that strangers reach raise their own bound."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from types import ModuleType
from typing import Any, cast

import pytest

from farflung.peers.relay import main as relay
from farflung.peers.validator import main as validator

PROGRAM = """
import resource
from farflung.peers.process.open_files import allow_many_files
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (48, hard))
allow_many_files()
soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
print(soft == (8192 if hard == resource.RLIM_INFINITY else min(8192, hard)))
resource.setrlimit(resource.RLIMIT_NOFILE, (48, 48))
allow_many_files()
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


def test_a_process_raises_its_bound_as_far_as_it_may() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "48"]


@pytest.mark.parametrize("role", [relay, validator])
def test_who_listens_to_strangers_raises_it_first_of_all(role: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    class RaisedError(Exception):
        pass

    def raised() -> None:
        raise RaisedError

    monkeypatch.setattr(role, "allow_many_files", raised)
    with pytest.raises(RaisedError):
        asyncio.run(role.main(cast(Any, None), cast(Any, None)))
