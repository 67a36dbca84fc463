"""Runs the process that traces a job's step to find its memory.

It serves one request (train.io.one_shot_process) and is started with `-m` and a descriptor.

A user's module is a program, and nothing of it runs where it is planned.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, Final

from farflung.train.gauge.request import Request
from farflung.train.io import one_shot_process
from farflung.train.io.import_without_gc import gc_paused

MODULE: Final = "farflung.train.io.memory_process"


def load() -> one_shot_process.Answers:
    """What answers."""
    with gc_paused():
        from farflung.train.gauge import job_step

    def answers(request: Request) -> Iterator[Any]:
        yield job_step.answer(request)

    return answers


if __name__ == "__main__":
    sys.exit(one_shot_process.main(Request, load))
