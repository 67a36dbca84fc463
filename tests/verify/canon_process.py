"""Code of a test module in a Python of its own: other processors and libraries are chosen before anything is loaded."""

import subprocess
import sys
from pathlib import Path


def said(module: str, code: str, **environment: str) -> str:
    """What `code` prints, in a process with nothing else in its environment; the test module is `t` there."""
    here = str(Path(__file__).parent)
    done = subprocess.run(
        [
            sys.executable,
            "-W",
            "ignore",
            "-c",
            f"import sys; sys.path.insert(0, {here!r}); import {module} as t; {code}",
        ],
        capture_output=True,
        text=True,
        env=environment,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
