"""The process that runs a model of the user's own to use it: asked once (train.io.once)."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, Final, cast

from farflung.core import limits
from farflung.core.codec import decode
from farflung.train import questions
from farflung.train.io import once

MODULE: Final = "farflung.train.io.teller"


def load() -> once.Answers:
    """What answers."""
    from farflung.train import telling

    def answers(raw: bytes) -> Iterator[Any]:
        yield from telling.answers(decode(raw, cast(type[Any], questions.Request), limits.PIPE_BYTES))

    return answers


if __name__ == "__main__":
    sys.exit(once.main(load))
