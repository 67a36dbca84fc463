"""TOML that makes its reader allocate or hang: keys of many parts, deep nesting, very many tables and keys."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from farflung.advice.hardware import card_profile
from farflung.advice.offers import offer_file
from farflung.app.simulate import scenario
from farflung.core import bounded_toml, limits
from farflung.core.errors import FarflungError
from farflung.job import job_loader, toml_parser
from farflung.peers.process import bandwidth_limits
from farflung.peers.process.config import read_role_config
from farflung.peers.rundir.folder import RunFolder, RunIdentity, create
from farflung.peers.rundir.runs import resolve_again
from farflung.peers.validator.config import ValidatorConfigFile

MOST = 48 << 20  # bytes that a refusal may take
DEEP = 5000
BAD = {
    "key of many parts": ".".join(["a"] * DEEP) + "=1",
    "spaced parts": " . ".join(["a"] * DEEP) + " = 1",
    "quoted parts": ".".join(['"a"', "'b'"] * DEEP) + "=1",
    "name of a table": "[" + ".".join(["a"] * DEEP) + "]",
    "name of tables": "[[" + ".".join(["a"] * DEEP) + "]]",
    "inline": "x = { " + ".".join(["a"] * DEEP) + " = 1 }",
    "behind four quotes": 'x = { a = """s"""", ' + ".".join(["b"] * DEEP) + ' = 1 } # "',
    "behind an escape": 'x = { a = "\\"", ' + ".".join(["b"] * DEEP) + " = 1 }",
    "behind a literal": "x = { a = '\\', " + ".".join(["b"] * DEEP) + " = 1 } # '",
    "arrays": "x = " + "[" * DEEP,
    "tables in tables": "x = " + "{a=" * DEEP,
    "arrays of tables": "x = " + "[{a=" * DEEP,
    "dotted in tables": "x = " + "{a.a.a.a.a.a.a.a=" * DEEP,
}


def _folder(text: str, folder: Path) -> None:
    create(folder / "run", RunIdentity(1, 0.0, text, "/"))
    resolve_again(RunFolder(folder / "run"))


def _role(text: str, folder: Path) -> None:
    (folder / "v.toml").write_text(text)
    read_role_config(folder / "v.toml", ValidatorConfigFile)


def _limits(text: str, folder: Path) -> None:
    place = bandwidth_limits.config_file({"XDG_CONFIG_HOME": str(folder), "HOME": str(folder)})
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)
    bandwidth_limits.read_bandwidth_limits({"XDG_CONFIG_HOME": str(folder), "HOME": str(folder)})


READERS: dict[str, Callable[[str, Path], object]] = {
    "job": lambda text, _: job_loader.load(text, origin_name="job.toml"),
    "scenario": lambda text, _: scenario.read(text, "scenario.toml", {}),
    "offers": lambda text, _: offer_file.parse(text, {}),
    "card": lambda text, _: card_profile.parse(text),
    "run folder": _folder,
    "role": _role,
    "network": _limits,
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("kind", BAD)
def test_every_reader_refuses_before_it_allocates(tmp_path: Path, reader: str, kind: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(FarflungError) as error:
            READERS[reader](BAD[kind], tmp_path)
        assert tracemalloc.get_traced_memory()[1] < MOST
    finally:
        tracemalloc.stop()
    assert error.value.cause


MANY = ["\n".join(f"a{i}.b = 1" for i in range(70_000)), "x = [" + "[]," * 70_000 + "]", "[[a]]\n" * 40_000]


@pytest.mark.parametrize("text", MANY, ids=range(len(MANY)))
def test_tables_are_counted_before_they_are_made(text: str) -> None:
    with pytest.raises(ValueError, match="tables, arrays and dotted names"):
        bounded_toml.parse(text, limits.OFFERS_CHARACTERS)


@pytest.mark.parametrize("line", ['"\\u0061{}" = 1', "a{} = 1", "[a{}]", "model.a{} = 1", '"a.b{}" = 1'])
def test_many_keys_are_each_looked_up_once(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Lines(dict[str, int]):
        items = keys = values = __iter__ = None  # type: ignore[assignment]

    found = toml_parser._lines
    monkeypatch.setattr(toml_parser, "_lines", lambda text: tuple(map(Lines, found(text))))
    rows = [line.format(i) for i in range(3000)]
    assert len(toml_parser.read("\n".join(rows), "job.toml")) in (1, 3000)


GOOD = {
    "x = [1.5, 2.5, 3.5]": {"x": [1.5, 2.5, 3.5]},
    'a."b.c".d = "x = [[[[ . . ."': {"a": {"b.c": {"d": "x = [[[[ . . ."}}},
    'x = """a\n"" [ . \\""""" # . [': {"x": 'a\n"" [ . ""'},
    "x = '''a''''' # .": {"x": "a''"},
    "x = '\\' # '": {"x": "\\"},
    "d = 07:32:00.999": None,
    "x = " + "[" * 32 + "]" * 32: None,
    ".".join("abcdefghijklmnop") + " = 1": None,
    "x = [" + "1.25, " * 10_000 + "]": None,
    "# " + "." * 5000 + "[" * 5000: {},
}


@pytest.mark.parametrize("text", GOOD, ids=range(len(GOOD)))
def test_what_people_write_is_read(text: str) -> None:
    table = bounded_toml.parse(text, limits.OFFERS_CHARACTERS)
    assert GOOD[text] is None or table == GOOD[text]


HUGE = ["0x" + "f" * 9000, "[0x" + "f" * 9000 + "]", "{ a = 0b" + "1" * 40000 + " }", "+0o" + "7_7" * 9000]


@pytest.mark.parametrize("value", HUGE, ids=range(len(HUGE)))
def test_a_whole_number_that_cannot_be_written_for_people_is_refused_in_words(value: str) -> None:
    for key in ("rounds", "name", "nothing", "optimizer.lr", "network.hidden"):
        with pytest.raises(FarflungError, match="digits"):
            job_loader.load(f"{key} = {value}", origin_name="job.toml")
