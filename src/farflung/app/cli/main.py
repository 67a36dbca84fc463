"""`farflung`: the command tree, and the one place where an error becomes lines on a terminal and an exit code."""

from __future__ import annotations

import difflib
import importlib
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import click

from farflung.core.errors import FarflungError, UsageError

# verb → module and command. Modules are imported when their verb is used, so that `--help` stays quick.
VERBS: Mapping[str, str] = {
    "run": "farflung.app.cli.jobs:run",
    "resume": "farflung.app.cli.jobs:resume",
    "plan": "farflung.app.cli.jobs:plan",
    "stop": "farflung.app.cli.looking:stop",
    "status": "farflung.app.cli.looking:status",
    "verify-run": "farflung.app.cli.looking:verify_run",
    "check": "farflung.app.cli.checking:check",
    "receipt": "farflung.app.cli.receipts:receipt",
    "relay": "farflung.app.cli.relaying:relay",
    "version": "farflung.app.cli.looking:version",
}


class Verbs(click.Group):
    """A group whose commands are imported one at a time, and which knows what a mistyped verb was meant to be."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All verbs, in the order of a run's life."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The verb's command, or None."""
        place = VERBS.get(cmd_name)
        if place is None:
            return None
        module, _, name = place.partition(":")
        command: click.Command = getattr(importlib.import_module(module), name)
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """Adds the nearest verb to click's own message."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            near = difflib.get_close_matches(args[0], VERBS, 1)
            meant = f" Did you mean {near[0]!r}?" if near else ""
            raise click.UsageError(f"no verb {args[0]!r}.{meant}", ctx) from error


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("-v", "--verbose", is_flag=True, help="Show tracebacks.")
def cli(verbose: bool) -> None:
    """Train PyTorch models by rounds on computers that belong to different people, and settle what was accepted.

    Example: farflung run --preset tiny
    """
    if verbose:
        os.environ["FARFLUNG_DEBUG"] = "1"


def _misread(error: click.UsageError) -> UsageError:
    """A command line that click cannot read, in the words of every other error."""
    context = error.ctx
    verb = context.command_path if context is not None else "farflung"
    usage = context.get_usage().removeprefix("Usage: ") if context is not None else "farflung VERB"
    message = error.format_message().rstrip(".")
    return UsageError("FF-APP-001", message, cause=f"it is written {usage}", hint=f"{verb} --help")


def _refuse(error: FarflungError) -> NoReturn:
    if os.environ.get("FARFLUNG_DEBUG"):
        traceback.print_exc()
    sys.stderr.write("\n".join(error.lines()) + "\n")
    sys.exit(error.exit_code)


def main(arguments: Sequence[str] | None = None) -> None:
    """The console script."""
    try:
        cli.main(
            args=list(arguments) if arguments is not None else None,
            prog_name="farflung",
            standalone_mode=False,
        )
    except click.exceptions.Exit as leaving:
        sys.exit(leaving.exit_code)
    except click.Abort:
        sys.exit(130)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(2)
    except click.UsageError as error:
        _refuse(_misread(error))
    except FarflungError as error:
        _refuse(error)
    except BrokenPipeError:
        os._exit(1)  # whoever read our lines is gone; there is nobody left to tell
    except Exception as error:  # the task's boundary: a person gets lines, not a traceback
        if os.environ.get("FARFLUNG_DEBUG"):
            traceback.print_exc()
        sys.stderr.write(
            f"error[FF-APP-099]: {type(error).__name__}: {error}\n"
            "  cause: this is a mistake in farflung itself\n"
            "  try:   the same command with `farflung -v ...`, and report what it prints\n"
        )
        sys.exit(1)


if __name__ == "__main__":
    main()
