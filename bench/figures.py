"""The figures of one run on the pages that show them, from the run's own events: `bench/figures.py RUN [--write]`.

With `--write` it replaces the figures in README.md and the screen in docs/start.md, both between marks, and draws
docs/pictures/run.svg, so that all three are of one run. Figures are the run's, never better; they carry the machine
that this is called on, so call it where the run was made. Run with `--baseline`, or there is no gap to show.
"""

from __future__ import annotations

import argparse
import math
import sys
import textwrap
from pathlib import Path

from reporting import machine

from farflung.core.events import PlanEvent, RunResultEvent
from farflung.core.units import format_bytes, format_count, format_multiple, format_seconds
from farflung.peers.rundir.folder import RunFolder
from farflung.peers.rundir.journal import read_timeline
from farflung.plan.run_duration import ALONE_THREADS
from farflung.watch.fold import RunTimeline
from farflung.watch.phrases import less_than
from farflung.watch.screen import ScreenView, screen

ROOT = Path(__file__).resolve().parents[1]
WIDTH = 120  # columns of a page
README, START, PICTURE = ROOT / "README.md", ROOT / "docs" / "start.md", ROOT / "docs" / "pictures" / "run.svg"


def bits(nats: float) -> str:
    """A loss per byte with its unit; the built-in tokens are bytes."""
    return f"{nats:.3f} nats/token ({nats / math.log(2):.2f} bits/byte)"


def headline(timeline: RunTimeline, result: RunResultEvent) -> str:
    """All bytes first, then those of synchronization; the loss beside the baseline's."""
    plan, ring = timeline.plan, result.bytes_ring_bf16
    sync = result.bytes_by.sync + result.bytes_by.control
    less, times = ("less", ring / sync) if sync <= ring else ("more", sync / ring)
    said = (
        f"**{format_bytes(result.bytes_sent)} sent in all, {less_than(ring, result.bytes_sent)}; sync traffic alone is "
        f"{format_bytes(sync)}, {format_multiple(times)}x {less}. Validation loss {bits(result.loss)}"
    )
    if result.loss_baseline is not None:
        gap = f"{result.loss - result.loss_baseline:+.3f}"
        said += f", {gap} against the single-machine baseline ({result.loss_baseline:.3f})"
    return f"One run on one computer{_size(plan)}: {said}.**"


def _size(plan: PlanEvent | None) -> str:
    if plan is None:
        return ""
    rounds = f"{plan.rounds} rounds of {plan.steps // plan.rounds} steps"
    return f" ({format_count(plan.parameters)} parameters, {plan.peers} providers, {rounds})"


def details(timeline: RunTimeline, result: RunResultEvent) -> str:
    """Where the bytes went, what audits found, and how long it took."""
    by = result.bytes_by
    bytes_sent = (
        f"audits {format_bytes(by.audit)}, joining {format_bytes(by.join)}, relayed {format_bytes(by.relay)}, "
        f"model updates {format_bytes(by.sync)}, control {format_bytes(by.control)}"
    )
    return f"Bytes: {bytes_sent}. Audits: {_audits(timeline, result)}. Time: {_time(timeline, result)}."


def _audits(timeline: RunTimeline, result: RunResultEvent) -> str:
    told = [f"{result.segments_audited} segments repeated"]
    for peer, caught in timeline.caught.items():
        audit = timeline.audits.get((caught.round, peer, caught.segment))
        excess = f" ({audit.excess:,.0f} times the tolerance)" if audit is not None else ""
        told.append(f"a cheater found in round {caught.round}{excess} that lost its stake")
    return ", ".join(told if timeline.caught else [*told, "no cheater found"])


def _time(timeline: RunTimeline, result: RunResultEvent) -> str:
    alone = timeline.baseline.seconds if timeline.baseline is not None else 0.0
    job = f"{format_seconds(result.seconds - alone)} for {format_count(result.tokens)} tokens"
    if not alone:
        return job
    threads = min(timeline.plan.cores if timeline.plan is not None else 1, ALONE_THREADS)
    return f"{job}; baseline, afterwards on {threads} threads: {format_seconds(alone)}"


def figures(run: Path) -> str:
    """Headline and details in Markdown; raises SystemExit where the run has no result."""
    timeline = read_timeline(RunFolder(run))
    result, began = timeline.result, timeline.began
    if result is None or began is None:
        raise SystemExit(f"{run} has no result: finish it first")
    where = f"{machine()}, torch {began.torch}; one run, seed {began.seed}"
    made = f"By [bench/figures.py](bench/figures.py): {where}."
    paragraphs = headline(timeline, result), f"{details(timeline, result)} {made}"
    return "\n".join(textwrap.fill(text, WIDTH, break_on_hyphens=False) for text in paragraphs)


def shown(run: Path) -> str:
    """The last screen of the run as a block of text."""
    timeline = read_timeline(RunFolder(run))
    drawn = screen(timeline, ScreenView(now=timeline.at, is_over=True))
    lines = ("".join(span.text for span in row.spans).rstrip() for row in drawn)
    return "\n".join(["```text", *(line for line in lines if line), "```"])


def replace(page: Path, mark: str, text: str) -> None:
    """Puts a text between the two marks of a page."""
    before, start, rest = page.read_text(encoding="utf-8").partition(f"<!-- {mark} -->")
    _, end, after = rest.partition(f"<!-- /{mark} -->")
    if not (start and end):
        raise SystemExit(f"{page} has no marks for {mark}")
    page.write_text(f"{before}{start}\n{text}\n{end}{after}", encoding="utf-8")


def draw(run: Path) -> None:
    """Draws the picture of the README."""
    sys.path.insert(0, str(ROOT / "tools"))
    import picture

    PICTURE.write_text(picture.picture(picture.timeline_of(run), "farflung run"), encoding="utf-8")


def main() -> None:
    """Prints the figures, or puts them into the pages."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--write", action="store_true", help="into README.md, docs/start.md and docs/pictures/run.svg")
    asked = parser.parse_args()
    text = figures(asked.run)
    if not asked.write:
        print(text)
        return
    replace(README, "figures", text)
    replace(START, "screen", shown(asked.run))
    draw(asked.run)


if __name__ == "__main__":
    main()
