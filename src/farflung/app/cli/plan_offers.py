"""Implements `farflung plan --offers`: finds the best ways to train a job on the offered hosts (P1).

If there is none it names the binding constraint; it always proposes the next command.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from farflung.advice import method_loss_table
from farflung.advice.hardware import hardware_text
from farflung.advice.hardware.card import Card, with_profile
from farflung.advice.hardware.value_per_watt import prices_of
from farflung.advice.io import card_files
from farflung.advice.job_work import JobWork, work
from farflung.advice.layouts import layout_search, machine_admission
from farflung.advice.layouts.energy_value import worth
from farflung.advice.layouts.layout_search import Advice, AdviceGoal
from farflung.advice.layouts.training_options import TrainingOption, memory_of
from farflung.advice.layouts.user_limits import UserLimits
from farflung.advice.offers import offer_file
from farflung.advice.offers.energy_terms import EnergyTerms
from farflung.advice.offers.offer_file import OfferedHost
from farflung.app.cli import plan_link
from farflung.core import limits
from farflung.core.errors import FarflungError, PolicyError, SpecError, UsageError
from farflung.core.money import CREDIT, parse_credits
from farflung.core.tensor_layout import TensorLayout
from farflung.core.units import Millis, Seconds, format_bytes
from farflung.job.io.job_files import read_data, read_module
from farflung.job.job_loader import ResolvedJob
from farflung.job.spec import JobSpec, NumericsSpec
from farflung.job.text_files import DataAccount
from farflung.local.jobs import memory_trace
from farflung.local.jobs.deadline import deadline_of
from farflung.local.jobs.memory_trace import MeasuredStep
from farflung.peers.rundir.bounded_read import read_file
from farflung.peers.rundir.inputs import known_layout
from farflung.plan.run_price import price
from farflung.plan.step_trace import StepTrace

DEFAULT: Final = "default"
PRESET: Final = "local"  # which is what a job is based on where nothing is said

Loads = Callable[[Mapping[str, str]], JobSpec]
_ABSENT: Final = "FF-JOB-010"


def refuse_without_offers(goal: str | None, deadline: str | None, explains: bool, is_own: bool) -> None:
    """Raises UsageError FF-APP-429 where something is said of offers, and none are named."""
    said = {"--goal": goal is not None, "--deadline": deadline is not None, "--explain": explains, "--own": is_own}
    named = [option for option, is_said in said.items() if is_said]
    if named:
        raise UsageError(
            "FF-APP-429",
            f"{named[0]} is of a plan over offers, and none are named",
            cause="it goes with --offers",
            hint="farflung plan --offers examples/offers/six_hosts.toml",
        )


def allowed(resolved: ResolvedJob) -> UserLimits:
    """What a job may cost and take. A preset's budget is nobody's word: what is over it is told, and advised."""
    origin = resolved.origins.get("budget", DEFAULT)
    is_said = not origin.startswith((DEFAULT, "preset"))
    now = Millis(round(1000 * time.time()))
    seconds = Seconds((deadline_of(resolved.deadline, now) - now) / 1000) if resolved.deadline else None
    return UserLimits(parse_credits(resolved.spec.budget) if is_said else None, seconds)


def plan(
    file: Path, goal: str | None, spec: JobSpec, model: JobModel, user_limits: UserLimits, *, base: Path, is_own: bool
) -> tuple[JobWork, Advice]:
    """The advice on a job whose data lie in `base`; `is_own`: all hosts are the planner's.

    Raises what `read` raises, and PolicyError FF-APP-428 (nothing fits).
    """
    asks, hosts = read(file, spec, model)
    asks = msgspec.structs.replace(asks, examples=examples(spec, base))
    found = layout_search.search(
        asks, hosts, AdviceGoal(goal or AdviceGoal.TIME), is_own=is_own, user_limits=user_limits
    )
    if not found.best:
        raise _refused(found)
    return asks, found


def examples(spec: JobSpec, base: Path) -> int:
    """Windows of the job's data that do not overlap; 0 where the data are not here, or are what this Python has.

    Raises SpecError FF-JOB-011 to -024 where they are here and cannot be used.
    """
    return _data(spec, base)[0]


def account(spec: JobSpec, base: Path) -> DataAccount:
    """What is left out of the job's data, where they are here."""
    return _data(spec, base)[1]


@lru_cache(maxsize=1)
def _data(spec: JobSpec, base: Path) -> tuple[int, DataAccount]:
    if spec.data.path == "stdlib":
        return 0, DataAccount()
    try:
        read = read_data(spec.data, spec.model, base)
    except SpecError as error:
        if error.code != _ABSENT:  # data may be elsewhere
            raise
        return 0, DataAccount()
    return len(read.dataset.train) // spec.model.context, read.account


