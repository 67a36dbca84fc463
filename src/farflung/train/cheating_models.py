"""Provides models that compute a gradient in another way, on the job model's storage. train.shortcuts uses them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from farflung.train.flat_model import FlatModel
from farflung.train.vector_store import blocks

FROZEN: Final = 0.25  # of the parameters, in the order of their registration
FP8_MOST: Final = 448.0  # the largest number of float8_e4m3fn
INT8_MOST: Final = 127.0


class CheatingModel(FlatModel):
    """Another way to a gradient, on the same storage as the model that it stands for."""

    def __init__(self, model: FlatModel) -> None:
        self.__dict__.update(vars(model))


class RoundedWeightsCheat(CheatingModel):
    """Weights in 8 bits for each gradient (one scale a tensor), kept in float32 between."""

    def __init__(self, model: FlatModel, most: float, rounded: Callable[[Tensor], Tensor]) -> None:
        """`rounded` takes numbers of at most `most` to those of 8 bits."""
        super().__init__(model)
        self._most, self._rounded = most, rounded

    def gradient(self, x_BT: Tensor, y_BT: Tensor) -> float:
        """As FlatModel.gradient, at rounded weights."""
        kept = self.params.clone()
        for _, place in self.layout.slices():
            own = blocks(place)
            scale = torch.stack([kept[piece].abs().max() for piece in own]).max().clamp(min=1e-30) / self._most
            for piece in own:
                self.params[piece] = self._rounded(kept[piece] / scale) * scale
        loss = super().gradient(x_BT, y_BT)
        self.params.copy_(kept)
        return loss


def fp8_weights(model: FlatModel) -> RoundedWeightsCheat:
    """Of type e4m3."""
    return RoundedWeightsCheat(model, FP8_MOST, lambda numbers: numbers.to(torch.float8_e4m3fn).float())


def int8_weights(model: FlatModel) -> RoundedWeightsCheat:
    """Whole numbers."""
    return RoundedWeightsCheat(model, INT8_MOST, torch.round)


class Bfloat16ProductsCheat(CheatingModel):
    """Products in bfloat16, weights in float32: mixed precision as torch.autocast has it."""

    def __init__(self, model: FlatModel) -> None:
        super().__init__(model)
        self.setting = model.setting._replace(compute=torch.bfloat16)


class FrozenLayersCheat(CheatingModel):
    """Nothing flows back into the first layers."""

    def gradient(self, x_BT: Tensor, y_BT: Tensor) -> float:
        """As FlatModel.gradient, but 0 there."""
        loss = super().gradient(x_BT, y_BT)
        for place in frozen_elements(self):
            self.grads[place] = 0.0
        return loss


class SkippedGradientsCheat(CheatingModel):
    """A gradient every `every` steps; what was there last stands for the others. 0: none is ever made."""

    def __init__(self, model: FlatModel, every: int) -> None:
        super().__init__(model)
        self.every, self.asked, self.loss_seen = every, 0, 0.0
        self.grads.zero_()

    def gradient(self, x_BT: Tensor, y_BT: Tensor) -> float:
        """As FlatModel.gradient in the steps that have one."""
        if self.every and self.asked % self.every == 0:
            self.loss_seen = super().gradient(x_BT, y_BT)
        self.asked += 1
        return self.loss_seen


def frozen_elements(model: FlatModel) -> list[slice]:
    """Where the first layers lie: tensors that begin within the first FROZEN of the parameters as registered."""
    places = {tensor.name: place for tensor, place in model.layout.slices()}
    found, done = [], 0
    for name, _ in model.module.named_parameters():
        if done < FROZEN * model.layout.size:
            found.append(places[name])
        done += places[name].stop - places[name].start
    return found
