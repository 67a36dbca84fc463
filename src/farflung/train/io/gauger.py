"""The process that goes through a job's step to find its memory: asked once (train.io.once), as `-m` and a descriptor.

A user's module is a program, and nothing of it runs where it is planned.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, Final, cast

from farflung.core import limits
from farflung.core.codec import decode
from farflung.train.gauge.request import Request
from farflung.train.io import once
from farflung.train.io.loading import uncollected

MODULE: Final = "farflung.train.io.gauger"


def load() -> once.Answers:
    """What answers."""
    with uncollected():
        from farflung.train.gauge import jobs

    def answers(raw: bytes) -> Iterator[Any]:
        yield jobs.answer(decode(raw, cast(type[Any], Request), limits.PIPE_BYTES))

    return answers


if __name__ == "__main__":
    sys.exit(once.main(load))
