"""Defines the root command `farflung`, and alone turns errors into terminal lines and an exit code."""

from __future__ import annotations

import errno
import importlib
import io
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import click
from click.shell_completion import CompletionItem

import farflung
from farflung.core.errors import FarflungError, RunError, UsageError, type_and_text
from farflung.core.io import extras
from farflung.core.similar_name import similar_name
from farflung.peers.process.interrupts import InterruptHandler
from farflung.peers.process.user_dirs import choose_kernels

LINE = 400  # the longest line of an error


class CommandInfo(NamedTuple):
    """A verb as the root's help shows it, if there is anything to say `about` it.

    `place` is imported when the verb is used, so that `--help` stays quick.
    """

    group: str
    place: str
    about: str


VERBS: Mapping[str, CommandInfo] = {
    "init": CommandInfo("Start", "init:init", "Write an example job that runs as it is"),
    "plan": CommandInfo("", "run:plan", "Say what a job will take; `quote`: what a market asks"),
    "quote": CommandInfo("", "quote:quote", ""),  # the line above names it
    "simulate": CommandInfo("", "simulate:simulate", "Simulate a network of up to a million nodes"),
    "run": CommandInfo("", "run:run", "Train a job: on this computer, or on a network (--on)"),
    "status": CommandInfo("Follow", "status:status", "Show all runs, or one"),
    "watch": CommandInfo("", "watch:watch", "Watch a run, live or again"),
    "report": CommandInfo("", "report:report", "Write a run's report as one HTML page"),
    "jobs": CommandInfo("", "jobs:jobs", "Show what your runs hold on networks; `cancel`: end it"),
    "stop": CommandInfo("", "status:stop", "Let a run finish its round and settle"),
    "cancel": CommandInfo("", "jobs:cancel", ""),  # the line of `jobs` names it
    "resume": CommandInfo("", "run:resume", "Go on with a run that was stopped or killed"),
    "fetch": CommandInfo("Use", "fetch:fetch", "Copy a run's model; `export`, `publish`: for others"),
    "sample": CommandInfo("", "sample:sample", "Write text with a trained model; `eval`: measure it"),
    "eval": CommandInfo("", "sample:evaluate", ""),  # the line above names it
    "export": CommandInfo("", "fetch:export", ""),  # the line of `fetch` names it
    "publish": CommandInfo("", "publish:publish", ""),  # the line of `fetch` names it
    "audit-plan": CommandInfo("Trust", "audit_plan:audit_plan", "Say whether cheating pays in a job, and what ends it"),
    "verify-run": CommandInfo("", "verify_run:verify_run", "Recompute a finished run from its log alone"),
    "receipt": CommandInfo("", "receipt:receipt", "Check what a ledger paid, from a receipt file"),
    "ledger": CommandInfo("", "ledger:ledger", "Run and inspect a ledger"),
    "network": CommandInfo("", "network:network", "Open a network for others; `account`: your credits"),
    "account": CommandInfo("", "account:account", ""),  # the line above names it
    "check": CommandInfo("Machine", "check:check", "Show what this computer can do; `setup`: install PyTorch"),
    "setup": CommandInfo("", "setup:setup", ""),  # the line above names it
    "bench": CommandInfo("", "bench:bench", "Measure codecs on your own tensors"),
    "key": CommandInfo("", "key:key", ""),  # the line below names it
    "lend": CommandInfo("", "lend:lend", "Lend this computer to a network, for credits"),
    "relay": CommandInfo("", "relay:relay", "Forward bytes of peers behind routers; `key`: its key"),
    "version": CommandInfo("", "status:version", ""),  # the line above all verbs names it
    "completion": CommandInfo("", "completion:completion", ""),  # the line above all verbs names it
}

