"""A job as TOML that a person can read, every value with its origin; and what each key is for, in a few words."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from farflung.job.keys import KEYS, value_of
from farflung.job.load import Resolved

ABOUT: Final[Mapping[str, str]] = {
    "name": "what the run's folder is called",
    "seed": "fixes initial weights, data order and the local network's keys",
    "rounds": "how often the peers agree",
    "batch": "sequences in one step of one peer",
    "budget": "the most that may be spent, in credits",
    "unit_price": "offered for one trained token, in credits",
    "model.kind": "the built-in gpt, or module",
    "model.layers": "blocks of the gpt",
    "model.width": "numbers that describe one token",
    "model.heads": "attention heads; a divisor of width",
    "model.context": "tokens of one sequence",
    "model.vocabulary": "how many different tokens there are; 256 for text",
    "model.module": 'your own: "file.py:function" that returns an nn.Module (needs kind = "module")',
    "data.path": '"stdlib", a text file, a folder, or tokens in .npy or .safetensors',
    "data.heldout": "share that is kept out of training, to measure the loss on",
    "data.limit": "bytes of text files to take at most, whole files; 0 for all",
    "optimizer.name": "inner optimizer of each peer: adamw or sgd",
    "optimizer.lr": "peak learning rate",
    "optimizer.beta1": "adamw: decay of the first moment",
    "optimizer.beta2": "adamw: decay of the second moment",
    "optimizer.eps": "adamw: added to the denominator",
    "optimizer.weight_decay": "decoupled from the gradient",
    "optimizer.momentum": "sgd only",
    "optimizer.clip": "largest L2 norm of a gradient; 0 for none",
    "schedule.kind": "after warm-up: cosine falls to `final`, constant stays",
    "schedule.warmup": "steps from zero up to the peak",
    "schedule.final": "share of the peak that is left at the end",
    "sync.method": "sparse_loco sends the largest coefficients, diloco the whole change",
    "sync.steps": "local steps of one round (H)",
    "sync.codec": "topk_2bit for sparse_loco; dense_2bit or dense_fp32 for diloco",
    "sync.topk": "coefficients kept of each chunk",
    "sync.chunk": "elements of a chunk",
    "sync.error_decay": "how much of what was not sent is kept for the next round",
    "sync.outer_lr": "step size on the merged change",
    "sync.outer_momentum": "0 for plain averaging",
    "sync.nesterov": "look ahead, when there is momentum",
    "network.providers": "peers of the local network",
    "network.verifiers": "peers that repeat parts of others' work, and are paid for it; 0 for no audits",
    "network.hidden": "how many of the providers listen nowhere and are reached through a relay",
    "network.port": "of the requester; 0 for any free one",
    "evaluate.every": "rounds between two measurements of the held-out loss",
    "evaluate.tokens": "held-out tokens of each measurement",
    "evaluate.final_tokens": "held-out tokens of the last one",
    "audit.segments": "parts of a round's steps, of which an audit repeats one",
    "audit.rate": "share of the contributions that are audited, drawn after all have committed",
    "audit.probation": "a peer's first contributions, also after an absence: all are audited",
}


def lines(resolved: Resolved) -> list[str]:
    """Every value as `key = value   # origin` under its [section]: itself a job file that loads."""
    spec, rows = resolved.spec, list[str]()
    section = ""
    width = max(len(key.name) + len(toml_value(value_of(spec, dotted))) for dotted, key in KEYS.items()) + 3
    for dotted, key in KEYS.items():
        if key.section != section:
            section = key.section
            rows += ["", f"[{section}]"]
        pair = f"{key.name} = {toml_value(value_of(spec, dotted))}"
        rows.append(f"{pair.ljust(min(width, 40))}   # {resolved.origins.get(dotted, '')}")
    return rows


def toml_value(value: Any) -> str:
    """A value as TOML writes it."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    return str(value).lower() if isinstance(value, bool) else repr(value)
