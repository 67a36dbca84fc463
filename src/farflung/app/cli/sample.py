"""Implements the commands that use a saved model: `sample` generates text with it, `eval` measures its loss."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click
import msgspec
import numpy as np

from farflung.app.cli.completion import run_names
from farflung.core.errors import UsageError
from farflung.core.units import format_count
from farflung.job.io.job_files import read_tokens
from farflung.job.text_files import DataAccount, told
from farflung.local.model import load
from farflung.local.model.prompts import as_text, harmless, prompt_tokens
from farflung.local.model.text_generation import ask
from farflung.peers.process.interrupts import InterruptHandler
from farflung.peers.rundir.dataset_file import DatasetFile
from farflung.peers.rundir.journal import read_timeline
from farflung.peers.rundir.runs import resolve_again
from farflung.train import inference_messages

TOKENS: Final = 1 << 20
_JSON = click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")


@click.command(epilog='Example: farflung sample --prompt "def " --tokens 300')
@click.argument("what", metavar="[RUN|FILE]", required=False, shell_complete=run_names)
@click.option("--prompt", default="", help="The text to go on from.")
@click.option("--tokens", type=click.IntRange(1, TOKENS), default=200, show_default=True, help="How many.")
@click.option("--temperature", type=float, default=0.8, show_default=True, help="0: always the likeliest.")
@click.option("--top-k", type=int, default=0, show_default=True, help="Draw from the K likeliest; 0: from all.")
@click.option(
    "--top-p", type=float, default=0.95, show_default=True, help="Draw from the likeliest that hold this share."
)
@click.option(
    "--seed", type=click.IntRange(0, (1 << 63) - 1), default=1, show_default=True, help="The same seed, the same text."
)
@_JSON
def sample(
    what: str | None, prompt: str, tokens: int, temperature: float, top_k: int, top_p: float, seed: int, as_json: bool
) -> None:
    """Write text with a trained model, from its handed-over file alone.

    RUN is a run's name or folder, FILE what `farflung fetch` wrote; the newest finished run by default.
    """
    interrupts = InterruptHandler()
    with interrupts.heard():
        held = load.open_model(what)
        start = prompt_tokens(prompt, held)
        with interrupts.held():  # torch takes seconds to load: what can be said is said before
            from farflung.train import token_sampler

        token_sampler.SamplingOptions(temperature, top_k, top_p).check()
        request = inference_messages.GenerateRequest(
            held.data, held.source, start, tokens, temperature, top_k, top_p, seed
        )
        stream = (a.token for a in ask(held, request, interrupts) if isinstance(a, inference_messages.GenerateReply))
        if not as_json:
            _write(prompt, stream)
            return
        written = list(stream)
    facts = {
        "prompt": prompt,
        "text": harmless(bytes(written).decode("utf-8", "replace")),
        "tokens": written,
        "seed": seed,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "job": held.card.job,
    }
    sys.stdout.write(msgspec.json.encode(facts).decode() + "\n")


def _write(prompt: str, stream: Iterator[int]) -> None:
    sys.stdout.write(harmless(prompt))
    for text in as_text(stream):
        sys.stdout.write(text)
        sys.stdout.flush()
    sys.stdout.write("\n")


@click.command("eval", epilog="Example: farflung eval --data other.txt")
@click.argument("name", metavar="[RUN]", required=False, shell_complete=run_names)
@click.option("--data", type=click.Path(path_type=Path), help="Another text. Default: the run's own validation part.")
@click.option("--tokens", type=click.IntRange(2), help="How many at most. Default: as many as the run measured.")
@_JSON
def evaluate(name: str | None, data: Path | None, tokens: int | None, as_json: bool) -> None:
    """Measure a finished run's model on text that it has not seen.

    RUN: its name or folder; the newest by default. Says loss, bits per byte, and how often the likeliest byte came.
    """
    run = load.finished(name)
    held = load.open_model(str(run.root))
    spec = resolve_again(run).spec
    if data is not None:
        measured_on, (ours, account) = str(data), read_tokens(data, held.card.model)
    else:
        held_out = DatasetFile(run.dataset_file).parts().heldout
        measured_on, ours, account = "the run's validation part", held_out, DataAccount()
    limit = tokens or spec.evaluate.final_tokens
    _check_enough(min(limit, len(ours) - 1), held.card.context, is_cut=limit < len(ours) - 1)
    packed_tokens = np.ascontiguousarray(ours[: limit + 1], inference_messages.PACKED).tobytes()
    interrupts = InterruptHandler()
    with interrupts.heard():
        judge = inference_messages.ModelEvaluationRequest(held.data, held.source, packed_tokens, limit, spec.pass_rows)
        (found,) = ask(held, judge, interrupts)
    assert isinstance(found, inference_messages.ModelEvaluationReply)
    result = read_timeline(run).result
    own = result.loss if result and data is None and limit == spec.evaluate.final_tokens else None
    facts = {
        "run": run.name,
        "data": measured_on,
        "tokens": found.tokens,
        "loss": found.loss,
        "bits_per_token": found.loss / math.log(2),
        "accuracy": found.accuracy,
        "unit": "byte" if held.card.tokens == "bytes" else "token",
        "loss_of_run": own,
        "left_out": account.left_out,
        "noted": account.noted,
    }
    text = [msgspec.json.encode(facts).decode()] if as_json else _words(facts)
    sys.stdout.write("\n".join(text) + "\n")


def _check_enough(tokens: int, context: int, *, is_cut: bool) -> None:
    """Raises UsageError FF-APP-174."""
    if tokens < context:
        raise UsageError(
            "FF-APP-174",
            f"{max(0, tokens)} tokens are too few to measure on",
            cause=f"the model is measured on whole windows of {context} tokens",
            hint=f"farflung eval --tokens {context}" if is_cut else "give a longer text with --data",
        )


def _words(facts: dict[str, Any]) -> list[str]:
    unit = facts["unit"]
    same = {True: "; the run's own figure", False: ""}[facts["loss_of_run"] == facts["loss"]]
    if facts["loss_of_run"] not in (None, facts["loss"]):
        same = f"; the run itself measured {facts['loss_of_run']:.6f}"
    lines = [
        f"Data      {facts['data']}, {format_count(facts['tokens'])} tokens",
        *[f"          left out: {harmless(told(count))}" for count in facts["left_out"]],
        *[f"          noted: {harmless(told(count))}" for count in facts["noted"]],
        f"Loss      {facts['loss']:.4f} nats per token{same}",
        f"          {facts['bits_per_token']:.4f} bits per {unit}",
    ]
    if facts["accuracy"] is None:
        return [*lines, "Accuracy  not measured: the model has no method logits(x_BT)"]
    return [*lines, f"Accuracy  {100 * facts['accuracy']:.1f} % of {unit}s were the likeliest"]
