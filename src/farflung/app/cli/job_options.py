"""Defines the command-line options that select a job: its file, the preset under it, and single values."""

from __future__ import annotations

from pathlib import Path

import click

from farflung.app.cli.completion import job_files, keys_to_set, presets


def flags_of(settings: tuple[str, ...], seed: int | None = None, rounds: int | None = None) -> dict[str, str]:
    """Values of a job by their keys. Raises click.UsageError for what is no key=value."""
    flags = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise click.UsageError(f"--set takes key=value, not {setting!r}. Example: --set sync.steps=20")
        flags[key.strip()] = value.strip()
    named = {"seed": seed, "rounds": rounds}
    return {**flags, **{key: str(value) for key, value in named.items() if value is not None}}


JOB = click.argument(
    "job", required=False, type=click.Path(dir_okay=False, path_type=Path), shell_complete=job_files
)
PRESET = click.option(
    "--preset",
    default="local",
    show_default=True,
    shell_complete=presets,
    help="Base of unnamed values.",
)
SET = click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    shell_complete=keys_to_set,
    help="Set one value of the job.",
)
SEED = click.option("--seed", type=int, help="Seed of weights, data order and local keys.")
ROUNDS = click.option("--rounds", type=int, help="How often the peers agree.")
