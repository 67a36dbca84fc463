"""`farflung plan --offers`: what it prints fits a terminal, and what it refuses says what to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from farflung.app.cli.jobs import plan
from farflung.core.errors import FarflungError

OFFERS = Path(__file__).parents[2] / "examples" / "offers" / "six_hosts.toml"
LARGE = (
    "--set",
    "model.layers=32",
    "--set",
    "model.width=4096",
    "--set",
    "model.heads=32",
    "--set",
    "model.context=1024",
)
HUGE = (
    "--set",
    "model.layers=80",
    "--set",
    "model.width=8192",
    "--set",
    "model.heads=64",
    "--set",
    "model.context=1024",
)


def said(*words: str) -> str:
    done = CliRunner().invoke(plan, ["--offers", str(OFFERS), *words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def refused(*words: str) -> FarflungError:
    with pytest.raises(FarflungError) as raised:
        CliRunner().invoke(plan, list(words), catch_exceptions=False, standalone_mode=False)
    return raised.value


@pytest.fixture(scope="module")
def large() -> Any:
    return json.loads(said(*LARGE, "--json"))


def test_lines_fit_a_terminal_and_say_what_was_offered_and_assumed() -> None:
    for words in ((), LARGE, (*LARGE, "--explain")):
        rows = said(*words).splitlines()
        assert max(map(len, rows)) <= 80
        assert {row.split()[0] for row in rows if row[:1].strip()} >= {"Job", "Offers", "Best", "Assumed"}
    assert "6 hosts of 6 owners" in said()


def test_a_model_that_no_card_holds_is_laid_out_over_several(large: Any) -> None:
    best = large["best"][0]
    assert best["kind"] == "pipeline"
    assert not best["is_run_today"]
    assert best["memory_bytes"] <= 2 * max(best["memory_of"])
    assert {each["kind"] for each in large["binding"]} == {"rounds", "data parallel"}
    assert "planned only" in said(*LARGE)


def test_the_numbers_of_the_lines_are_those_of_the_facts(large: Any) -> None:
    best = large["best"][0]
    assert best["seconds"] == pytest.approx(best["step_seconds"] * best["steps"] / best["efficiency"])
    assert f"{best['steps']:,} steps" in " ".join(said(*LARGE).split())


def test_each_formula_is_shown_with_its_source_where_it_is_asked_for() -> None:
    assert "Narayanan et al. 2021" not in said(*LARGE)
    assert "Narayanan et al. 2021" in said(*LARGE, "--explain")


def test_the_goal_decides_the_order() -> None:
    times, prices = (json.loads(said("--goal", goal, "--json"))["best"] for goal in ("time", "price"))
    assert [each["seconds"] for each in times] == sorted(each["seconds"] for each in times)
    assert [each["price"] for each in prices] == sorted(each["price"] for each in prices)


def test_where_nothing_fits_the_constraint_and_what_would_lift_it_are_named() -> None:
    error = refused("--offers", str(OFFERS), *HUGE)
    assert (error.code, error.exit_code) == ("FF-APP-428", 4)
    assert "memory binds" in error.message
    assert "room for 13 of 80 layers" in (error.cause or "")
    assert "what would make it fit" in (error.hint or "")


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_bytes(b"\xff\xfe")
    for path, code in (("no.toml", "FF-APP-161"), ("x.toml", "FF-APP-426"), (".", "FF-APP-161")):
        assert refused("--offers", str(tmp_path / path)).code == code


def test_options_of_offers_want_offers() -> None:
    for words in (("--goal", "time"), ("--explain",)):
        assert refused(*words).code == "FF-APP-429"


def test_a_module_of_ones_own_is_to_be_described_by_its_sizes() -> None:
    error = refused(str(OFFERS.parents[1] / "own_module.toml"), "--offers", str(OFFERS))
    assert error.code == "FF-APP-427"


def cards(*words: str) -> str:
    done = CliRunner().invoke(plan, ["--cards", *words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_all_cards_or_one_with_what_it_is_worth() -> None:
    rows = cards().splitlines()
    assert len(rows) > 100
    assert max(map(len, rows)) <= 80
    one = cards("rtx 4090")
    assert one.startswith("GeForce RTX 4090: NVIDIA Ada")
    assert "of A100" in one
    assert json.loads(cards("rtx 4090", "--json"))["memory_bytes"] == 24 * 10**9


def test_a_card_that_there_is_not_is_refused_with_the_nearest() -> None:
    error = refused("--cards", "RTX 4900")
    assert error.code == "FF-PLAN-031"
    assert "RTX 4090" in (error.cause or "")