def read(file: Path, spec: JobSpec, model: JobModel) -> tuple[JobWork, tuple[OfferedHost, ...]]:
    """A job and the hosts that are offered for it. Raises UsageError FF-APP-161, FF-APP-426 (the file), FF-PLAN-060 and
    -061 (what it says).
    """
    hosts = offer_file.parse(_text(file), card_files.read(), lambda name: _text(file.parent / name))
    return work(spec, model.layout, model.traced), hosts


def _text(path: Path) -> str:
    try:
        return read_file(path, 4 * limits.OFFERS_CHARACTERS).decode()
    except UnicodeDecodeError:
        raise UsageError(
            "FF-APP-426",
            f"{path.name} is no text",
            cause="offers are TOML, in UTF-8",
            hint="docs/plan/advise.md shows a file of offers",
        ) from None


def terms(file: Path) -> EnergyTerms:
    """What a file of offers says beside its hosts. Raises what `read` raises."""
    return offer_file.terms_of(_text(file), card_files.read())


def _refused(advice: Advice) -> FarflungError:
    """None of all ways fits: the constraint that comes nearest, and what would lift it."""
    nearest = advice.binding[0]
    if nearest.constraint == machine_admission.CLASS:
        return machine_admission.refusal(nearest)
    return PolicyError(
        "FF-APP-428",
        f"none of {advice.tried} ways to train this fits these {len(advice.hosts)} hosts: {nearest.constraint} binds",
        cause=f"{nearest.kind}: {nearest.cause}",
        hint=f"what would make it fit: {nearest.help}",
    )


class NextCommand(NamedTuple):
    """The words of a command; none where there is none. `lacking`: why no command, or what it still takes."""

    words: tuple[str, ...] = ()
    lacking: str = ""


