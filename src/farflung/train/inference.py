"""Uses a handed-over model: generates tokens after a prompt, or measures its loss on a text.

One request, its answers.

The same code answers in the command's own process for the built-in GPT and in a sandboxed one
(train.io.inference_process) for a model of the user's own, whose source is a program.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from farflung.core.errors import RunError
from farflung.job.spec import JobSpec
from farflung.train import flat_model as models
from farflung.train import heldout, model_file, token_sampler
from farflung.train.flat_model import FlatModel
from farflung.train.inference_messages import (
    PACKED,
    Answer,
    GenerateReply,
    GenerateRequest,
    ModelEvaluationReply,
    ParameterNamesReply,
    ParameterNamesRequest,
    Request,
)
from farflung.train.model_file import ModelFileHeader
from farflung.train.token_sampler import SamplingOptions

__all__ = ["Answer", "GenerateReply", "GenerateRequest", "ModelEvaluationReply", "Request", "answer"]


def answer(request: Request) -> Iterator[Answer]:
    """All answers to one request. Raises FarflungError: of train.model_file, of the model, FF-TRAIN-103 to -105."""
    torch.set_num_threads(1)  # as the run's own worker: the same sums in the same order
    header, model = _built(request)
    if isinstance(request, GenerateRequest):
        yield from _sampled(request, header, model)
        return
    if isinstance(request, ParameterNamesRequest):
        yield _names(model)
        return
    tokens = np.frombuffer(request.tokens, PACKED)
    found = heldout.measure(model, header.model, request.batch, tokens, request.limit)
    yield ModelEvaluationReply(found.loss, found.accuracy, found.tokens)


def _built(request: Request) -> tuple[ModelFileHeader, FlatModel]:
    header, tensors = model_file.read(request.data)
    if header.kind == "gpt":
        model_file.fit(header, model_file.gpt_layout(header), tensors)  # before memory is taken for it
    model = models.build(JobSpec(model=header.model), request.source)
    model.put(model_file.flat(header, model.layout, tensors))
    model.module.eval()
    return header, model


def _names(model: FlatModel) -> ParameterNamesReply:
    kept = {id(parameter): name for name, parameter in model.module.named_parameters()}  # a tied one by its first name
    named = dict(model.module.named_parameters(remove_duplicate=False))
    missing = sorted(set(model.module.state_dict()) - set(kept.values()))
    tied = tuple((name, kept[id(named[name])]) for name in missing if name in named)
    return ParameterNamesReply(tied, tuple(name for name in missing if name not in named))


def _sampled(request: GenerateRequest, header: ModelFileHeader, model: FlatModel) -> Iterator[GenerateReply]:
    logits = token_sampler.logits_of(model.module)
    if logits is None:
        raise RunError(
            "FF-TRAIN-105",
            f"the model of {header.module} cannot write text",
            cause="its class has no method logits(x_BT), which gives a score for each next token",
            hint="add `def logits(self, x_BT)` of shape (B, T, vocabulary), let forward use it, and train again",
        )
    options = SamplingOptions(request.temperature, request.top_k, request.top_p, min(header.vocabulary, 256))
    generator = torch.Generator().manual_seed(request.seed)
    for token in token_sampler.stream(logits, request.prompt, request.count, header.context, options, generator):
        yield GenerateReply(token)
