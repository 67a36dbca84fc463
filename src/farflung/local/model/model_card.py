"""Writes the README of a model that leaves its run: its architecture, training, measured quality and limits."""

from __future__ import annotations

import json
import math
from pathlib import PurePath
from typing import Final

from farflung.core.events import RunResultEvent
from farflung.core.units import format_bytes, format_count
from farflung.job.proof_class import UNPROVEN
from farflung.job.spec import JobSpec
from farflung.train.model_file import ModelFileHeader
from farflung.watch import job_class_text
from farflung.watch.redaction import redact

_USE: Final = """\
## Use

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained({folder})
model = AutoModelForCausalLM.from_pretrained({folder})
start = tokenizer("def ", return_tensors="pt")
print(tokenizer.decode(model.generate(**start, max_new_tokens={half})[0]))
```

A token is one byte of UTF-8 text, its id the byte's value. The model sees at most {context} tokens: prompt and
answer together must not be longer.

"""


def readme(
    card: ModelFileHeader, spec: JobSpec, result: RunResultEvent, model_hash: str, folder: str, *, is_hf: bool
) -> str:
    """The model card, in Markdown. Every figure is of this run; what was not measured is not in it."""
    use = (
        _USE.format(folder=json.dumps(folder), context=card.context, half=max(1, card.context // 2))
        if is_hf and card.tokens == "bytes"
        else ""
    )
    return (
        f"# {card.name}\n\n{_what(card)}\n\n{use}"
        f"## How it was trained\n\n{_how(card, spec, result)}\n\n"
        f"## How well it does\n\n{_figures(card, spec, result)}\n\n"
        f"## What it is not\n\n{_limits()}\n\n"
        f"## Where it comes from\n\n{_origin(card, result, model_hash)}\n"
    )


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
        f"- {result.rounds} of {spec.rounds} rounds of {spec.sync.steps} local steps"
        f" by {spec.network.providers} providers; {format_count(result.tokens)} tokens, seed {spec.seed}",
        f"- agreed by `{spec.sync.method}` with `{spec.sync.codec}`,"
        f" {format_bytes(result.bytes_by.sync)} of updates sent",
        f"- {result.segments_audited} segments of the work were repeated by verifiers;"
        f" {len(result.caught)} providers were caught cheating",
        f"- the work is {card.proof or UNPROVEN}",
        *[f"- {said}" for said in [job_class_text.loss_probes(result.probed)] if said],
    ]
    return "\n".join(rows)


def _figures(card: ModelFileHeader, spec: JobSpec, result: RunResultEvent) -> str:
    unit = "byte" if card.tokens == "bytes" else "token"
    rows = [
        ("this model", result.loss),
        ("before training", result.loss_start),
        (f"a table of how often each {unit} comes", result.loss_unigram),
    ]
    if result.loss_baseline is not None:
        rows.insert(1, ("one machine on the same tokens", result.loss_baseline))
    lines = [
        f"On at most {format_count(spec.evaluate.final_tokens)} held-out tokens; less is better.",
        "",
        f"| | nats per token | bits per {unit} |",
        "|---|---|---|",
    ]
    lines += [f"| {name} | {loss:.3f} | {loss / math.log(2):.3f} |" for name, loss in rows]
    if result.loss >= result.loss_unigram:
        lines += ["", "It has not learned more than which tokens are frequent."]
    return "\n".join(lines)


def _limits() -> str:
    return (
        "It was evaluated on a held-out part of its own data and on nothing else. It continues text like the text"
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
        f"- ledger root `{_plain(result.ledger_root)}`\n- `farflung verify-run {run}` recomputes it from the run's log"
    )