def command(advice: Advice, job: Path | None, preset: str, flags: Mapping[str, str], load: Loads) -> NextCommand:
    """The words of `farflung run` that train as the best way that runs today; none where there is none.

    `flags`: what was said on the command line, by dotted key; `load`: from flags to the job that they give. A job that
    no run may have is no reason to keep the advice back.
    """
    today = advice.today
    if today is None or today.sync is None:
        return NextCommand()
    rounds = -(-today.steps // today.sync.steps)
    try:
        said = plan_link.settings(today.sync, len(today.hosts), load, {"rounds": str(rounds)})
    except FarflungError as error:
        return NextCommand(
            lacking=f"{error.message} ({error.cause.partition(';')[0]})" if error.cause else error.message
        )
    kept = [f"{key}={value}" for key, value in flags.items() if not any(s.startswith(f"{key}=") for s in said)]
    start = ["farflung run", *([str(job)] if job else []), *([f"--preset {preset}"] if preset != PRESET else [])]
    words = (*start, *(f"--set {each}" for each in (*kept, *said)))
    return NextCommand(words, _unpaid(load(dict(each.split("=", 1) for each in said))))


def _unpaid(spec: JobSpec) -> str:
    """Why a run of this job would be refused for its price; empty: it would not."""
    try:
        price(spec)
    except PolicyError as error:
        return f"{error.message}: {error.hint}"
    return ""


def json(work: JobWork, advice: Advice, terms: EnergyTerms, command: NextCommand, data: DataAccount) -> str:
    """One line; bytes, seconds, pico-credits, kWh."""
    facts = {
        "parameters": work.parameters,
        "model": work.model.kind,
        "tokens": work.tokens,
        "left_out": data.left_out,
        "noted": data.noted,
        "goal": advice.goal,
        "tried": advice.tried,
        "is_for_one": advice.is_for_one,
        "saved_seconds": advice.saved,
        "budget": work.budget,
        "next": " ".join(command.words),
        "next_lacks": command.lacking,
        "best": [_option(option) | _worth(work, option, terms) for option in advice.best],
        "dropped": [_option(option) for option in advice.dropped],
        "useless": [host.name for host in advice.useless],
        "binding": [msgspec.structs.asdict(blocked) for blocked in advice.binding],
    }
    return msgspec.json.encode(facts).decode()


def _option(option: TrainingOption) -> dict[str, Any]:
    return {
        "kind": option.kind,
        "how": option.how,
        "hosts": [host.name for host in option.hosts],
        "seconds": option.seconds,
        "price": option.price,
        "price_of_million": option.price_of_million,
        "step_seconds": option.step,
        "exchange_seconds": option.exchange,
        "steps": option.steps,
        "efficiency": option.efficiency,
        "up_bytes": option.up,
        "down_bytes": option.down,
        "sequences": option.sequences,
        "memory_bytes": option.worst.footprint.card,
        "ram_bytes": option.ram,
        "classes": [each.admission.grade for each in machine_admission.admitted(option)],
        "memory_of": [memory_of(host) for host in option.hosts],
        "recompute": option.recompute,
        "micro_batch": option.micro,
        "pipelines": option.ways,
        "method_runs_today": option.is_run_today,
        "only_planned": option.only_planned,
        "checkpoint_bytes": option.stored.bytes if option.stored else None,
        "checkpoint_seconds": option.stored.every if option.stored else None,
        "loss_above_dense_measured": method_loss_table.above(option.sync) if option.sync else None,  # per cent
        "facts": [msgspec.structs.asdict(fact) for fact in option.derived],
    }


def _worth(work: JobWork, option: TrainingOption, terms: EnergyTerms) -> dict[str, Any]:
    """What is not known is null."""
    found = worth(work, option, terms)
    is_dark = found.per_watt is None
    return {
        "energy_kwh": None if is_dark else found.energy,
        "energy_price": None if is_dark or terms.kilowatt_hour is None else CREDIT * found.power,
        "energy_of": None if is_dark else hardware_text.drawn(found),
        "rate_of_hosts": [share.share for share in found.shares],
        "audited": work.audited,
        "price_of_million_verified": CREDIT * found.per_token * 1e6,
        "lost": found.loss,
        "reference": terms.reference.name,
        "per_watt_of_reference": found.per_watt,
        "price_of_reference": found.ratio if terms.is_priced else None,
    }


def refuse_two_names(name: str, job: Path | None) -> None:
    """Raises UsageError FF-APP-438 where a card's name was written without quotes: what follows it looks like a job."""
    if job is not None:
        raise UsageError(
            "FF-APP-438",
            f"--cards takes one name and no job, and here are {name!r} and {str(job)!r}",
            cause="a name of several words needs quotes",
            hint=f'farflung plan --cards "{name} {job}"',
        )


def cards_of(asked: str, *, as_json: bool) -> list[str]:
    """The table of cards, or one card with its worth beside an A100; `asked`: a card's name, or a TOML file of what was
    measured on one, and prices after an @. Raises UsageError FF-PLAN-031 and -032, of a file FF-PLAN-033 and -038, of
    prices FF-PLAN-035 and -039.
    """
    table = card_files.read()
    name, at = asked.partition("@")[0].strip(), asked.partition("@")[2]
    if name.endswith(".toml"):
        measured = card_files.read_profile(Path(name))
        found: tuple[Card, ...] = (with_profile(table.find(measured.card, measured.memory_bytes), measured),)
    else:
        found = (table.find(name),) if name else table.cards
    prices = prices_of(at)
    if as_json:
        return [msgspec.json.encode(msgspec.structs.asdict(card), enc_hook=sorted).decode() for card in found]
    if not name:
        return hardware_text.listing(found)
    one = prices.value(found[0], hardware_text.best(found[0]))
    return [
        *hardware_text.sheet(found[0]),
        "",
        *hardware_text.worth([one]),
        *hardware_text.at_prices(one, prices.reference),
    ]


class JobModel(msgspec.Struct, frozen=True):
    """`traced` None: it is the built-in model, and its sizes say enough. `source`: of a module of one's own."""

    layout: TensorLayout
    traced: StepTrace | None = None
    source: bytes = b""


def job_model(spec: JobSpec, base: Path, *, traces: bool, is_laid_out: bool = False) -> JobModel:
    """A module of one's own is always traced, the built-in model if asked for. `is_laid_out`: for layouts on cards,
    which choose numbers, passes and recomputation themselves and start from a step without them.

    Raises what memory_trace.gauge raises, and SpecError FF-JOB-01x, -04x (no such source).
    """
    layout = known_layout(spec)
    if layout is not None and not traces:
        return JobModel(layout)
    if is_laid_out:
        model = msgspec.structs.replace(spec.model, recompute="none")
        spec = msgspec.structs.replace(spec, model=model, accumulate=1, numerics=NumericsSpec())
    source = read_module(spec.model.module, base)[0] if layout is None else b""
    sys.stderr.write("tracing one training step in the sandbox (no data) ...\n")
    sys.stderr.flush()
    traced = asyncio.run(memory_trace.gauge(spec, source, tell=_so_far))
    return JobModel(traced.layout, traced, source)


def _so_far(seconds: int) -> None:
    sys.stderr.write(f"the model's first step takes {seconds} s so far; Ctrl-C stops\n")
    sys.stderr.flush()


def traced_lines(found: MeasuredStep) -> list[str]:
    """What was found, in the words of `farflung plan`."""
    traced, risen = found.traced, found.risen
    how = f"run on up to {traced.ran_rows} of them" if traced.ran_rows else "traced without data"
    many = f"{traced.rows} sequence{'s' * (traced.rows > 1)}"
    text = (
        f"one step of {many}, {how}: {format_bytes(traced.resident)} between steps,"
        f" {format_bytes(traced.peak(found.way))} at its peak; {len(traced.blocks) or 'no'} repeated blocks; "
    )
    if risen is not None:
        text += f"a process here holds {risen.factor:.2f} times that, measured on {risen.rows} sequences"
    else:
        text += f"allocator overhead not measured: {found.unseen}"
    return plan_link.say("Memory", text)
