"""Programs in other namespaces, which say what they have seen as lines of JSON."""

from __future__ import annotations

import json
import subprocess
from typing import Any


def said(process: subprocess.Popen[str]) -> dict[str, Any]:
    """The next line of a program; of one that has ended without it, what it said of its error."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise AssertionError(process.communicate()[1])
    facts: dict[str, Any] = json.loads(line)
    return facts
