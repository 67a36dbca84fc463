"""Implements `farflung plan --link`: compares all methods on given links, and recommends one with settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from textwrap import wrap
from typing import Any, Final

import msgspec

from farflung.advice import method_loss_table
from farflung.advice.method_choice import MethodChoice, choose
from farflung.advice.method_costs import MethodEstimate, MethodSetting, steps_most
from farflung.core.errors import SpecError, UsageError
from farflung.core.tensor_layout import TensorLayout
from farflung.core.units import Seconds, format_bytes, format_count, format_multiple
from farflung.job.job_loader import ResolvedJob
from farflung.job.methods.registry import method_of
from farflung.job.methods.sync_method import METHOD
from farflung.job.spec import JobSpec, SyncSpec
from farflung.job.spec_checks import RANGES
from farflung.plan import link_syntax
from farflung.plan.machine import MachineMeasurements
from farflung.plan.run_duration import step_seconds
from farflung.plan.run_plan import describe_codec

COLUMNS: Final = 80
STAGE: Final = 9
MARK: Final = "*"
UNBROKEN: Final = "\N{NO-BREAK SPACE}"  # where a line must not end
HEAD: Final = (
    "                                up    down  seconds  of a  below  as in",
    "  method         H codec       a step  a step  a step  round a ring papers",
)
PEERS_LEAST, PEERS_MOST = 2, 1 << 10
STEP_MOST: Final = 1e6  # seconds

Loads = Callable[[Mapping[str, str]], JobSpec]  # flags by dotted key to the job that they give


class LinkOptions(msgspec.Struct, frozen=True):
    """What was said on the command line; None where nothing was."""

    link: str
    peers: int | None
    step: float | None
    is_fanned_out: bool


def plan(
    options: LinkOptions, spec: JobSpec, layout: TensorLayout, machine: Callable[[], MachineMeasurements]
) -> MethodChoice:
    """The choice for a job. `machine` measures this computer, where nobody says how long a step takes.

    Raises UsageError FF-PLAN-010 and -011 (the link), FF-APP-175 (peers), FF-APP-176 (seconds a step).
    """
    link = link_syntax.parse(options.link)
    peers = options.peers if options.peers is not None else spec.network.providers
    if not PEERS_LEAST <= peers <= PEERS_MOST:
        raise UsageError(
            "FF-APP-175",
            f"{peers} peers cannot agree",
            cause=f"a round has {PEERS_LEAST} to {PEERS_MOST}",
            hint="--peers 8",
        )
    step = options.step if options.step is not None else step_seconds(spec, layout, machine())
    if not 0 < step <= STEP_MOST:
        raise UsageError(
            "FF-APP-176",
            f"a step of {step:g} seconds is not possible",
            cause=f"a step takes more than 0 and at most {STEP_MOST:g} seconds",
            hint="--step 0.5",
        )
    most = steps_most(spec.batch * spec.model.context)
    return choose(MethodSetting(layout, link, peers, Seconds(step), options.is_fanned_out, most))


def refuse_without_link(peers: int | None, step: float | None, is_fanned_out: bool) -> None:
    """Raises UsageError FF-APP-177 where something is said of links, and no link."""
    said = {"--peers": peers is not None, "--step": step is not None, "--fan-out": is_fanned_out}
    named = [option for option, is_said in said.items() if is_said]
    if named:
        raise UsageError(
            "FF-APP-177",
            f"{named[0]} is of a plan for links, and no link is named",
            cause="it goes with --link",
            hint="farflung plan --link 20/100/30ms --peers 8",
        )


def by_default(resolved: ResolvedJob) -> list[str]:
    """A line on the method that a job takes because it names none."""
    origin = resolved.origins.get(METHOD, "")
    if origin != "default" and not origin.startswith("preset"):
        return []
    method = resolved.spec.sync.method
    return say(
        "Plan", f"{METHOD} is not set: {method}, the {origin}; `farflung plan --link UP/DOWN` picks one for links"
    )


def settings(wanted: SyncSpec, peers: int, load: Loads, more: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """The fewest `key=value` that make the job take what was chosen, and `more`: what the method sets by itself is not
    said.
    """
    said = {f"sync.{name}": _text(value) for name, value in msgspec.structs.asdict(wanted).items()}
    said["optimizer.name"] = method_of(wanted.method).optimizers[0]
    if 2 <= peers <= RANGES["network.providers"].high:
        said["network.providers"] = str(peers)
    said.update(more or {})
    goal = load(said)
    for key in sorted(said, key=lambda key: key == "sync.method"):  # the method last: it sets the others
        fewer = {k: v for k, v in said.items() if k != key}
        if key != "sync.method" and _gives(load, fewer) == goal:
            said = fewer
    return tuple(f"{key}={value}" for key, value in sorted(said.items(), key=lambda item: _rank(item[0])))


def _gives(load: Loads, flags: Mapping[str, str]) -> JobSpec | None:
    try:
        return load(flags)
    except SpecError:
        return None


def _rank(key: str) -> tuple[bool, str]:
    return key != "sync.method", key


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def lines(choice: MethodChoice, said: tuple[str, ...], is_measured: bool) -> list[str]:
    """The table and the reasons, at most 80 columns."""
    setting = choice.setting
    of = "this computer's, on one core" if is_measured else "as you say"
    rows = [
        *say("Links", f"{setting.link}; {setting.peers} peers, " + _way(setting)),
        *say("", f"{format_count(setting.layout.size)} parameters; {setting.step:.3g} s of compute a step ({of})"),
        "",
        *_head(),
        *[_row(row, row is choice.chosen) for row in choice.methods],
        "",
    ]
    for number, reason in enumerate(choice.reasons):
        rows += say("" if number else "Take" if choice.fits else "Least bad", reason)
    rows += say("Columns", NOTE + (f" {LOSS}" if method_loss_table.ABOVE else ""))
    rows += _measured()
    rows += say("Set", "")
    return [*rows[:-1], *_copied(said)]


NOTE: Final = (
    "bytes at the socket, encryption included. Below a ring: how many times fewer than a bf16 ring all-reduce of every"
    " gradient among as many peers, by the larger of up and down. As in papers: one float32 gradient a step over one"
    " payload, one way."
)
LOSS: Final = (
    f"Loss: above dense training with Muon, the best run after as many tokens ({method_loss_table.CONDITION}); the row"
    " dense is AdamW's; -: not measured with these settings. Other models and data lose more or less."
)


def _head() -> tuple[str, ...]:
    """The table's head; with a column for loss where any was measured."""
    if not method_loss_table.ABOVE:
        return HEAD
    return tuple(f"{line:<74}{word:>6}" for line, word in zip(HEAD, ("loss", "%"), strict=True))


