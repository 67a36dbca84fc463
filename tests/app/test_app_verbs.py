"""All verbs: a help that fits a screen with one example, `--json`, and no surprise in the root's list."""

from __future__ import annotations

import inspect
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from app_models import finished_run
from click.testing import CliRunner

from farflung.app.cli import status as cli_status
from farflung.app.cli.main import MEANT, VERBS, RootCommandGroup, cli, main

ROWS, COLUMNS = 24, 80


def commands(group: click.Group = cli, above: str = "") -> Iterator[tuple[str, click.Command]]:
    """Every command by what is typed for it, groups and the groups in them included."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None, name
        typed = f"{above} {name}".lstrip()
        yield typed, command
        if isinstance(command, click.Group):
            yield from commands(command, typed)


ALL = dict(commands())
LEAVES = {name: command for name, command in ALL.items() if not isinstance(command, click.Group)}


def help_of(name: str) -> list[str]:
    ended = CliRunner().invoke(cli, [*name.split(), "--help"], terminal_width=COLUMNS, prog_name="farflung")
    assert ended.exit_code == 0, ended.output
    return ended.output.splitlines()


def test_a_help_fits_a_screen_and_has_one_example(subtests: pytest.Subtests) -> None:
    for name in ["", *ALL]:
        with subtests.test(name=name):
            shown = help_of(name)
            assert len(shown) <= ROWS - 1, f"{len(shown)} lines, and a prompt comes below"
            assert max(map(len, shown)) <= COLUMNS
            examples = [line for line in shown if "Example:" in line]
            assert len(examples) == 1, examples
            assert f"Example: farflung {name}".rstrip() in examples[0]


def test_a_switch_that_help_leaves_out_is_said_to_be_left_out_on_the_page() -> None:
    page = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
    for name, command in ALL.items():
        for switch in command.params:
            if isinstance(switch, click.Option) and switch.hidden:
                row = next(line for line in page.splitlines() if line.startswith(f"| `{name}` |"))
                assert f"`{switch.opts[0]}`" in row.partition("eft out of `--help`")[2], f"{name} {switch.opts[0]}"


def test_an_example_is_a_command_line_that_is_understood(
    subtests: pytest.Subtests, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ALL:
        with subtests.test(name=name):
            (line,) = [line for line in help_of(name) if "Example:" in line]
            words = shlex.split(line.partition("Example: farflung ")[2].partition(" >> ")[0])
            words = words[len(name.split()) :]
            command = ALL[name]
            if isinstance(command, click.Group):
                inner, *words = words
                command = ALL[f"{name} {inner}"]
            for option in command.params:  # a file of an example need not be here
                if isinstance(option.type, click.Path):
                    monkeypatch.setattr(option.type, "exists", False)
            assert command.make_context(name, list(words)) is not None


def test_every_verb_speaks_json(subtests: pytest.Subtests) -> None:
    for name in LEAVES:
        with subtests.test(name=name):
            options = [option for param in LEAVES[name].params for option in param.opts]
            assert "--json" in options
            assert inspect.getdoc(LEAVES[name].callback)


@pytest.mark.parametrize("name", LEAVES)
def test_a_wrong_option_of_any_verb_is_exit_status_2_and_leads_to_its_help(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main([*name.split(), "--nonsense"])
    assert left.value.code == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("error[FF-APP-001]: No such option '--nonsense'")
    assert f"try:   farflung {name} --help" in told.err


def test_the_root_lists_every_verb_once_by_what_one_does_with_it() -> None:
    shown = help_of("")
    groups = [verb.group for verb in VERBS.values() if verb.group]
    assert groups == ["Start", "Follow", "Use", "Trust", "Machine"]
    assert "[-v|--version] VERB|completion" in shown[1]
    unlisted = ["quote", "cancel", "eval", "export", "publish", "account", "setup", "key", "version", "completion"]
    assert [name for name, verb in VERBS.items() if not verb.about] == unlisted
    assert any("plan " in line and "`quote`:" in line for line in shown)
    for name, verb in ((name, verb) for name, verb in VERBS.items() if verb.about):
        (line,) = [line for line in shown if line[11:].startswith(f"{name} ")]
        assert line.endswith(verb.about)


def test_words_of_other_tools_lead_to_verbs_that_are_there() -> None:
    assert set(MEANT.values()) - {"--help"} <= set(VERBS)
    assert not set(MEANT) & set(VERBS)


def test_the_version_is_told_as_other_programs_tell_it(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--version"])
    assert re.fullmatch(r"farflung \d+\.\d+\.\d+\n", capsys.readouterr().out)


def test_without_a_verb_the_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main([])
    assert left.value.code == 2
    assert "Example: farflung run" in capsys.readouterr().err


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "runs"
    monkeypatch.setenv("FARFLUNG_RUNS", str(root))
    return root


def test_status_fits_100_columns_whatever_a_run_is_called(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    finished_run(runs, "short")
    finished_run(runs, "n" * 90, is_done=False)
    main(["status"])
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) == 3
    assert max(map(len, shown)) <= 100
    assert shown[1].split()[:2] == ["short", "finished"]
    assert shown[2].split()[1] == "interrupted"
    main(["status", "--json"])
    rows = json.loads(capsys.readouterr().out)["runs"]
    assert [row["run"] for row in rows] == ["short", "n" * 90]


def test_status_of_one_run_says_where_it_lies_what_it_is_and_what_to_do(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = finished_run(runs, "small")
    main(["status", "small"])
    told = capsys.readouterr().out
    for wanted in (str(run.root), "1 layer, width 16, 2 heads, context 24", "farflung sample small", "cd" * 32):
        assert wanted in told
    main(["status", "small", "--json"])
    (said,) = json.loads(capsys.readouterr().out)["runs"]
    *others, last = said["next"]
    assert others == [f"farflung {verb} small" for verb in cli_status.NEXT["finished"]]
    assert last == "farflung resume small --rounds +3"


def test_no_run_is_said_and_is_no_error(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["status", "--json"])
    assert json.loads(capsys.readouterr().out) == {"runs": []}


def test_the_status_that_a_verb_leaves_with_is_the_process_s_own(monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command()
    @click.argument("status", type=int)
    @click.pass_context
    def leaving(ctx: click.Context, status: int) -> None:
        ctx.exit(status)

    monkeypatch.setattr(RootCommandGroup, "get_command", lambda self, ctx, name: leaving)
    with pytest.raises(SystemExit) as left:
        main(["leave", "5"])
    assert left.value.code == 5
    main(["leave", "0"])