# Words of other tools, and of those who think aloud, for our verbs.
MEANT: Mapping[str, str] = {
    "train": "run",
    "start": "run",
    "new": "init",
    "create": "init",
    "dryrun": "plan",
    "price": "quote",
    "bid": "quote",
    "estimate": "plan",
    "sim": "simulate",
    "play": "simulate",
    "audit": "audit-plan",
    "economics": "audit-plan",
    "ls": "status",
    "list": "status",
    "ps": "status",
    "logs": "watch",
    "show": "watch",
    "replay": "watch",
    "kill": "stop",
    "continue": "resume",
    "download": "fetch",
    "get": "fetch",
    "generate": "sample",
    "evaluate": "eval",
    "test": "eval",
    "convert": "export",
    "verify": "verify-run",
    "doctor": "check",
    "keygen": "key",
    "benchmark": "bench",
    "measure": "bench",
    "provide": "lend",
    "help": "--help",
}


class RootCommandGroup(click.Group):
    """A group whose commands are imported one at a time, and which knows what a mistyped verb was meant to be."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All verbs, in the order of a run's life."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The verb's command, or None."""
        verb = VERBS.get(cmd_name)
        if verb is None:
            return None
        module, _, name = verb.place.partition(":")
        interrupts = InterruptHandler()
        with interrupts.heard(), interrupts.held():
            command: click.Command = getattr(importlib.import_module(f"farflung.app.cli.{module}"), name)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Verbs and options, without importing a verb."""
        options = click.Command.shell_complete(self, ctx, incomplete)
        found = [CompletionItem(n, help=v.about) for n, v in VERBS.items() if n.startswith(incomplete)]
        return [*found, *options]

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """One screen: what this is, and each verb on a line, by what one does with it."""
        formatter.write("Train PyTorch models on a network that checks the work and pays for it.\n")
        formatter.write("Usage: farflung [-v|--version] VERB|completion [--help] Example: farflung run\n")
        for name, verb in ((name, verb) for name, verb in VERBS.items() if verb.about):
            formatter.write(f"  {verb.group:<8} {name:<11} {verb.about}\n")

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """Says what was meant by a verb that is none."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            said = args[0][:60]
            near = similar_name(said, [*VERBS, *MEANT])
            meant = MEANT.get(near, near) if near else "--help"
            guess = f". Did you mean {meant!r}?" if near else ""
            raise UsageError(
                "FF-APP-001",
                f"no verb {said!r}{guess}",
                cause=f"verbs are {', '.join(VERBS)}" if not near else "it is written farflung VERB [ARGUMENTS]",
                hint=f"farflung {meant}" + (" --help" if near and meant != "--help" else ""),
            ) from error


