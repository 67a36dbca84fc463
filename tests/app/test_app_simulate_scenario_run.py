"""`farflung simulate`: scenarios and their bounds, published figures, and the verb's words."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from app_networks import SMALL, made

from farflung.advice.simulation import simulation_rules as kinds
from farflung.advice.simulation.random_draws import ODDS
from farflung.advice.traffic import failures
from farflung.app.cli import simulate
from farflung.app.cli.main import main
from farflung.app.simulate import scenario, scenario_run
from farflung.app.simulate.scenario import KEYS
from farflung.core import units
from farflung.core.errors import UsageError
from farflung.verify.economics import CheaterResponse

PAGE = Path(__file__).parents[2] / "docs" / "plan" / "simulate.md"


# Scenarios


def test_a_file_is_read_and_flags_win() -> None:
    text = "[churn]\nup_hours = 5\n[network]\nnodes = 300\n"
    read = scenario.read(text, "net.toml", {"network.nodes": "400"})
    assert (read["churn.up_hours"], read["network.nodes"], read["churn.down_hours"]) == (5.0, 400, 2.0)


def test_an_unknown_key_is_refused_with_its_line_and_the_nearest_one() -> None:
    with pytest.raises(UsageError) as raised:
        scenario.read("[churn]\nup_hour = 5\n", "net.toml", {})
    assert raised.value.code == "FF-APP-430"
    assert raised.value.cause == "net.toml line 2"
    assert "churn.up_hours" in raised.value.hint


@pytest.mark.parametrize("text", ["network = 3\n", "[[network]]\nnodes = 3\n", "network = [3]\n"])
def test_a_table_that_is_written_as_a_value_is_called_one(text: str) -> None:
    with pytest.raises(UsageError) as raised:
        scenario.read(text, "net.toml", {})
    assert (raised.value.code, raised.value.cause) == ("FF-APP-430", "net.toml line 1")
    assert raised.value.message.endswith("it is a table")
    assert raised.value.hint == "[network] once, and lines like `nodes = 10000` under it"


def test_a_table_in_a_flag_is_called_one_and_an_empty_one_says_nothing() -> None:
    with pytest.raises(UsageError) as raised:
        scenario.read(None, "", {"churn": "3"})
    assert raised.value.hint == "--set churn.up_hours=10.0"
    assert scenario.read("[churn]\n[network]\n", "net.toml", {}) == scenario.made()


def test_absurd_values_of_every_key_are_refused_by_name(subtests: pytest.Subtests) -> None:
    for key in KEYS:
        for value in ["-1", "nan", "inf", "-inf", "1e300", "many", "", "true", str(1 << 80)]:
            with subtests.test(key=key, value=value):
                with pytest.raises(UsageError) as raised:
                    scenario.read(None, "", {key: value})
                assert raised.value.code in ("FF-APP-431", "FF-APP-432")
                assert key in raised.value.message


@pytest.mark.parametrize(
    "values",
    [
        {"round.train_seconds": "80000", "round.exchange_seconds": "80000"},
        {"round.train_seconds": "0.001", "round.exchange_seconds": "0", "network.days": "3650"},
        {"network.relays": "1024", "round.train_seconds": "20", "network.days": "3650"},
        {"network.nodes": "1000000", "market.ceiling": "1000", "audit.stake": "10000"},
        {"network.nodes": "1000000", "round.payload_mb": "10000", "market.members": "1024"},
    ],
)
def test_networks_that_are_too_large_are_refused_before_anything_is_allocated(values: dict[str, str]) -> None:
    with pytest.raises(UsageError) as raised:
        scenario.read(None, "", values)
    assert raised.value.code == "FF-APP-432"


def test_every_default_is_within_its_own_bounds_and_is_documented() -> None:
    assert scenario.made().values == {key: of.default for key, of in KEYS.items()}
    page = PAGE.read_text(encoding="utf-8")
    for name, key in KEYS.items():
        assert f"| `{name}` | {key.about}; {key.default:g} |" in page, name


def test_a_cheater_takes_the_way_that_costs_it_less() -> None:
    cheap = made(audit__silence=0.1)
    dear = made(audit__silence=1.0, audit__seen=0.5)
    assert scenario_run.way_of(cheap) is CheaterResponse.SILENCE
    assert scenario_run.way_of(dear) is CheaterResponse.LIE
    rules = scenario_run.rules_of(cheap, 1), scenario_run.rules_of(dear, 1)
    assert [(each.taken, each.bounty) for each in rules] == [(100, 0), (1000, 500)]


def test_chances_of_audits_are_those_of_the_economics() -> None:
    """Two of three look: (1 - a)(1 - a^2); half of the segments are false."""
    asked = made(audit__absent=0.5, audit__segments=4, audit__false=0.5, audit__silence=0.5, audit__rate=0.25)
    rules = scenario_run.rules_of(asked, 1)
    assert rules.caught_known == int(0.5 * 0.75 * 0.5 * ODDS)
    assert rules.caught == int(0.25 * 0.5 * 0.75 * 0.5 * ODDS)


def test_a_larger_state_costs_those_who_join_more_rounds() -> None:
    """400 MB, 100 GB and 1 TB: on the middle line half a minute, two hours, and a day."""
    few, more, most = (scenario_run.simulate(made(round__state_mb=size), 1) for size in (400, 1e5, 1e6))
    assert 0.005 < few.losses["joining"] < 0.02
    assert few.losses["joining"] + 0.1 < more.losses["joining"] < most.losses["joining"] - 0.3
    assert few.goodput > more.goodput > most.goodput


# Published figures


@pytest.mark.parametrize(
    ("exchange", "printed"), [(469.0, 0.83), (382.0, 0.856), (103.0, 0.957)], ids=["world", "ocean", "us"]
)
def test_the_utilisation_of_intellect_1_follows_from_its_seconds(exchange: float, printed: float) -> None:
    """Jaghouar et al. 2024 (arXiv 2412.01152), table 3: 38 minutes of training, and so long an all-reduce."""
    steady = {
        "churn__up_hours": 1e6,
        "churn__down_hours": 0.01,
        "round__late": 0.0,
        "audit__cheaters": 0.0,
        "round__state_mb": 0.0,
    }
    outcome = scenario_run.simulate(made(round__train_seconds=2280.0, round__exchange_seconds=exchange, **steady), 1)
    assert outcome.utilisation == pytest.approx(printed, abs=0.01)


def llama(seed: int) -> float:
    """Hours between interruptions of 16,384 cards for 54 days, with 419 of them expected (Llama 3, section 3.3.4)."""
    hours = 16_384 * 54 * 24 / 419
    cards = made(
        network__nodes=16_384, network__days=54, round__train_seconds=3600.0, round__exchange_seconds=0.0,
        churn__up_hours=hours, churn__down_hours=0.05, churn__death=0.0, market__wanted=0.0,
    )  # fmt: skip
    mean = scenario_run.simulate(cards, seed).mean_time
    assert mean is not None
    return mean / 3600


@pytest.mark.whole
def test_the_interruptions_of_llama_3_come_every_3_09_hours() -> None:
    """Twelve times 419: a standard error of 1.4 %."""
    times = [llama(seed) for seed in range(12)]
    assert len(times) / sum(1 / each for each in times) == pytest.approx(3.09, rel=0.03)


@pytest.mark.parametrize(("cost", "share"), [(10, 0.958), (30, 0.928), (60, 0.900)])
def test_the_effective_time_of_llama_3_is_more_than_nine_tenths(cost: int, share: float) -> None:
    """Printed: more than 90 %, and 419 interruptions in 54 days; what a checkpoint took is not."""
    assert failures.best(cost, 3.09 * 3600).efficiency == pytest.approx(share, abs=0.0005)


@pytest.mark.parametrize(("mean", "cost", "printed"), [(1440, 5, 117), (360, 5, 57), (15, 5, 9.1)])
def test_the_best_interval_is_the_one_that_daly_prints(mean: float, cost: float, printed: float) -> None:
    """Minutes; Daly 2006, figures 3 to 5. The last is printed from his series, which is 0.1 off there."""
    assert failures.best(cost, mean).work == pytest.approx(printed, rel=0.01)


@pytest.mark.parametrize(
    ("cards", "rate", "hours", "minutes", "waste"),
    [
        (64, 1e-4, 3750, 670, 0.003), (1024, 1e-4, 234, 167, 0.012), (16_384, 1e-4, 14.6, 41, 0.047),
        (100_000, 1e-4, 2.4, 16.3, 0.113), (64, 4.74e-4, 792, 308, 0.0065), (16_384, 4.74e-4, 3.09, 18.6, 0.100),
        (100_000, 4.74e-4, 0.51, 7.1, 0.235),
    ],
)  # fmt: skip
def test_checkpoints_of_64_to_100000_cards(cards: int, rate: float, hours: float, minutes: float, waste: float) -> None:
    """The research's table, exactly instead of to the first order: shorter by C, and less is lost."""
    mean = 86_400 / (cards * rate)
    best = failures.best(60, mean)
    assert mean / 3600 == pytest.approx(hours, rel=0.01)
    assert best.work / 60 == pytest.approx(minutes, rel=0.01)
    assert best.waste == pytest.approx(waste, rel=0.03)


