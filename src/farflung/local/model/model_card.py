"""Writes the README of a model that leaves its run: its architecture, training, measured quality and limits."""

from __future__ import annotations

import json
import keyword
import math
from pathlib import PurePath
from typing import Final, NamedTuple

from farflung.core.events import RunResultEvent
from farflung.core.release import VERSION
from farflung.core.units import format_bytes, format_count
from farflung.job.proof_class import UNPROVEN
from farflung.job.spec import JobSpec
from farflung.train.model_file import ModelFileHeader
from farflung.watch import job_class_text
from farflung.watch.phrases import many
from farflung.watch.redaction import redact

_LISTED: Final = 32  # names of tensors that are told
_TIED_HEAD: Final = """\
`lm_head.weight` is the same tensor as `transformer.wte.weight`, and is in the file once: `from_pretrained` ties it.
`load_state_dict` of the file alone would say that it is missing; with `strict=False` it loads the same.

"""
_LOAD: Final = """\
## Use

```python
{build}

model = {call}
{load}
```

"""
_USE: Final = """\
## Use

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained({folder})
model = AutoModelForCausalLM.from_pretrained({folder})
start = tokenizer("def ", return_tensors="pt")
print(tokenizer.decode(model.generate(**start)[0]))
```

A token is one byte of UTF-8 text, its id the byte's value. The model sees at most {context} tokens, prompt and answer
together; without other settings `generate` stops there.

"""


class TensorNames(NamedTuple):
    """Names of a module's state that its file does not hold (train.inference_messages); not known: it was not built."""

    tied: tuple[tuple[str, str], ...] = ()
    made: tuple[str, ...] = ()
    is_known: bool = True


def readme(
    card: ModelFileHeader,
    spec: JobSpec,
    result: RunResultEvent,
    model_hash: str,
    folder: str,
    names: TensorNames | None,
) -> str:
    """The model card, in Markdown. Every figure is of this run; what was not measured is not in it.

    `names`: how the plain tensors are loaded; None: it lies in a folder for transformers.
    """
    use = _for_transformers(card, folder) if names is None else _for_torch(card, folder, names)
    return (
        f"# {card.name}\n\n{_what(card)}\n\n{use}"
        f"## How it was trained\n\n{_how(card, spec, result)}\n\n"
        f"## How well it does\n\n{_figures(card, spec, result)}\n\n"
        f"## What it is not\n\n{_limits()}\n\n"
        f"## Where it comes from\n\n{_origin(card, result, model_hash)}\n"
    )


def _for_transformers(card: ModelFileHeader, folder: str) -> str:
    if card.tokens != "bytes":
        return _TIED_HEAD
    return _USE.format(folder=json.dumps(folder), context=card.context) + _TIED_HEAD


def _for_torch(card: ModelFileHeader, folder: str, names: TensorNames) -> str:
    """How the tensors come into the module: strictly, or what is not in the file, and why."""
    file, _, function = card.module.rpartition(":")
    stem, path = file.removesuffix(".py"), json.dumps(f"{folder}/model.safetensors")
    if card.kind == "gpt":
        sizes = f"layers={card.layers}, width={card.width}, heads={card.heads}, context={card.context}"
        imports = "from farflung.job.spec import ModelSpec\nfrom farflung.train.models.gpt import build"
        call = f"build(ModelSpec({sizes}, vocabulary={card.vocabulary}))"
    elif stem.isidentifier() and not keyword.iskeyword(stem) and PurePath(file).suffix in (".py", ""):
        imports, call = f"from {stem} import {function}", f"{function}()"
    else:
        imports, call = "import runpy", f"runpy.run_path({json.dumps(file)})[{json.dumps(function)}]()"
    if names.made or not names.is_known:
        imports += "\nfrom safetensors.torch import load_file"
        load = f"missing, unexpected = model.load_state_dict(load_file({path}), strict=False)"
    else:
        imports += "\nfrom safetensors.torch import load_model"
        load = f"load_model(model, {path})"
    return _LOAD.format(build=imports, call=call, load=load) + "".join(f"{row}\n\n" for row in _explained(names))


