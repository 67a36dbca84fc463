"""Published figures of traffic, bubbles, work and failures, and what this planner says of the same."""

from collections.abc import Callable
from typing import NamedTuple

from farflung.advice.traffic import collectives, data_parallel, failures, local_step_methods, storage_traffic
from farflung.advice.traffic.collectives import RankSpan, span
from farflung.advice.traffic.data_parallel import ReplicaSharding, ZeroPlusPlus
from farflung.advice.traffic.pipeline_schedules import PipelineSchedule, StageTimes, timeline
from farflung.advice.traffic.tensor_parallel import tensor_parallel
from farflung.advice.traffic.traffic_terms import TrafficLoad
from farflung.advice.traffic.transformer_shapes import (
    Recomputation,
    TransformerShape,
    gpt_flop,
    gpt_parameters,
    token_flop,
    utilisation,
)

A100, TPU4, H100 = 312e12, 275e12, 989e12
KORTHIKANTI = "Korthikanti et al. 2022, table 5"
SC21 = "Narayanan et al. 2021"
DISTRO = "Peng et al. 2024, DisTrO preliminary report"
INTELLECT = "Jaghouar et al. 2024, INTELLECT-1"
GPT3 = TransformerShape(96, 12288, 2048, 51200)
MTNLG = TransformerShape(105, 20480, 2048, 51200)
T1 = TransformerShape(128, 25600, 2048, 51200)


class Case(NamedTuple):
    """`digit`: the value of the last printed digit."""

    name: str
    source: str
    published: float
    digit: float
    ours: Callable[[], float]

    @property
    def allowed(self) -> float:
        """3 % of it, or half of its last digit where that is more."""
        return max(0.03 * abs(self.published), self.digit / 2) * (1 + 1e-9)


def per_gradient(stage: int) -> float:
    """Bytes a rank moves, over those of one copy of the parameters, among 1,024 ranks."""
    return TrafficLoad(1024, data_parallel.replicated(1.0, RankSpan(1024), ReplicaSharding(stage))).sent


def mfu(
    shape: TransformerShape, batch: int, cards: int, seconds: float, kind: Recomputation = Recomputation.NONE
) -> float:
    return 100 * utilisation(gpt_flop(shape, batch, kind), seconds, cards, A100)


def days(shape: TransformerShape, tokens: float, cards: int, rate: float) -> float:
    """Of all cards at `rate` FLOP/s each, with all recomputed."""
    return gpt_flop(shape, 1, Recomputation.FULL) / shape.sequence * tokens / (cards * rate) / failures.DAY


def trained(shape: TransformerShape, tokens: float, seconds: float) -> float:
    """FLOP/s of all cards together, with all recomputed (Narayanan et al. 2021, equation 3)."""
    return gpt_flop(shape, 1, Recomputation.FULL) / shape.sequence * tokens / seconds


def selective(shape: TransformerShape) -> float:
    return 100 * (gpt_flop(shape, 1, Recomputation.SELECTIVE) / gpt_flop(shape, 1) - 1)


def distro() -> local_step_methods.ExchangeTraffic:
    return local_step_methods.sent(86.8e6 / 31, RankSpan(32))


def reduction(bits: float, steps: int) -> float:
    """Of all bytes of an fp32 all-reduce each step."""
    each, rare = (
        local_step_methods.averaged(1e9, RankSpan(8), *how).expected.sent for how in ((1, 32.0), (steps, bits))
    )
    return each / rare


def plus_plus() -> float:
    terms = data_parallel.replicated(2e9, span(1 << 14, 1, 16), ReplicaSharding(3, plus=ZeroPlusPlus()))
    return TrafficLoad(1 << 14, terms).between / (1 << 10) / 2e9