@click.group(
    cls=RootCommandGroup,
    options_metavar="[-v]",
    subcommand_metavar="VERB [ARGUMENTS]",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option("-v", "--verbose", is_flag=True, help="Show tracebacks.")
@click.version_option(farflung.__version__, message="farflung %(version)s")
def cli(verbose: bool) -> None:
    """Train PyTorch models on a network that checks the work and pays for it.

    Example: farflung run --preset tiny
    """
    if verbose:
        os.environ["FARFLUNG_DEBUG"] = "1"


def _misread(error: click.UsageError, words: Sequence[str]) -> UsageError:
    """A command line that click cannot read, in the words of every other error."""
    context = error.ctx or _context(words)
    if isinstance(error, click.NoSuchOption) and context is not None and context.parent is None:
        meant = _context(words)
        options = {name for param in meant.command.params for name in param.opts} if meant is not None else ()
        if meant is not None and error.option_name in options:
            return UsageError(
                "FF-APP-001",
                f"{error.option_name} comes before the verb",
                cause=f"it is an option of {meant.info_name}, and comes after it",
                hint=f"{meant.command_path} {error.option_name}",
            )
    verb = context.command_path if context is not None else "farflung"
    usage = context.get_usage().removeprefix("Usage: ") if context is not None else "farflung VERB"
    message = " ".join(error.format_message().rstrip(".").split())
    if isinstance(error, click.NoSuchOption) and context is not None:
        names = [name for param in context.command.params for name in (*param.opts, *param.secondary_opts)]
        near = similar_name(error.option_name.lstrip("-"), (name.lstrip("-") for name in names if name[:2] == "--"))
        message = f"No such option {error.option_name[:60]!r}" + (f". Did you mean --{near}?" if near else "")
    return UsageError(
        "FF-APP-001", message[:300], cause=f"it is written {' '.join(usage.split())}", hint=f"{verb} --help"
    )


def _context(words: Sequence[str]) -> click.Context | None:
    """The verb that a command line is of, where click does not say it."""
    root = click.Context(cli, info_name="farflung")
    named = next((word for word in words if word in VERBS), None)
    command = cli.get_command(root, named) if named else None
    return click.Context(command, parent=root, info_name=named) if command else None


def _not_possible(error: OSError) -> RunError:
    """An error of the operating system that no other code explained: a full disk, a folder without permission."""
    if error.filename is not None and error.errno in (errno.EACCES, errno.EPERM):
        path = Path(os.fsdecode(error.filename))
        return RunError(
            "FF-APP-003",
            f"permission denied: {path} (owner: {_owner(path)})",
            cause=type(error).__name__,
            hint="choose a folder that is yours, or let its owner change who may use it",
        )
    where = f" ({os.fsdecode(error.filename)})" if error.filename else ""
    return RunError(
        "FF-APP-003",
        f"the operating system reports: {error.strerror or str(error) or 'an error'}{where}",
        cause=type(error).__name__,
        hint="choose a folder that is yours and has room; farflung check shows both",
    )


def _owner(path: Path) -> str:
    """Whose file or folder it is, or that of the nearest folder above it that can be seen."""
    place = path.absolute()
    for each in (place, *place.parents):
        try:
            return each.owner()
        except KeyError:
            return f"user {each.stat().st_uid}"
        except OSError:
            continue
    return "unknown"


def _unexpected(error: Exception) -> FarflungError:
    """A library that only some verbs need is not installed; anything else is a mistake of ours."""
    missing = extras.not_installed(error.name or "") if isinstance(error, ModuleNotFoundError) else None
    return missing or RunError(
        "FF-APP-099",
        f"unexpected error: {type_and_text(error)}",
        cause="this is a mistake in farflung itself",
        hint="the same command with `farflung -v ...`, and report what it prints",
    )


def _refuse(error: FarflungError) -> NoReturn:
    if os.environ.get("FARFLUNG_DEBUG"):
        traceback.print_exc()
    sys.stderr.write("".join(f"{line[:LINE]}\n" for line in error.lines()))
    sys.exit(error.exit_code)


def _open_missing() -> None:
    """Gives closed standard streams (`>&-`) the null device: the next file would take their number and their text."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            handle = os.open(os.devnull, os.O_RDWR)  # the lowest free number: that of the closed stream
            setattr(sys, name, os.fdopen(handle, mode, encoding="utf-8"))


def main(arguments: Sequence[str] | None = None) -> None:
    """The console script."""
    words = list(arguments) if arguments is not None else sys.argv[1:]
    try:
        _open_missing()
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                # A terminal that lacks a character still gets the rest.
                stream.reconfigure(errors="backslashreplace")
        choose_kernels()
        status = cli.main(args=words, prog_name="farflung", standalone_mode=False)
        if isinstance(status, int) and status:  # of `ctx.exit`: it is returned here, not raised
            sys.exit(status)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(2)
    except click.UsageError as error:
        _refuse(_misread(error, words))
    except FarflungError as error:
        _refuse(error)
    except BrokenPipeError:
        os._exit(1)  # whoever read our lines is gone; there is nobody left to tell
    except OSError as error:
        _refuse(_not_possible(error))
    except MemoryError:
        _refuse(
            RunError(
                "FF-APP-471",
                "there is not enough memory",
                cause="the system, or a limit of this shell (ulimit -v), gives this process no more",
                hint="ulimit -v unlimited, or end other programs; farflung check says what is free",
            )
        )
    except Exception as error:  # the task's boundary: a person gets lines, not a traceback
        _refuse(_unexpected(error))


if __name__ == "__main__":
    main()
