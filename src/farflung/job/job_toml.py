"""Renders a job as readable TOML, every value with its origin, and describes each key in a few words."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from farflung.job.job_loader import ResolvedJob
from farflung.job.keys import KEYS

ABOUT: Final[Mapping[str, str]] = {
    "name": "what the run's folder is called",
    "seed": "fixes initial weights, data order and the local network's keys",
    "rounds": "number of sync rounds",
    "batch": "sequences in one step of one peer",
    "accumulate": "passes that a step's batch is cut into, one after another: less memory; a divisor of batch",
    "budget": "the most that may be spent, in credits",
    "unit_price": "offered for one trained token, in credits",
    "deadline": 'on a network: when the job ends whatever happens, like 2h, 3d or 2026-12-01T18:00 (UTC); "" for 24h',
    "model.kind": "the built-in gpt, or module",
    "model.layers": "blocks of the gpt",
    "model.width": "embedding size (hidden width)",
    "model.heads": "attention heads; a divisor of width",
    "model.context": "tokens of one sequence",
    "model.vocabulary": "number of different tokens; 256 for text",
    "model.module": 'your own nn.Module: "file.py:function" or "package:function" returns it (needs kind = "module")',
    "model.start": 'a finished run, or "net:NAME" on a network, whose final weights this one begins with; "" for none',
    "model.recompute": "blocks: each repeated block is computed again in the backward pass, for less memory; none",
    "data.path": '"stdlib", a text file, a folder, or tokens in .npy or .safetensors',
    "data.heldout": "share kept out of training, for validation",
    "data.limit": "bytes of text files to take at most, in whole files; 0 for all",
    "optimizer.name": "inner optimizer of each peer: adamw, sgd, muon, or gradient (the gradient itself is sent)",
    "optimizer.lr": "peak learning rate",
    "optimizer.beta1": "adamw, muon: decay of the first moment",
    "optimizer.beta2": "adamw, muon: decay of the second moment",
    "optimizer.eps": "adamw, muon: added to the denominator",
    "optimizer.weight_decay": "decoupled from the gradient",
    "optimizer.momentum": "sgd and gradient: heavy ball; muon: of matrices",
    "optimizer.clip": "largest L2 norm of a gradient; 0 for none",
    "schedule.kind": "after warm-up: cosine falls to `final`, constant stays",
    "schedule.warmup": "steps from zero up to the peak",
    "schedule.final": "share of the peak left at the end",
    "schedule.begin": "steps that earlier runs made, behind which the rate goes on: `farflung resume` sets it",
    "sync.method": "how peers synchronise; it sets what you leave out (docs/train/methods)",
    "sync.steps": "local steps of one round (H)",
    "sync.codec": "dense: every element; topk: the largest of each chunk; low_rank: factors of matrices",
    "sync.value_bits": "of one value before entropy coding: 1, 2, 4, 8, 16 (bfloat16) or 32 (exact)",
    "sync.topk": "coefficients kept of each chunk",
    "sync.chunk": "elements of a chunk",
    "sync.transform": "raw values, dct of each chunk, or auto: whichever keeps more",
    "sync.rank": "low_rank: columns of each factor",
    "sync.error_decay": "share of the unsent residual kept for the next round",
    "sync.outer": "how the merged change is applied: sgd adds it, adamw, sign",
    "sync.outer_lr": "times the merged change (gradient methods: times optimizer.lr)",
    "sync.outer_momentum": "of the outer sgd; 0 for plain averaging",
    "sync.nesterov": "look ahead, where there is momentum",
    "sync.warmup_rounds": "dgc: rounds over which density falls from 25 % to topk / chunk",
    "sync.fragments": "parts of the tensors; each round sends one; 1 for all",
    "sync.delay": "1: what a round sends is applied a round later, and travels while the next one trains",
    "sync.merge": "clip: no norm counts for more than the median one; centered: around the centre of all, in 3 steps",
    "network.providers": "peers of the local network",
    "network.verifiers": "peers that audit for pay; 0: no audits, needs audit.rate = 0 and audit.probation = 0",
    "network.hidden": "providers that do not listen and are reached through a relay",
    "network.port": "of the requester; 0 for any free one",
    "network.image": "mine: only nodes that attest the requester's farflung (a statement, not a proof); any",
    "network.machines": "lowest class (A, B, C) of machine in plans and quotes over offers; any",
    "evaluate.every": "rounds between two measurements of the validation loss",
    "evaluate.tokens": "validation tokens of each measurement between rounds",
    "evaluate.final_tokens": "validation tokens before the first round, and after the last",
    "evaluate.stop_loss": "a loss above so many times the one at the start ends the run; 0: no loss does",
    "audit.segments": "parts of a round's steps; an audit repeats one",
    "audit.rate": "share of the contributions audited, drawn after all have committed",
    "audit.probation": "a peer's first contributions, also after an absence: all are audited",
    "audit.speed": "audits contributions committed this many times faster than the benchmark allows; 0: off",
    "audit.canaries": "share of the drawn contributions with which a verifier is tested first; needs 4 segments",
    "audit.jackpot": "extra pay for finding the false end, in multiples of the segment's pay",
    "audit.proof": "proven: refused unless steps can be disputed; outcome: only results are checked; auto: either",
    "audit.probe": "tokens to measure each contribution's effect on the loss; outcome only: at least 512",
    "audit.verifiers": "keys of the only nodes that may check the work, on a network; [] lets the market choose",
    "churn.quorum": "share of a round's tokens that ends the wait for all; 1: wait for all",
    "churn.grace": "then wait this many times the median arrival for the rest, and leave out later ones",
    "churn.adaptive": "assign each peer the steps it makes in the others' time, as measured",
    "churn.exchange": "adaptive: steps shrink while exchanging takes at most this share of a round; 0: never",
    "numerics.compute": "of a step's products: float32, or bfloat16 (the job is outcome only; weights stay float32)",
}


def lines(resolved: ResolvedJob) -> list[str]:
    """Every value as `key = value   # origin` under its [section]: itself a job file that loads."""
    rows = list[str]()
    section = ""
    width = max(len(key.name) + len(toml_value(resolved.value_of(dotted))) for dotted, key in KEYS.items()) + 3
    for dotted, key in KEYS.items():
        if key.section != section:
            section = key.section
            rows += ["", f"[{section}]"]
        pair = f"{key.name} = {toml_value(resolved.value_of(dotted))}"
        rows.append(f"{pair.ljust(min(width, 40))}   # {resolved.origins.get(dotted, '')}")
    return rows


def toml_value(value: Any) -> str:
    """A value as TOML writes it."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, tuple):
        return json.dumps(value)
    return str(value).lower() if isinstance(value, bool) else repr(value)
