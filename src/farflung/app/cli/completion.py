"""Implements shell completion: it completes all arguments, and `completion` prints the shell's script."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import click
import msgspec
from click.shell_completion import CompletionItem, get_completion_class

VARIABLE: Final = "_FARFLUNG_COMPLETE"
INSTALL: Final = {
    "bash": "farflung completion bash >> ~/.bashrc",
    "zsh": "farflung completion zsh >> ~/.zshrc   (after compinit)",
    "fish": "farflung completion fish > ~/.config/fish/completions/farflung.fish",
}


def run_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """The runs that there are, newest first."""
    from farflung.peers.rundir import folder
    from farflung.peers.rundir.runs import runs_folder

    try:
        names = [run.name for run in reversed(folder.all_known(runs_folder()))]
    except Exception:  # a shell that completes must never see an error
        return []
    return [name for name in names if name.startswith(incomplete)]


def job_files(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Job files, and the folders on the way to them."""
    head, _, start = incomplete.rpartition("/")
    prefix = f"{head}/" if "/" in incomplete else ""
    try:
        entries = sorted(Path(prefix or ".").expanduser().iterdir())
    except OSError:
        return []
    shown = [p for p in entries if p.name.startswith(start) and (start or not p.name.startswith("."))]
    return [f"{prefix}{p.name}/" for p in shown if p.is_dir()] + [
        f"{prefix}{p.name}" for p in shown if p.suffix == ".toml" and p.is_file()
    ]


def keys_to_set(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The keys of a job, each with what it is."""
    from farflung.job.job_toml import ABOUT
    from farflung.job.keys import KEYS

    return [CompletionItem(f"{key}=", help=ABOUT.get(key, "")) for key in KEYS if key.startswith(incomplete)]


def presets(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """The presets."""
    from farflung.job.presets import PRESETS

    return [name for name in PRESETS if name.startswith(incomplete)]


@click.command(epilog="Example: farflung completion bash >> ~/.bashrc")
@click.argument("shell", type=click.Choice(list(INSTALL)))
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def completion(shell: str, as_json: bool) -> None:
    """Print what makes a shell complete verbs, options, runs, job files and keys."""
    from farflung.app.cli.main import cli

    kind = get_completion_class(shell)
    assert kind is not None
    made = kind(cli, {}, "farflung", VARIABLE)
    # source() would start a bash to ask its version.
    script = (made.source_template % made.source_vars()).strip()
    if as_json:
        said = msgspec.json.encode({"shell": shell, "install": INSTALL[shell], "script": script}).decode()
        sys.stdout.write(said + "\n")
        return
    sys.stdout.write(f"# To install: {INSTALL[shell]}\n{script}\n")