CASES = (
    Case("ZeRO 1 and 2 move as much as data parallel", "Rajbhandari et al. 2020, 7.2.1", 2, 1, lambda: per_gradient(2)),
    Case("ZeRO 3 moves 3 copies", "Rajbhandari et al. 2020, 7.2.2", 3, 1, lambda: per_gradient(3)),
    Case("data parallel moves 2 copies", "Rajbhandari et al. 2020, 7.1", 2, 1, lambda: per_gradient(0)),
    Case("ZeRO++ between nodes, of the copies' 3", "Wang et al. 2023, table 1", 0.75, 0.01, plus_plus),
    Case("ZeRO++ against ZeRO 3", "Wang et al. 2023, abstract", 4, 1, lambda: per_gradient(3) / plus_plus()),
    Case(
        "tensor parallel, of b s h a layer, 8 ranks",
        f"{SC21}, section 3.2",
        8 * 7 / 8,
        0.001,
        lambda: TrafficLoad(8, tensor_parallel(TransformerShape(1, 1, 1, parameters=1.0, element=1), RankSpan(8))).sent,
    ),
    Case(
        "AdamW baseline of DisTrO, GB (a naive exchange)",
        DISTRO,
        74.4,
        0.1,
        lambda: collectives.all_reduce(RankSpan(32), 2.4e9, collectives.AllReduceAlgorithm.NAIVE).received / 1e9,
    ),
    Case("DisTrO a step, MB", DISTRO, 86.8, 0.1, lambda: distro().expected.received / 1e6),
    Case("DisTrO against that baseline", DISTRO, 857.1, 0.1, lambda: distro().against_naive(1.2e9, 32)),
    Case("DisTrO's download at 100 Mbit/s, s", DISTRO, 6.94, 0.01, lambda: 8 * distro().expected.received / 100e6),
    Case(
        "DisTrO's upload by a server at 10 Mbit/s, s",
        DISTRO,
        2.24,
        0.01,
        lambda: 8 * local_step_methods.sent(2.8e6, RankSpan(32), is_fanned=True).expected.sent / 10e6,
    ),
    Case("DiLoCo, 500 steps", "Douillard et al. 2023, abstract", 500, 1, lambda: reduction(32.0, 500)),
    Case("INTELLECT-1: 8 bits every 100 steps", INTELLECT, 400, 1, lambda: reduction(8.0, 100)),
    Case(
        "INTELLECT-1 in one country, 38 min and 103 s",
        INTELLECT,
        96,
        1,
        lambda: 100 * local_step_methods.computing(2280, 103),
    ),
    Case(
        "INTELLECT-1 over an ocean, 382 s", INTELLECT, 85.6, 0.1, lambda: 100 * local_step_methods.computing(2280, 382)
    ),
    Case("INTELLECT-1 round the world, 469 s", INTELLECT, 83, 1, lambda: 100 * local_step_methods.computing(2280, 469)),
    Case(
        "all-reduce, bus over algorithm bandwidth, 8 ranks",
        "NCCL tests, PERFORMANCE",
        1.75,
        0.01,
        lambda: collectives.all_reduce(RankSpan(8), 1.0).sent,
    ),
    Case(
        "all-gather, the same",
        "NCCL tests, PERFORMANCE",
        0.875,
        0.001,
        lambda: collectives.all_gather(RankSpan(8), 1.0).sent,
    ),
    Case(
        "GPipe, 4 stages, 8 micro-batches",
        "Huang et al. 2019, section 2.3",
        0.375,
        0.001,
        lambda: timeline([StageTimes(1.0, 2.0)] * 4, 8, PipelineSchedule.GPIPE).bubble,
    ),
    Case(
        "1F1B, 4 stages, 8 micro-batches",
        f"{SC21}, section 2.2.1",
        0.375,
        0.001,
        lambda: timeline([StageTimes(1.0, 2.0)] * 4, 8).bubble,
    ),
    Case(
        "interleaved in two, the same",
        f"{SC21}, section 2.2.2",
        0.1875,
        0.0001,
        lambda: timeline([StageTimes(1.0, 2.0)] * 4, 8, PipelineSchedule.INTERLEAVED, virtual=2).bubble,
    ),
    Case("parameters of 145.6B", f"{SC21}, table 1", 145.6, 0.1, lambda: gpt_parameters(80, 12288, 51200, 2048) / 1e9),
    Case("parameters of 529.6B", f"{SC21}, table 1", 529.6, 0.1, lambda: gpt_parameters(105, 20480, 51200, 2048) / 1e9),
    Case("parameters of 1008B", f"{SC21}, table 1", 1008.0, 0.1, lambda: gpt_parameters(128, 25600, 51200, 2048) / 1e9),
    Case(
        "share of the peak on 3072 cards, %", f"{SC21}, table 1", 52, 1, lambda: 100 * utilisation(163e12, 1.0, 1, A100)
    ),
    Case(
        "PFLOP/s of 3072 cards, 450B tokens of 1T in 84 days",
        f"{SC21}, table 1 and section 5.1",
        502,
        1,
        lambda: trained(T1, 450e9, 84 * failures.DAY) / 1e15,
    ),
    Case("days for GPT-3 on 1024 cards", f"{SC21}, section 5.1", 34, 1, lambda: days(GPT3, 300e9, 1024, 140e12)),
    Case("days for 1T on 3072 cards", f"{SC21}, section 5.1", 84, 1, lambda: days(T1, 450e9, 3072, 163e12)),
    Case("MFU 22B", KORTHIKANTI, 41.5, 0.1, lambda: mfu(TransformerShape(48, 6144, 2048, 51200), 4, 8, 1.10)),
    Case("MFU 175B", KORTHIKANTI, 51.4, 0.1, lambda: mfu(GPT3, 64, 64, 13.75)),
    Case("MFU 530B", KORTHIKANTI, 56.0, 0.1, lambda: mfu(MTNLG, 280, 280, 37.83)),
    Case("MFU 1T", KORTHIKANTI, 56.3, 0.1, lambda: mfu(T1, 512, 512, 71.49)),
    Case("HFU 175B, selective", KORTHIKANTI, 52.8, 0.1, lambda: mfu(GPT3, 64, 64, 13.75, Recomputation.SELECTIVE)),
    Case(
        "selective recomputation of GPT-3, %", "Korthikanti et al. 2022, section 5", 2.7, 0.1, lambda: selective(GPT3)
    ),
    Case(
        "selective recomputation of MT-NLG, %", "Korthikanti et al. 2022, section 5", 1.6, 0.1, lambda: selective(MTNLG)
    ),
    Case(
        "MFU of PaLM",
        "Chowdhery et al. 2022, table 3",
        46.2,
        0.1,
        lambda: (
            100
            * utilisation(238.3e3 * token_flop(TransformerShape(118, 12288, 2048, parameters=540e9)), 1.0, 6144, TPU4)
        ),
    ),
    Case("MFU of Llama 3", "Llama 3, table 4", 43, 1, lambda: 100 * utilisation(430e12, 1.0, 1, H100)),
    Case("MFU of Llama 3, long contexts", "Llama 3, table 4", 38, 1, lambda: 100 * utilisation(380e12, 1.0, 1, H100)),
    Case(
        "hours between Llama 3's failures",
        "Llama 3, section 3.3.4",
        3,
        1,
        lambda: failures.mean_time(16384, 419 / 54 / 16384) / 3600,
    ),
    Case(
        "TB of a checkpoint of 1T",
        f"{SC21}, section 5.10",
        13.8,
        0.1,
        lambda: storage_traffic.checkpoint_bytes(gpt_parameters(128, 25600, 51200, 2048)) / 1e12,
    ),
    Case(
        "TiB of a checkpoint of BLOOM",
        "BLOOM model card",
        2.3,
        0.1,
        lambda: storage_traffic.checkpoint_bytes(176.25e9) / 2**40,
    ),
    Case(
        "GiB of BLOOM's weights",
        "BLOOM model card",
        329,
        1,
        lambda: storage_traffic.checkpoint_bytes(176.25e9, optimizer=0.0) / 2**30,
    ),
    Case(
        "GB of 405B with all states",
        "Hugging Face, Llama 3.1",
        6480,
        10,
        lambda: storage_traffic.checkpoint_bytes(405e9, 4.0) / 1e9,
    ),
)