def _measured() -> list[str]:
    """All settings whose loss was measured, the best first: the table above holds those that are in it."""
    found = sorted(method_loss_table.ABOVE.items(), key=lambda one: one[1])
    said = [f"{one.method} H={one.steps} {one.codec} {loss:+.1f}{UNBROKEN}%" for one, loss in found]
    return [row.replace(UNBROKEN, " ") for row in say("Measured", "; ".join(said))] if said else []


def _copied(said: tuple[str, ...]) -> list[str]:
    rows: list[str] = []
    for setting in said:
        word = f"--set {setting}"
        if rows and len(rows[-1]) + 1 + len(word) <= COLUMNS:
            rows[-1] += f" {word}"
        else:
            rows.append(f"{'' if rows else 'Set':<{STAGE}}{word}")
    return rows


def _way(setting: MethodSetting) -> str:
    return "a server fans out what each sends once" if setting.is_fanned_out else "each fetches from each (all-gather)"


def _row(row: MethodEstimate, is_chosen: bool) -> str:
    told = (
        f"{MARK if is_chosen else ' '} {row.method:<11} {row.sync.steps:>4} {_codec(row.sync):<11}"
        f" {format_bytes(row.up):>7} {format_bytes(row.down):>7} {_seconds(row.step):>7} {_share(row.share):>5}"
        f" {format_multiple(row.ring):>6} {format_multiple(row.literature):>6}"
    )
    if not method_loss_table.ABOVE:
        return told
    loss = method_loss_table.above(row.sync)
    return f"{told:<74}{'-' if loss is None else _loss(loss):>6}"


def _loss(per_cent: float) -> str:
    return f"{per_cent:+.1f}" if per_cent < 99.95 else f"{per_cent:+.0f}"


def _seconds(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def _share(value: float) -> str:
    per_cent = 100 * value
    return f"{per_cent:.1f} %" if per_cent < 9.95 else f"{per_cent:.0f} %"


def _codec(sync: SyncSpec) -> str:
    if sync.codec != "topk":
        return describe_codec(sync)
    bits = "" if sync.transform == "raw" else f" {sync.transform}"
    return f"top {sync.topk}{bits}"


def say(stage: str, text: str) -> list[str]:
    """Rows of a stage, wrapped."""
    rows = wrap(text, COLUMNS - STAGE, break_long_words=False) or [""]
    width = max(STAGE, len(stage) + 1)
    first = f"{stage:<{width}}{rows[0]}"
    return [first, *(f"{'':<{STAGE}}{row}" for row in rows[1:])]


def facts(choice: MethodChoice, said: tuple[str, ...]) -> dict[str, Any]:
    """The same as one object. Bytes a peer and step; seconds; bit/s."""
    setting = choice.setting
    return {
        "link": {"up": setting.link.up, "down": setting.link.down, "round_trip": setting.link.round_trip},
        "peers": setting.peers,
        "parameters": setting.layout.size,
        "step_compute": setting.step,
        "fan_out": setting.is_fanned_out,
        "methods": [_facts(row) for row in choice.methods],
        "chosen": choice.chosen.method,
        "fits": choice.fits,
        "reasons": list(choice.reasons),
        "set": list(said),
    }


def _facts(row: MethodEstimate) -> dict[str, Any]:
    return {
        "method": row.method,
        "steps": row.sync.steps,
        "codec": describe_codec(row.sync),
        "payload": row.payload,
        "up_a_step": row.up,
        "down_a_step": row.down,
        "exchange_a_round": row.exchange,
        "compute_a_round": row.compute,
        "seconds_a_step": row.step,
        "exchange_share": row.share,
        "fits": row.fits,
        "ratio_to_bf16_ring": row.ring,
        "ratio_as_in_the_literature": row.literature,
        "loss_above_dense_measured": method_loss_table.above(row.sync),  # per cent; None: not measured
    }
