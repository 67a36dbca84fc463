"""The figures of one run as the README's table, from the run's own events: `bench/figures.py RUN [--write README.md]`.

With `--write` the table between the two marks in that file is replaced. Figures are the run's, never better; they
carry the machine that this is called on, so call it where the run was made.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from reporting import machine

from farflung.core.events import RunResultEvent
from farflung.core.money import format_credits
from farflung.core.units import format_bytes, format_count, format_seconds
from farflung.peers.rundir.folder import RunFolder
from farflung.peers.rundir.journal import read_timeline
from farflung.plan.run_duration import ALONE_THREADS
from farflung.watch.fold import RunTimeline

START, END = "<!-- figures -->", "<!-- /figures -->"


def rows(timeline: RunTimeline, result: RunResultEvent) -> list[tuple[str, str, str]]:
    """What, how much, against what."""
    by, ring = result.bytes_by, result.bytes_ring_bf16
    agreed = by.sync + by.control
    table = [
        (
            "held-out loss, nats a byte",
            f"{result.loss:.3f}",
            f"{result.loss_start:.3f} at the start; {result.loss_unigram:.3f} knowing byte frequencies only",
        )
    ]
    if result.loss_baseline is not None:
        gap = result.loss - result.loss_baseline
        against = f"{result.loss_baseline:.3f}, one machine on the same tokens in the same command"
        table.append(("gap to one machine", f"{gap:+.3f}", against))
    table.append(
        (
            "bytes to agree",
            format_bytes(agreed),
            f"{format_bytes(ring)}, a bf16 ring all-reduce for the same steps (computed): {ring / agreed:.0f} times",
        )
    )
    exchanged = [c for c in timeline.compared if c.quantity == "sync"]
    if exchanged:
        most = f", at most {format_bytes(exchanged[0].most)} if rounds choose otherwise" if exchanged[0].most else ""
        foreseen = f" by {timeline.plan.way}" if timeline.plan is not None and timeline.plan.way else ""
        planned = f"planned {format_bytes(exchanged[0].planned)}{foreseen}{most}"
        table.append(("of it payloads", format_bytes(by.sync), planned))
    sent = f"join {format_bytes(by.join)}, audits {format_bytes(by.audit)}, relayed {format_bytes(by.relay)}"
    table.append(("all bytes sent", format_bytes(result.bytes_sent), f"of it {sent}"))
    for peer, caught in timeline.caught.items():
        audit = timeline.audits.get((caught.round, peer, caught.segment))
        excess = f", {audit.excess:,.0f} times the tolerance" if audit is not None else ""
        cost = f"it loses {format_credits(caught.slashed)} credits and all its pay"
        table.append(("cheater found", f"round {caught.round}{excess}", cost))
    money = f"paid {format_credits(result.paid)}, slashed {format_credits(result.slashed)}"
    table.append(("money", f"sum {result.sum}", f"{money}, refunded {format_credits(result.refunded)} credits"))
    return [*table, *_time(timeline, result)]


def _time(timeline: RunTimeline, result: RunResultEvent) -> list[tuple[str, str, str]]:
    alone = timeline.baseline.seconds if timeline.baseline is not None else 0.0
    planned = [c for c in timeline.compared if c.quantity == "time"]
    told = f"planned {format_seconds(planned[0].planned)}" if planned else "not planned"
    job = ("the job", format_seconds(result.seconds - alone), f"{told}; {format_count(result.tokens)} tokens")
    if not alone:
        return [job]
    threads = min(timeline.plan.cores if timeline.plan is not None else 1, ALONE_THREADS)
    said = f"{threads} threads, nothing else running: for the comparison only"
    return [job, ("one machine, after it", format_seconds(alone), said)]


def table(run: Path) -> str:
    """The table in Markdown; raises SystemExit where the run has no result."""
    timeline = read_timeline(RunFolder(run))
    result, began = timeline.result, timeline.began
    if result is None or began is None:
        raise SystemExit(f"{run} has no result: finish it first")
    lines = ["| of that run | value | against |", "|---|---|---|"]
    lines += [f"| {' | '.join(row)} |" for row in rows(timeline, result)]
    where = f"{machine()}, torch {began.torch}; one run, seed {began.seed}"
    return "\n".join([*lines, "", f"Made by `farflung run` and [bench/figures.py](bench/figures.py) on {where}."])


def main() -> None:
    """Prints the table, or puts it into a file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--write", type=Path)
    asked = parser.parse_args()
    text = table(asked.run)
    if asked.write is None:
        print(text)
        return
    page = asked.write.read_text(encoding="utf-8")
    before, _, rest = page.partition(START)
    _, _, after = rest.partition(END)
    asked.write.write_text(f"{before}{START}\n{text}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
