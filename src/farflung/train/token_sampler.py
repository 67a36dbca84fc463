"""Samples text from a model token by token: temperature, then top-k, then top-p (nucleus).

Pure: randomness is the generator that is given, so the same seed gives the same text on one machine. Top-p is the
nucleus of Holtzman et al. 2020. Temperature 0 takes the likeliest token each time and draws nothing. The model sees
the last `context` tokens; nothing is cached between steps, which costs time and no exactness.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec
import torch
from torch import Tensor, nn

from farflung.core.errors import UsageError

Logits = Callable[[Tensor], Tensor]


class SamplingOptions(msgspec.Struct, frozen=True):
    """How tokens are drawn. `top_k` 0 and `top_p` 1: from all; `tokens`: only numbers below are drawn."""

    temperature: float = 0.8
    top_k: int = 0
    top_p: float = 0.95
    tokens: int = 256

    def check(self) -> None:
        """Raises UsageError FF-TRAIN-103 when an option has no meaning."""
        wrong = (
            ("temperature", self.temperature, "from 0 (always the likeliest) to 10", 0 <= self.temperature <= 10),
            ("top-k", self.top_k, "0 (all tokens) or more", 0 <= self.top_k < 1 << 31),
            ("top-p", self.top_p, "above 0 and at most 1 (all tokens)", 0 < self.top_p <= 1),
        )
        for name, value, allowed, is_fine in wrong:
            if not is_fine:
                raise UsageError(
                    "FF-TRAIN-103",
                    f"{name} {value:g} has no meaning",
                    cause=f"{name} goes {allowed}",
                    hint=f"farflung sample --{name} {'0.8' if name != 'top-k' else '40'}",
                )


def logits_of(module: nn.Module) -> Logits | None:
    """A module's own `logits(x_BT) -> BTV`, if it has one."""
    found = getattr(module, "logits", None)
    return found if callable(found) else None


def stream(
    logits: Logits,
    prompt: Sequence[int],
    count: int,
    context: int,
    options: SamplingOptions,
    generator: torch.Generator,
) -> Iterator[int]:
    """`count` tokens that follow a prompt of one token or more. Raises UsageError FF-TRAIN-103, -104."""
    options.check()
    seen = list(prompt)[-context:]
    for _ in range(count):
        with torch.inference_mode():
            answer = logits(torch.tensor([seen], dtype=torch.int64))
            token = draw(_last(answer, len(seen), options.tokens), options, generator)
        yield token
        seen = [*seen, token][-context:]


def _last(answer: object, length: int, tokens: int) -> Tensor:
    """The logits of the next token, shape (V,), in double precision."""
    is_fine = isinstance(answer, Tensor) and answer.ndim == 3 and answer.shape[:2] == (1, length)
    if not (is_fine and isinstance(answer, Tensor) and bool(torch.isfinite(answer[0, -1]).all())):
        shape = f"{answer.dtype} of shape {tuple(answer.shape)}" if isinstance(answer, Tensor) else "no tensor"
        raise UsageError(
            "FF-TRAIN-104",
            "the model's logits cannot be used",
            cause=f"logits(x_BT) gave {shape} for x_BT of shape (1, {length}), or numbers that are not finite",
            hint="return a finite tensor of shape (B, T, vocabulary) from logits(x_BT)",
        )
    return answer[0, -1, :tokens].double()


def draw(logits_V: Tensor, options: SamplingOptions, generator: torch.Generator) -> int:
    """One token; of two alike the smaller number comes first."""
    if options.temperature == 0:
        return int(logits_V.argmax())
    ordered_V, order_V = torch.sort((logits_V - logits_V.max()) / options.temperature, descending=True, stable=True)
    if options.top_k:
        ordered_V = ordered_V[: options.top_k]
    shares_V = torch.softmax(ordered_V, 0)
    before_V = shares_V.cumsum(0) - shares_V
    shares_V = torch.where(before_V < options.top_p, shares_V, 0.0)  # the likeliest stays in any case
    ends_V = shares_V.cumsum(0)
    at = torch.rand((), dtype=torch.float64, generator=generator) * ends_V[-1]
    place = int(torch.searchsorted(ends_V, at, right=True))
    kept = int((shares_V > 0).sum())
    return int(order_V[min(place, kept - 1)])
