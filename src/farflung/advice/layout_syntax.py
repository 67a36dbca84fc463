"""Parses a layout as a person writes it: `dp=8,tp=2,pp=4` are 64 cards, 8 replicas of 4 stages of 2 slices (P1).

    ways     dp data, tp tensor, pp pipeline, cp context, ep expert parallel; node: cards of one node
    step     batch: sequences of a step, all replicas together; micros: into how many parts a replica's are cut;
             virtual: parts of the model a stage holds; zero: stage of ZeRO; sp=1: sequence parallel;
             recompute: none, selective, full; every, bits: replicas exchange changes of so many bits every so many
             steps
    model    model: a name of advice.memory.transformer, or sizes: layers, hidden, heads, sequence, vocabulary, experts,
             chosen; params: parameters, where they are not what the sizes say; bytes of a number on the wire
    epoch    tokens; loss: share of packets that a line loses

What is not named is the job's own model, one replica's batch the job's.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import msgspec
from msgspec.structs import replace

from farflung.advice.memory.transformer import MODELS, Transformer
from farflung.advice.traffic import input_checks
from farflung.advice.traffic.data_parallel import ReplicaSharding
from farflung.advice.traffic.hybrid_parallel import ParallelMesh, TrainingStep
from farflung.advice.traffic.transformer_shapes import TransformerShape
from farflung.core.errors import UsageError
from farflung.core.similar_name import similar_name
from farflung.plan.step_trace import Recomputation

AXES: Final = MappingProxyType(
    {"dp": "data", "tp": "tensor", "pp": "pipeline", "cp": "context", "ep": "expert", "node": "node"}
)
SIZES: Final = MappingProxyType(
    {"layers": "layers", "hidden": "width", "heads": "heads", "vocabulary": "vocabulary", "experts": "experts",
     "chosen": "chosen"}
)  # fmt: skip
STEP: Final = ("batch", "micros", "virtual", "zero", "sp", "every")
AMOUNTS: Final = ("bits", "params", "tokens", "loss")
WORDS: Final = ("model", "recompute")
NAMES: Final = (*AXES, *STEP, *SIZES, "sequence", "bytes", *AMOUNTS, *WORDS)
HEAD: Final = 128  # values of one head, where heads are not named
SEQUENCE: Final = 4096  # of a model that has no positions of its own
_HINT: Final = "write NAME=VALUE with commas between: --layout dp=8,tp=2,pp=4"


class ParallelLayout(msgspec.Struct, frozen=True):
    """What was asked for. `tokens` of an epoch, 0: not known; `loss` of packets; `is_sized`: memory can be told."""

    model: Transformer
    shape: TransformerShape
    mesh: ParallelMesh
    training: TrainingStep
    batch: int
    tokens: float
    loss: float
    is_sized: bool


def parse(text: str, model: Transformer | None, sequence: int, batch: int) -> ParallelLayout:
    """The layout that `text` means. `model`, `sequence`, `batch`: the job's, one replica's batch; None: no sizes.

    Raises UsageError FF-PLAN-063 (cannot be read), -064 (a name or a model that there is not), -065 (no model), and of
    values FF-PLAN-020, -021, -023 (ways that do not divide), -026.
    """
    said = _said(text)
    numbers = {name: _number(name, value) for name, value in said.items() if name not in WORDS}
    whole = {name: _whole(name, value) for name, value in numbers.items() if name not in AMOUNTS}
    if name := said.get("model"):
        model = _model(name)
        sequence, batch = model.positions or SEQUENCE, 1
    sizes = {field: whole[name] for name, field in SIZES.items() if name in whole}
    is_own = {"layers", "width"} <= sizes.keys()
    if is_own:
        heads = max(1, sizes["width"] // HEAD)
        model, sequence, batch = Transformer(sizes["layers"], sizes["width"], heads, 1), SEQUENCE, 1
    if model is None:
        raise UsageError(
            "FF-PLAN-065",
            "this job's model has no sizes that a layout could cut",
            cause="it is a module of your own",
            hint="name its sizes, --layout dp=8,layers=80,hidden=8192, or one that is known, model=llama3-70b",
        )
    model = replace(model, **sizes)
    mesh = ParallelMesh(**{AXES[name]: value for name, value in whole.items() if name in AXES})
    batch = whole.get("batch", batch * mesh.data)
    has_table = not is_own or "vocabulary" in sizes
    shape = _shape(model, whole, numbers, whole.get("sequence", sequence), has_table=has_table)
    return ParallelLayout(
        model, shape, mesh, _training(said, whole, numbers, mesh, batch), batch,
        input_checks.amount("tokens", numbers.get("tokens", 0.0)),
        input_checks.amount("loss", numbers.get("loss", 0.0), most=0.99),
        "params" not in numbers and mesh.expert == 1,
    )  # fmt: skip


def _said(text: str) -> dict[str, str]:
    said: dict[str, str] = {}
    for part in text.split(","):
        name, is_given, value = (word.strip() for word in part.partition("="))
        if not (name and is_given and value) or name in said:
            cause = "it is named twice" if name in said else "it is no NAME=VALUE"
            raise UsageError("FF-PLAN-063", f"{part[:40]!r} in --layout cannot be read", cause=cause, hint=_HINT)
        if name not in NAMES:
            guess = similar_name(name, NAMES)
            raise UsageError(
                "FF-PLAN-064",
                f"a layout has no {name[:40]!r}",
                cause=f"there are {', '.join(NAMES)}",
                hint=f"did you mean {guess}?" if guess else _HINT,
            )
        said[name] = value
    return said


def _number(name: str, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise UsageError(
            "FF-PLAN-063", f"{name} cannot be {value[:40]!r}", cause="it is no number", hint=f"{name}=8"
        ) from None


def _whole(name: str, value: float) -> int:
    return int(value) if value.is_integer() else input_checks.count(name, value)  # type: ignore[arg-type]


def _model(name: str) -> Transformer:
    if name not in MODELS:
        guess = similar_name(name, MODELS)
        raise UsageError(
            "FF-PLAN-064",
            f"no model is called {name[:40]!r}",
            cause=f"there are {', '.join(MODELS)}",
            hint=f"did you mean {guess}?" if guess else "name its sizes: layers=80,hidden=8192",
        )
    return MODELS[name]


def _shape(
    model: Transformer, whole: Mapping[str, int], numbers: Mapping[str, float], sequence: int, *, has_table: bool
) -> TransformerShape:
    """What of a model decides its traffic; `has_table`: its vocabulary is known, and cut over the slices."""
    return TransformerShape(
        model.layers,
        model.width,
        sequence,
        model.vocabulary if has_table else 0,
        parameters=numbers.get("params", model.size),
        element=whole.get("bytes", 2),
        share=model.narrow / model.width,
        experts=model.layers * model.expert * model.experts,
        chosen=max(1, model.chosen),
        routed=model.layers if model.experts else 0,
        is_tied=model.is_tied,
    )


def _training(
    said: Mapping[str, str], whole: Mapping[str, int], numbers: Mapping[str, float], mesh: ParallelMesh, batch: int
) -> TrainingStep:
    input_checks.count("batch", batch)
    input_checks.dividing("batch", batch, "dp", mesh.data)
    own = batch // mesh.data
    micros = whole.get("micros", own if mesh.pipeline > 1 else 1)
    input_checks.count("micros", micros)
    input_checks.dividing("sequences of a replica", own, "micros", micros)
    return TrainingStep(
        batch=own // micros,
        micros=micros,
        virtual=whole.get("virtual", 1),
        recompute=input_checks.word("recompute", said.get("recompute", "none"), Recomputation),
        is_sequence_parallel=bool(input_checks.count("sp", whole.get("sp", 0), least=0, most=1)),
        sharding=ReplicaSharding(whole.get("zero", 0)),
        every=whole.get("every", 1),
        bits=numbers.get("bits", 0.0),
    )
