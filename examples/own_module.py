"""A model of your own: any nn.Module whose forward returns the loss. This one looks eight bytes back.

After Bengio et al. 2003, "A neural probabilistic language model": embeddings of the last few tokens, one hidden
layer, one prediction. What farflung asks of a module:

- a function without arguments returns it; its file needs no other file,
- `module(x_BT, y_BT)` takes int64 tokens and returns one finite scalar, the loss; or `module(x_BT)` returns logits,
- parameters are float32 and are all trained; buffers stay constant (LayerNorm is fine, BatchNorm is not),
- a method `logits(x_BT)` where it is to write text (`farflung sample`).

Shapes: B sequences, T tokens, D channels of an embedding, H hidden channels, V tokens of the vocabulary.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

WINDOW = 8


class Windowed(nn.Module):
    """Predicts each token from the WINDOW tokens before it."""

    def __init__(self, width: int = 24, hidden: int = 96, vocabulary: int = 256) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.mix = nn.Conv1d(width, hidden, WINDOW)
        self.norm = nn.LayerNorm(hidden)
        self.head = nn.Linear(hidden, vocabulary)

    def logits(self, x_BT: Tensor) -> Tensor:
        """A score for each next token, (B, T, V). Training does not need it; `farflung sample` does."""
        x_BDT = self.embed(x_BT).transpose(1, 2)
        past_BDT = functional.pad(x_BDT, (WINDOW - 1, 0))  # nothing from the future
        hidden_BTH = torch.tanh(self.norm(self.mix(past_BDT).transpose(1, 2)))
        scores_BTV: Tensor = self.head(hidden_BTH)
        return scores_BTV

    def forward(self, x_BT: Tensor, y_BT: Tensor) -> Tensor:
        """Mean cross-entropy in nats per token; y is x one place later."""
        return functional.cross_entropy(self.logits(x_BT).flatten(0, 1), y_BT.flatten())


def build() -> nn.Module:
    """What `module = "own_module.py:build"` names."""
    return Windowed()
