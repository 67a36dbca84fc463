"""Using a handed-over model: tokens that follow a prompt, or how well it predicts a text. One request, its answers.

The same code answers in the command's own process for the built-in GPT and in a sandboxed one (train.io.teller) for a
model of the user's own, whose source is a program.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from farflung.core.errors import RunError
from farflung.job.spec import JobSpec
from farflung.train import card, heldout, sampling
from farflung.train import model as models
from farflung.train.card import Card
from farflung.train.model import Model
from farflung.train.questions import PACKED, Answer, Judged, Request, Sample, Told
from farflung.train.sampling import Options

__all__ = ["Answer", "Judged", "Request", "Sample", "Told", "answers"]


def answers(request: Request) -> Iterator[Answer]:
    """All answers to one request. Raises FarflungError: of train.card, of the model, FF-TRAIN-103 to -105."""
    torch.set_num_threads(1)  # as the run's own worker: the same sums in the same order
    said, model = _built(request)
    if isinstance(request, Sample):
        yield from _sampled(request, said, model)
        return
    tokens = np.frombuffer(request.tokens, PACKED)
    found = heldout.measure(model, tokens, said.context, request.limit)
    yield Judged(found.loss, found.accuracy, found.tokens)


def _built(request: Request) -> tuple[Card, Model]:
    said, tensors = card.read(request.data)
    if said.kind == "gpt":
        card.fit(said, card.gpt_layout(said), tensors)  # before memory is taken for it
    model = models.build(JobSpec(model=said.model), request.source)
    model.put(card.flat(said, model.layout, tensors))
    model.module.eval()
    return said, model


def _sampled(request: Sample, said: Card, model: Model) -> Iterator[Told]:
    logits = sampling.logits_of(model.module)
    if logits is None:
        raise RunError(
            "FF-TRAIN-105",
            f"the model of {said.module} cannot write text",
            cause="its class has no method logits(x_BT), which gives a score for each next token",
            hint="add `def logits(self, x_BT)` of shape (B, T, vocabulary), let forward use it, and train again",
        )
    options = Options(request.temperature, request.top_k, request.top_p, min(said.vocabulary, 256))
    generator = torch.Generator().manual_seed(request.seed)
    for token in sampling.stream(logits, request.prompt, request.count, said.context, options, generator):
        yield Told(token)