# The verb


def arguments(**more: str) -> list[str]:
    return [word for key, value in (SMALL | more).items() for word in ("--set", f"{key}={value}")]


def test_the_verb_tells_all_of_it_in_eighty_columns(capsys: pytest.CaptureFixture[str]) -> None:
    main(["simulate", *arguments()])
    shown = capsys.readouterr()
    rows = shown.out.splitlines()
    assert max(map(len, rows)) <= 80
    stages = [row.split()[0] for row in rows if not row.startswith(" ")]
    assert stages == ["Network", "Churn", "Market", "Work", "Used", "Audits", "Relays", "Money", "Hash"]
    assert "none was made or lost" in shown.out.replace("\n          ", " ")
    assert shown.err == ""


def test_json_has_the_same_and_the_same_seed_the_same_hash(capsys: pytest.CaptureFixture[str]) -> None:
    told = []
    for seed in ("7", "7", "8"):
        main(["simulate", *arguments(), "--seed", seed, "--json"])
        told.append(json.loads(capsys.readouterr().out))
    assert told[0] == told[1]
    assert told[0]["hash"] != told[2]["hash"]
    assert sum(told[0]["began"].values()) == sum(told[0]["ended"].values())
    assert len(told[0]["days"]) == 2
    assert told[0]["scenario"]["network.nodes"] == 200


