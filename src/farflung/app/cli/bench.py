"""Implements the command `bench`, for measurements on a user's own data.

So far it has `compress`, which compares codecs on the user's tensors.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from farflung.app.cli.completion import run_names
from farflung.core.errors import UsageError
from farflung.core.io.durable_files import write_atomic
from farflung.core.units import format_bytes, format_count, format_multiple

if TYPE_CHECKING:
    from farflung.app.codec_bench.measure import CodecResult
    from farflung.app.codec_bench.run_payloads import RunPayloads
    from farflung.app.codec_bench.vectors import VectorSelection

NUMBERS: Final = 1 << 20  # measured at most, unless somebody wants more
NUMBERS_MOST: Final = 1 << 28
PLOTS: Final = ("svg", "png")
COLUMNS: Final = 80
STAGE: Final = 9
HEAD: Final = (
    "                           bits a   below                   error  bits a  index",
    "codec               bytes  number float32   error  cosine   floor  coeff.  floor",
)


@click.group(epilog="Example: farflung bench compress model.safetensors")
def bench() -> None:
    """Measure on what is yours: `compress` puts every codec on your own tensors, bytes against error."""


@bench.command(epilog="Example: farflung bench compress model.safetensors --plot codecs.svg")
@click.argument("model", required=False, type=click.Path(path_type=Path))
@click.option(
    "--recorded", metavar="RUN", shell_complete=run_names, help="What this finished run sent, instead of a model."
)
@click.option("--plot", type=click.Path(path_type=Path), help="Also draw it: a .svg or .png file.")
@click.option(
    "--numbers",
    type=click.IntRange(1, NUMBERS_MOST),
    default=NUMBERS,
    show_default=True,
    help="Of a larger model, this many are drawn.",
)
@click.option("--seed", type=click.IntRange(0, (1 << 63) - 1), default=1, show_default=True, help="Of that draw.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def compress(
    model: Path | None, recorded: str | None, plot: Path | None, numbers: int, seed: int, as_json: bool
) -> None:
    """Put every codec on your own tensors: bytes and error.

    Beside each stands the floor that information theory sets. MODEL is a
    .safetensors file; its weights stand in for what training sends.
    """
    kind = _kind(plot)
    of, drawn, payloads = _drawn(model, recorded, numbers, seed)
    from farflung.app.codec_bench import measure

    rows = measure.measure(drawn.items)
    if plot is not None:
        from farflung.app.codec_bench.chart import picture

        write_atomic(plot, picture(rows, f"Codecs on {of}", kind), "bench.plot")
    if as_json:
        sys.stdout.write(msgspec.json.encode(_facts(of, drawn, payloads, rows)).decode() + "\n")
        return
    for line in _lines(of, drawn, payloads, rows):
        sys.stdout.write(line + "\n")
    if plot is not None:
        sys.stderr.write(f"drawn in {plot}\n")


def _kind(plot: Path | None) -> str:
    """Raises UsageError FF-APP-193."""
    kind = plot.suffix.removeprefix(".").lower() if plot is not None else ""
    if plot is not None and kind not in PLOTS:
        raise UsageError(
            "FF-APP-193",
            f"cannot draw into {plot}",
            cause="a picture is a .svg or a .png file",
            hint="--plot codecs.svg",
        )
    return kind


def _drawn(
    model: Path | None, recorded: str | None, numbers: int, seed: int
) -> tuple[str, VectorSelection, RunPayloads | None]:
    """What is measured, by its name. Raises UsageError FF-APP-194 unless exactly one of both is named."""
    if (model is None) == (recorded is None):
        raise UsageError(
            "FF-APP-194",
            "name either a model file or a run",
            cause="both are named" if model is not None else "neither is named",
            hint="farflung bench compress model.safetensors, or farflung bench compress --recorded RUN",
        )
    if model is not None:
        from farflung.app.codec_bench import vectors

        return model.name, vectors.from_model(model, numbers, seed), None
    from farflung.app.codec_bench.run_payloads import read
    from farflung.local.model import load

    run = load.finished(recorded)
    found = read(run)
    return run.name, found.drawn, found.payloads


def _lines(of: str, drawn: VectorSelection, payloads: RunPayloads | None, rows: Sequence[CodecResult]) -> list[str]:
    """The table, what it was measured on, and how to read it: at most 80 columns."""
    size = sum(one.layout.size for one in drawn.items)
    count = len(drawn.items)
    on = f"{of[:40]}: {format_count(size)} numbers" + (f" in {count} vectors" if count > 1 else "")
    lines = _say("On", on)
    for note in drawn.notes:
        lines += _say("", note)
    if payloads is not None:
        off = payloads.mean / payloads.expected - 1
        said = (
            f"{payloads.total} payloads of {format_bytes(payloads.mean)} on the average, and"
            f" {format_bytes(payloads.expected)} expected ({100 * off:+.1f} %)"
        )
        if payloads.coefficient is not None:
            said += f"; {payloads.coefficient:.2f} bits a coefficient, index floor {payloads.support_floor:.2f}"
        lines += _say("Sent", said)
    lines += ["", *HEAD, *[_row(row) for row in rows], ""]
    return [*lines, *_say("Columns", NOTE)]


NOTE: Final = (
    "below float32: 32 over bits a number. error: relative L2 of what arrives, sent once, without error feedback."
    " error floor: no code of these bits a number brings Gaussian numbers below it; tensors easier than Gaussian ones"
    " can lie below. index floor: log2 C(4096, k) / k bits say which elements are meant, if all are equally likely."
)


def _row(row: CodecResult) -> str:
    if row.error is None or row.cosine is None:
        return f"{row.codec:<17}       - {row.why[: COLUMNS - 27]}"
    each = f"{row.coefficient:>7.2f} {row.support_floor:>6.2f}" if row.coefficient is not None else ""
    return (
        f"{row.codec:<17} {format_bytes(row.bytes):>7} {row.bits:>7.3f} {format_multiple(row.below_float32):>7}"
        f" {row.error:>7.4f} {row.cosine:>7.4f} {row.error_floor:>7.4f} {each}"
    ).rstrip()


def _say(stage: str, text: str) -> list[str]:
    rows = wrap(text, COLUMNS - STAGE) or [""]
    return [f"{'' if number else stage:<{STAGE}}{row}" for number, row in enumerate(rows)]


def _facts(
    of: str, drawn: VectorSelection, payloads: RunPayloads | None, rows: Sequence[CodecResult]
) -> dict[str, Any]:
    from farflung.app.codec_bench.measure import facts

    said: dict[str, Any] = {
        "of": of,
        "numbers": sum(one.layout.size for one in drawn.items),
        "whole": drawn.whole,
        "vectors": [one.name for one in drawn.items],
        "notes": list(drawn.notes),
        "codecs": [facts(row) for row in rows],
    }
    if payloads is not None:
        said["payloads"] = {
            "count": payloads.total,
            "mean_bytes": payloads.mean,
            "expected_bytes": payloads.expected,
            "bits_a_coefficient": payloads.coefficient,
            "index_floor": payloads.support_floor,
        }
    return said
