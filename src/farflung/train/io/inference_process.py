"""Runs the process that uses a user's own model: one request (train.io.one_shot_process)."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, Final

from farflung.train import inference_messages
from farflung.train.io import one_shot_process

MODULE: Final = "farflung.train.io.inference_process"


def load() -> one_shot_process.Answers:
    """What answers."""
    from farflung.train import inference

    def answers(request: inference_messages.Request) -> Iterator[Any]:
        yield from inference.answer(request)

    return answers


if __name__ == "__main__":
    sys.exit(one_shot_process.main(inference_messages.Request, load))