def test_money_that_went_astray_would_be_told() -> None:
    asked = made()
    outcome = scenario_run.simulate(asked, 1)
    ended = msgspec.structs.replace(outcome.ended, burnt=outcome.ended.burnt + 3)
    wrong = msgspec.structs.replace(outcome, ended=ended)
    assert "3 MICRO-CREDITS TOO MANY" in " ".join(" ".join(simulate.lines(asked, 1, wrong)).split())


def test_a_scenario_that_is_no_text_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "net.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(SystemExit) as left:
        main(["simulate", str(tmp_path / "net.toml")])
    assert left.value.code == 2
    assert "error[FF-APP-433]" in capsys.readouterr().err


def test_a_scenario_may_begin_with_a_byte_order_mark(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "net.toml").write_text("[network]\nnodes = 210\n", encoding="utf-8-sig")
    main(["simulate", str(tmp_path / "net.toml"), "--set", "network.days=1"])
    assert "210 nodes, 1 days" in capsys.readouterr().out


def test_a_page_that_cannot_be_written_is_told_before_anything_is_played(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(scenario_run, "simulate", lambda *_: pytest.fail("it was played"))
    for place in (tmp_path / "missing" / "sim.html", Path("/dev/null"), tmp_path / ("x" * 300)):
        with pytest.raises(SystemExit) as left:
            main(["simulate", *arguments(), "--html", str(place)])
        assert left.value.code == 1
        assert "error[FF-APP-434]" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("values", "cause", "key"),
    [
        ({"churn__up_hours": 0.01, "churn__down_hours": 1e6}, "nobody is up", "a longer churn.up_hours"),
        ({"round__exchange_seconds": 0.0}, "no line carries", "a longer round.exchange_seconds"),
        ({"audit__funded": 0.0}, "has a stake", "a larger audit.funded"),
        ({"market__ceiling": 0.001}, "more than the ceiling", "a higher market.ceiling, or a lower market.ask"),
        ({"market__wanted": 0.0}, "no job asks for anybody", "a larger market.wanted"),
        ({"market__members": 100}, "do jobs ask for 100 nodes", "a larger market.wanted, fewer market.members"),
        ({"market__wanted": 1.0, "market__members": 40}, "has 40 such nodes, and one more", "fewer market.members"),
        ({"market__wanted": 1.0, "churn__up_hours": 0.1}, "has 4 such nodes", "a longer churn.up_hours"),
        ({"market__budget": 0.01}, "does the budget cover one job", "a larger market.budget"),
    ],
)
def test_a_network_in_which_nobody_is_hired_names_the_condition_and_its_key(
    values: dict[str, float], cause: str, key: str
) -> None:
    asked = made(network__days=1, **values)
    said = " ".join(" ".join(simulate.lines(asked, 1, scenario_run.simulate(asked, 1))).split())
    before, _, after = said.partition(": try ")
    assert cause in before
    assert key in after
    assert "clears at" not in said


def test_the_rest_of_the_day_of_who_is_caught_is_told_as_caught() -> None:
    asked = made(audit__verifiers=1, audit__cheaters=1.0, market__members=2)
    outcome = scenario_run.simulate(asked, 1)
    assert outcome.losses["away"] < 0.02 < 0.95 < outcome.losses["caught"]
    said = " ".join(" ".join(simulate.lines(asked, 1, outcome)).split())
    assert f"caught until the next auction {units.format_share(outcome.losses['caught'])}" in said
    assert simulate.facts(asked, 1, outcome)["losses"].keys() == {"away", "left", "late", "joining", "caught"}


def test_audits_are_told_of_all_that_was_handed_in() -> None:
    """Where all are caught at once nothing is accepted, and what was audited was a contribution anyway."""
    asked = made(audit__verifiers=1, audit__cheaters=1.0, market__members=2)
    outcome = scenario_run.simulate(asked, 1)
    audited = outcome.of(kinds.AUDITED)
    assert outcome.of(kinds.ACCEPTED) == 0
    assert f"{audited:,} of {audited:,} contributions" in " ".join(simulate.lines(asked, 1, outcome))


def test_a_bound_is_told_in_whole_digits() -> None:
    with pytest.raises(UsageError) as raised:
        scenario.read(None, "", {"network.nodes": "0"})
    assert "from 1 to 1,048,576" in raised.value.cause