def _explained(names: TensorNames) -> list[str]:
    """Which tensors of the module are not in the file."""
    rows = []
    if names.tied:
        pairs = [f"`{_plain(name)}` is the same tensor as `{_plain(kept)}`" for name, kept in names.tied]
        rows.append(
            f"{_listed(pairs)}. It is in the file once: `load_model` knows that, and `load_state_dict` with"
            " `strict=False` loads the same; with `strict=True` it would say that the second name is missing."
        )
    if names.made:
        listed = _listed([f"`{_plain(name)}`" for name in names.made])
        rows.append(
            f"The module makes these itself, and they are not in the file: {listed}. `missing` names them"
            f"{' and the second names above' if names.tied else ''} and nothing else, `unexpected` nothing."
        )
    if not names.is_known:
        rows.append(
            "Names that `missing` gives are second names of a tensor that is in the file once (a tied weight), or"
            " buffers that the module makes itself. They could not be listed here: the module could not be built."
        )
    return rows


def _listed(texts: list[str]) -> str:
    more = len(texts) - _LISTED
    return ", ".join(texts[:_LISTED]) + (f", and {more} more" if more > 0 else "")


def _what(card: ModelFileHeader) -> str:
    tokens = "the bytes of text" if card.tokens == "bytes" else f"numbers below {card.vocabulary}"
    if card.kind == "module":
        return f"The model of `{card.module}`, trained by farflung on {tokens}."
    layers = "1 layer" if card.layers == 1 else f"{card.layers} layers"
    return (
        f"A GPT of {layers}, width {card.width}, {card.heads} heads and a context of {card.context} tokens,"
        f" trained by farflung on {tokens}."
    )


def _how(card: ModelFileHeader, spec: JobSpec, result: RunResultEvent) -> str:
    rows = [
        f"- data: `{_plain(PurePath(spec.data.path).name)}`, of which {spec.data.heldout:.3g} was held out",
        f"- {result.rounds} of {many(spec.rounds, 'round')} of {many(spec.sync.steps, 'local step')}"
        f" by {many(spec.network.providers, 'provider')}; {format_count(result.tokens)} tokens, seed {spec.seed}",
        f"- synced by `{spec.sync.method}` with `{spec.sync.codec}`,"
        f" {format_bytes(result.bytes_by.sync)} of updates sent",
        f"- repeated by verifiers: {many(result.segments_audited, 'segment')} of the work;"
        f" caught cheating: {many(len(result.caught), 'provider')}",
        f"- the work is {card.proof or UNPROVEN}",
        *[f"- {said}" for said in [job_class_text.loss_probes(result.probed)] if said],
    ]
    return "\n".join(rows)


def _figures(card: ModelFileHeader, spec: JobSpec, result: RunResultEvent) -> str:
    unit = "byte" if card.tokens == "bytes" else "token"
    rows = [
        ("this model", math.nan if result.loss is None else result.loss),
        ("before training", result.loss_start),
        (f"a table of how often each {unit} comes", result.loss_unigram),
    ]
    if result.loss_baseline is not None:
        rows.insert(1, ("single-machine baseline", result.loss_baseline))
    lines = [
        f"On at most {format_count(spec.evaluate.final_tokens)} validation tokens; less is better.",
        "",
        f"| | nats per token | bits per {unit} |",
        "|---|---|---|",
    ]
    lines += [f"| {name} | {loss:.3f} | {loss / math.log(2):.3f} |" for name, loss in rows]
    if result.loss is None or result.loss >= result.loss_unigram:
        lines += ["", "It has not learned more than which tokens are frequent."]
    return "\n".join(lines)


def _limits() -> str:
    return (
        "It was evaluated on a validation part of its own data and on nothing else. It continues text like the text"
        " that it saw; it follows no instructions, knows no facts reliably, and nothing was filtered."
        " What it may be used for is decided by the licence of its data, which farflung does not know."
    )


def _plain(text: str) -> str:
    """What a run's log or job says, as it may stand between backticks."""
    return redact(text, 120).replace("`", "'")


def _origin(card: ModelFileHeader, result: RunResultEvent, model_hash: str) -> str:
    run = _plain(result.run)
    stands = "".join(f"- stands on the final weights of job `{job}`\n" for job in card.lineage)
    return (
        f"- run `{run}`, job `{card.job}`\n{stands}- model on the ledger `{model_hash}`\n"
        f"- ledger root `{_plain(result.ledger_root)}`\n"
        f"- `farflung verify-run {run}` recomputes it from the run's log\n"
        f"- this page was written by farflung {VERSION}"
    )
