"""What others published about the memory of training, by source, and what this planner says of the same.

Printed figures are given as strings, so that the digits that were printed are known. GB are 10^9 bytes, GiB 2^30.
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec.structs import replace

from farflung.advice.memory import activations, adapters, model_states
from farflung.advice.memory.activations import AttentionMemory, MicroBatch
from farflung.advice.memory.breakdown import MemoryPart
from farflung.advice.memory.model_states import RECIPES, ZeroSplit
from farflung.advice.memory.transformer import MODELS, Transformer
from farflung.advice.traffic.transformer_shapes import gpt_parameters

GB, GIB = 1e9, float(1 << 30)


class Case(NamedTuple):
    """One printed figure."""

    source: str
    what: str
    printed: str
    ours: float

    @property
    def allowed(self) -> float:
        """3 % of it, or half of its last digit where that is more."""
        decimals = len(self.printed.partition(".")[2])
        return max(0.03 * float(self.printed), 0.5 * 10.0**-decimals)


def total(parts: tuple[MemoryPart, ...]) -> float:
    return sum(part.bytes for part in parts)


def zero() -> list[Case]:
    """Rajbhandari et al. 2020, table 1."""
    table = {
        7.5e9: {
            1: ("120", "120", "120"),
            4: ("52.5", "41.3", "30"),
            16: ("35.6", "21.6", "7.5"),
            64: ("31.4", "16.6", "1.88"),
            256: ("30.4", "15.4", "0.47"),
            1024: ("30.1", "15.1", "0.12"),
        },
        128e9: {4: ("896", "704", "512"), 64: ("536", "284", "32"), 1024: ("513", "257", "2")},
        1e12: {16: ("4750", "2875", "1000"), 256: ("4046", "2054", "62.5"), 1024: ("4011", "2013", "15.6")},
    }
    return [
        Case("ZeRO, table 1", f"{size:g} parameters, stage {stage}, {ways} ways", printed, mem / GB)
        for size, rows in table.items()
        for ways, row in rows.items()
        for stage, printed in enumerate(row, 1)
        for mem in [total(model_states.states(size, split=ZeroSplit(stage, ways)))]
    ]


def korthikanti() -> list[Case]:
    """Korthikanti et al. 2022, table 2 and section 5, of GPTs whose scores and masks are in memory."""
    found = []
    for name, width, heads, scores in (("GPT-3", 12_288, 96, "80"), ("MT-NLG", 20_480, 128, "64")):
        model = Transformer(1, width, heads, 51_200)
        load = MicroBatch(1, 2048, attention=AttentionMemory.EAGER, has_dropout=True)
        whole = activations.kept(load, model).bytes
        found.append(Case("Korthikanti, section 5", f"{name}: 5 a s/h", scores, whole / (2048.0 * width) - 34))
    split = activations.kept(replace(load, tensor=8, is_sequence_parallel=True), model).bytes
    found.append(Case("Korthikanti, table 2", "MT-NLG, 8 ways with sequences: an eighth", "8", whole / split))
    return found


def playbook() -> list[Case]:
    """Tazi et al. 2025 (Ultra-scale playbook), memory usage."""
    found = []
    for size, printed, summed in (
        (1e9, "16", "20"),
        (7e9, "112", "140"),
        (70e9, "1120", "1400"),
        (405e9, "6480", "8100"),
    ):
        for recipe, figure in (("adam-mixed", printed), ("adam-mixed-summed", summed)):
            mem = total(model_states.states(size, RECIPES[recipe])) / GB
            found.append(Case("Ultra-scale", f"{size:g} parameters, {recipe}", figure, mem))
    model = MODELS["llama3-8b"]
    found.append(Case("Ultra-scale", "8B, weights, GiB", "15", 2 * model.size / GIB))
    found.append(Case("Ultra-scale", "8B, mean and variance, GiB", "60", 8 * model.size / GIB))
    return found


def sizes() -> list[Case]:
    """Parameters as their authors print them, in 10^9."""
    megatron = (
        (24, 2304, "1.7"), (30, 3072, "3.6"), (36, 4096, "7.5"), (40, 6144, "18.4"), (48, 8192, "39.1"),
        (60, 10_240, "76.1"), (80, 12_288, "145.6"), (96, 16_384, "310.1"), (105, 20_480, "529.6"),
        (128, 25_600, "1008.0"),
    )  # fmt: skip
    found = [
        Case(
            "Narayanan et al. 2021, table 1",
            f"{layers} x {width}",
            printed,
            gpt_parameters(layers, width, 51_200, 2048) / 1e9,
        )
        for layers, width, printed in megatron
    ]
    printed = {
        "gpt2": "0.124", "gpt2-medium": "0.355", "gpt2-large": "0.774", "gpt2-xl": "1.558", "gpt3": "175",
        "llama2-7b": "6.74", "llama2-13b": "13.02", "llama2-70b": "68.98", "llama3-8b": "8.03",
        "llama3-70b": "70.6", "llama3-405b": "405", "mistral-7b": "7.24", "mixtral-8x7b": "46.7",
    }  # fmt: skip
    found += [Case("model cards", name, text, MODELS[name].size / 1e9) for name, text in printed.items()]
    found.append(Case("Jiang et al. 2024", "Mixtral, of a token", "12.9", MODELS["mixtral-8x7b"].active / 1e9))
    return found


def small() -> list[Case]:
    """LoRA, QLoRA, 8-bit optimizers."""
    sides = [(12_288, 12_288)] * (2 * 96)  # queries and values of each layer
    saved = 8 * (adapters.NF4_PLAIN - adapters.NF4)
    eight = RECIPES["adam-mixed"].optimizer - RECIPES["adam-8bit"].optimizer
    return [
        Case("Hu et al. 2022, table 4", "GPT-3, rank 1, 10^6", "4.7", adapters.adapter_size(sides, 1) / 1e6),
        Case("Hu et al. 2022, table 4", "GPT-3, rank 8, 10^6", "37.7", adapters.adapter_size(sides, 8) / 1e6),
        Case("Dettmers et al. 2023, section 3", "bits a weight saved", "0.373", saved),
        Case("Dettmers et al. 2023, section 3", "saved of 65 B, GB", "3", saved / 8 * 65e9 / GB),
        Case("Dettmers et al. 2022, section 1", "saved of 1.5 B, GiB", "8.5", eight * 1.5e9 / GIB),
    ]


CASES = (*zero(), *korthikanti(), *playbook(), *sizes(), *small())
