"""Implements the commands `run`, `resume` and `plan`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import click
import msgspec

from farflung.advice.layouts.layout_search import AdviceGoal
from farflung.app.cli import curves, plan_article_text, plan_layout, plan_link, plan_offers, plan_offers_text, run_on
from farflung.app.cli.completion import run_names
from farflung.app.cli.job_options import JOB, PRESET, ROUNDS, SEED, SET, flags_of
from farflung.app.cli.money_options import CreditsParam
from farflung.app.cli.plan_offers import JobModel, job_model, traced_lines
from farflung.app.cli.run_display import watcher
from farflung.app.views import report_page
from farflung.core.events import to_json
from farflung.host.io.machine_probe import machine
from farflung.job import cheat_names, dataset, job_toml
from farflung.job.io.job_files import read_data
from farflung.job.job_loader import ResolvedJob
from farflung.job.spec import JobSpec
from farflung.local.jobs import continued_run, memory_trace, preflight_checks, resolve
from farflung.local.network import session
from farflung.local.network.placement import MOST_VALIDATORS
from farflung.peers.requester import relay_fees
from farflung.peers.rundir import folder
from farflung.peers.rundir.genesis import MOST_RELAYS
from farflung.peers.rundir.inputs import plain
from farflung.peers.rundir.journal import read_timeline
from farflung.peers.rundir.runs import command_name, new_root, resolve_again, runs_folder
from farflung.plan.run_plan import advise
from farflung.watch.event_lines import lines
from farflung.watch.fold import RunTimeline

_JSON = click.option("--json", "as_json", is_flag=True, help="One JSON object per event on stdout.")


@click.command(epilog="Example: farflung run job.toml --rounds 12 --json")
@JOB
@PRESET
@SET
@SEED
@ROUNDS
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="The run's folder.")
@click.option("--cheat", type=click.Choice(cheat_names.KINDS), help="Make one provider misbehave (demo).")
@click.option("--dispute", is_flag=True, help="Who cheats contests it, down to one element.")
@click.option("--baseline", is_flag=True, help="Then train on one machine, to compare.")
@click.option("--lab", is_flag=True, help="Through simulated homes. Linux, as root.")
@click.option(
    "--relays", type=click.IntRange(1, MOST_RELAYS), default=2, metavar="N", help="For hidden peers. Default: 2."
)
@click.option(
    "--validators", type=click.IntRange(1, MOST_VALIDATORS), default=1, metavar="N", help="Of its ledger. Default: 1."
)
@click.option("--relay-price", type=CreditsParam(), hidden=True, metavar="CREDITS", help="To relays, a GiB; 0: free.")
@click.option(
    "--relay-most", type=CreditsParam(), hidden=True, metavar="CREDITS", help="To all relays. Default: the plan's."
)
@click.option("--on", metavar="NETWORK", help="Others' computers: invitation or name.")
@click.option("--yes", is_flag=True, hidden=True, help="With --on: agrees to the price.")
@click.option("--deadline", hidden=True, metavar="WHEN", help="With --on: 2h, 3d, or a time. Default: the job's.")
@click.option("--wait", hidden=True, metavar="SPAN", help="With --on: for enough nodes.")
@curves.options
@_JSON
def run(
    job: Path | None,
    preset: str,
    settings: tuple[str, ...],
    seed: int | None,
    rounds: int | None,
    out: Path | None,
    cheat: str | None,
    dispute: bool,
    baseline: bool,
    lab: bool,
    relays: int,
    validators: int,
    relay_price: int | None,
    relay_most: int | None,
    on: str | None,
    yes: bool,
    deadline: str | None,
    wait: str | None,
    as_json: bool,
) -> None:
    """Train a JOB file (none: a small GPT) on this computer, or on a network."""
    if lab and validators > 1:
        raise click.UsageError("--lab has a ledger of one validator")
    if on is None and (yes or deadline or wait):
        raise click.UsageError("--yes, --deadline and --wait go with --on")
    if on is not None and (lab or dispute or cheat or validators > 1):
        raise click.UsageError("--lab, --cheat, --dispute and --validators are for a network of this computer's own")
    build = partial(
        resolve.resolve,
        job,
        preset,
        cheat=cheat_names.HONEST if on is not None else cheat,
        baseline=baseline,
        relay_price=relay_price,
        relay_most=relay_most,
        disputes=dispute,
        is_open=on is not None,
    )
    flags, network = flags_of(settings, seed, rounds, deadline), None
    resolved, identity = build(flags)
    root = new_root(out, resolved.spec.name)
    if on is not None:
        started = run_on.start_on(on, resolved, wait, agreed=yes)
        network = started.network.genesis, started.record
        if started.verifiers != resolved.spec.verifiers:
            resolved, identity = build({**flags, "network.verifiers": str(started.verifiers)})
    identity = msgspec.structs.replace(identity, lab=lab, relays=relays, validators=validators)
    with watcher(as_json, root) as see, curves.watched(root, see) as watchers:
        session.start(root, resolved, identity, watchers, report_page.keep, on=network)


@click.command(epilog="Example: farflung resume j1 --rounds +12 --set optimizer.lr=0.001")
@click.argument("name", metavar="[RUN]", required=False, shell_complete=run_names)
@click.option("--rounds", metavar="[+]N", help="Of a settled run: N more rounds, or until N in all.")
@SET
@curves.options
@_JSON
def resume(name: str | None, rounds: str | None, settings: tuple[str, ...], as_json: bool) -> None:
    """Go on with a run that was stopped or killed, or train a finished one further.

    RUN: its name or folder; the newest by default. Nothing that was logged is computed again. A run that has settled
    is closed: a new run beside it starts with its weights, at its place in the learning rate's schedule.
    """
    found, flags = folder.find(runs_folder(), name), flags_of(settings)
    done = read_timeline(found)
    ended = done.result
    more = continued_run.to_continue(found, ended, rounds, flags)
    if more is not None:
        sys.stderr.write(f"run {found.name} has settled; {more.what}\n")
        with watcher(as_json, more.root) as see, curves.watched(more.root, see) as watchers:
            session.start(more.root, more.resolved, more.identity, watchers, report_page.keep, more.inputs)
        return
    if ended is not None:  # said before the screen is there, which others must not write into
        name = command_name(found)
        sys.stderr.write(f"run {found.name} is finished; this is how it ended. To train on: ")
        sys.stderr.write(f"farflung resume {name} --rounds +{ended.rounds}\n")
    with watcher(as_json, found.root) as see:
        if ended is not None:
            see(ended, done)
            return
        with curves.watched(found.root, see) as watchers:
            session.resume(found, resolve_again(found), watchers, report_page.keep)


@click.command(epilog="Example: farflung plan --link 20/100/30ms --peers 8")
@JOB
@PRESET
@SET
@click.option("--seed", type=int, hidden=True, help="Of a run: a plan is the same for all.")
@ROUNDS
@click.option("--show-config", is_flag=True, help="Every value, and where it came from.")
@click.option("--link", metavar="UP/DOWN[/RTT]", help="Which sync method suits these Mbit/s and ms.")
@click.option("--peers", type=int, help="With --link: how many. Default: the job's.")
@click.option("--step", type=float, help="With --link: seconds of one step. Default: here.")
@click.option("--fan-out", is_flag=True, hidden=True, help="With --link: a server copies what is sent once.")
@click.option("--offers", type=click.Path(path_type=Path), metavar="FILE", help="The best ways on the hosts in FILE.")
@click.option("--goal", type=click.Choice([goal.value for goal in AdviceGoal]), help="With --offers. Default: time.")
@click.option("--own", is_flag=True, hidden=True, help="With --offers: all hosts are yours.")
@click.option("--deadline", metavar="WHEN", help="With --offers: 36h, 3d, or a time (UTC).")
@click.option("--explain", is_flag=True, help="With --offers, --layout: formulas, sources.")
@click.option("--layout", metavar="AXES", help="What dp=8,tp=2,pp=4 sends, waits for and keeps.")
@click.option("--trace", is_flag=True, help="Memory by a step of the model itself.")
@click.option("--article", is_flag=True, hidden=True, help="The source article's traffic figures, and correct ones.")
@click.option(
    "--cards",
    is_flag=False,
    flag_value="",
    metavar="[NAME]",
    help="A card's worth; at prices: NAME@HOUR/KWH/LOSS/A100.",
)
@_JSON
def plan(
    job: Path | None,
    preset: str,
    settings: tuple[str, ...],
    seed: int | None,
    rounds: int | None,
    show_config: bool,
    link: str | None,
    peers: int | None,
    step: float | None,
    fan_out: bool,
    offers: Path | None,
    goal: str | None,
    deadline: str | None,
    own: bool,
    explain: bool,
    layout: str | None,
    trace: bool,
    article: bool,
    cards: str | None,
    as_json: bool,
) -> None:
    """Say what a job takes before anything is spent: bytes, memory, time, price."""
    if cards is not None:
        plan_offers.refuse_two_names(cards, job)
        sys.stdout.write("\n".join(plan_offers.cards_of(cards, as_json=as_json)) + "\n")
        return
    if article:
        sys.stdout.write("\n".join(plan_article_text.lines(as_json=as_json)) + "\n")
        return
    flags = flags_of(settings, seed, rounds, deadline)
    resolved, identity = resolve.resolve(job, preset, flags)
    if link is None and not show_config:
        plan_link.refuse_without_link(peers, step, fan_out)
    if offers is None and not show_config:
        plan_offers.refuse_without_offers(goal, deadline, explain and layout is None, own)
    base = Path(identity.base)
    model = partial(job_model, resolved.spec, base, traces=trace, is_laid_out=offers is not None)
    again = partial(_again, job, preset, flags)
    if show_config:
        values = {"spec": plain(resolved.spec), "deadline": resolved.deadline, "origins": resolved.origins}
        text = [msgspec.json.encode(values).decode()] if as_json else job_toml.lines(resolved)
    elif layout is not None:
        laid = plan_layout.plan(layout, link, resolved.spec, plan_offers.examples(resolved.spec, base))
        text = [plan_layout.json(laid)] if as_json else plan_layout.lines(laid, explains=explain)
    elif offers is not None:
        most = plan_offers.allowed(resolved)
        asks, found = plan_offers.plan(offers, goal, resolved.spec, model(), most, base=base, is_own=own)
        after = plan_offers.command(found, job, preset, flags, again)
        told = (asks, found, plan_offers.terms(offers), after, plan_offers.account(resolved.spec, base))
        if as_json:
            text = [plan_offers.json(*told)]
        else:
            text = plan_offers_text.lines(*told, explains=explain, width=plan_offers_text.columns())
    elif link is not None:
        asked = plan_link.LinkOptions(link, peers, step, fan_out)
        text = _for_links(asked, resolved.spec, model(), again, as_json=as_json)
    else:
        text = _here(resolved, identity, model(), as_json=as_json)
    sys.stdout.write("\n".join(text) + "\n")


def _again(job: Path | None, preset: str, flags: Mapping[str, str], more: Mapping[str, str]) -> JobSpec:
    """The job with more flags than were said."""
    return resolve.resolve(job, preset, {**flags, **more})[0].spec


def _for_links(
    asked: plan_link.LinkOptions, spec: JobSpec, model: JobModel, again: plan_link.Loads, *, as_json: bool
) -> list[str]:
    """Which method suits the links."""
    choice = plan_link.plan(asked, spec, model.layout, machine)
    said = plan_link.settings(choice.chosen.sync, choice.setting.peers, again)
    if as_json:
        return [msgspec.json.encode(plan_link.facts(choice, said)).decode()]
    return plan_link.lines(choice, said, is_measured=asked.step is None)


def _here(resolved: ResolvedJob, identity: folder.RunIdentity, model: JobModel, *, as_json: bool) -> list[str]:
    """The plan of a run on this computer."""
    spec, here = resolved.spec, machine()
    known = spec, model.source, here.memory_bytes, model.traced
    found = asyncio.run(memory_trace.stepped(*known)) if model.traced is not None else None
    read = read_data(spec.data, spec.model, Path(identity.base))
    size = dataset.packed_bytes(read.dataset)
    plan = advise(spec, model.layout, size, here, step=found.step if found is not None else None)
    preflight_checks.check(spec, Path(identity.base), runs_folder(), model.layout, size)
    relays = identity.relays if spec.hidden else 0
    event = relay_fees.planned(plan.event(""), plan.traffic, identity.relay_price, relays, identity.relay_most)
    event = read.account.within(event)
    if as_json:
        return [to_json(event)]
    traced = traced_lines(found) if found is not None else []
    return lines(event, RunTimeline()) + traced + plan_link.by_default(resolved)
