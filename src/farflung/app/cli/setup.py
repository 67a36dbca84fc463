"""Implements the command `setup`, which installs PyTorch where farflung was installed without it."""

from __future__ import annotations

import shlex
import sys

import click
import msgspec

from farflung.core.errors import UsageError
from farflung.host import torch_build
from farflung.host.io import torch_setup
from farflung.host.torch_build import AUTO, BUILDS, CPU


@click.command(epilog="Example: farflung setup --torch cpu --yes")
@click.option(
    "--torch", "build", type=click.Choice([AUTO, *BUILDS]), default=AUTO, help="Build. Default: for the cards here."
)
@click.option("--index", default="", metavar="URL", help="Take it from this package index.")
@click.option("--dry-run", is_flag=True, help="Show the command and end.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def setup(build: str, index: str, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Install PyTorch into this environment, to train, verify or use models.

    A ledger, a relay and a client need none of it.
    """
    found = torch_setup.installed()
    if found and build == AUTO:
        _say({"torch": found, "command": ""}, f"PyTorch {found} is installed already", as_json=as_json)
        return
    chosen = torch_build.build_for(torch_setup.cards()) if build == AUTO else build
    words = torch_setup.command(chosen, index, again=bool(found))
    shown = shlex.join(words)
    size = "some 0.2 GB" if chosen == CPU else "several GB"
    sys.stderr.write(f"PyTorch {torch_build.VERSION}, build {chosen}, {size} to fetch:\n  {shown}\n")
    if not dry_run:
        _ask(yes=yes)
        torch_setup.install(words)
        found = torch_setup.installed()
    said = "nothing was installed" if dry_run else f"PyTorch {found} is installed; next: farflung check"
    _say({"torch": found, "command": shown}, said, as_json=as_json)


def _ask(*, yes: bool) -> None:
    """Raises UsageError FF-APP-523 where nobody can answer, click.Abort where the answer is no."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(
            "FF-APP-523",
            "nothing is installed without a yes",
            cause="there is no terminal to ask on",
            hint="the same with --yes",
        )
    click.confirm("Install it?", default=True, abort=True, err=True)


def _say(facts: dict[str, str], text: str, *, as_json: bool) -> None:
    sys.stdout.write((msgspec.json.encode(facts).decode() if as_json else text) + "\n")
