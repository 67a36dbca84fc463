"""The page of `farflung simulate`: its charts, their tables, and what is played beside a scenario for them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from app_networks import made

from farflung.advice.simulation import simulation_rules as kinds
from farflung.advice.traffic import failures
from farflung.app.simulate import scenario_run
from farflung.app.views import simulation_charts, simulation_page
from farflung.core import units
from farflung.core.errors import RunError


@pytest.fixture(scope="module")
def page() -> str:
    asked = made()
    return simulation_page.render(scenario_run.tell(asked, 1, scenario_run.simulate(asked, 1)))


def test_the_page_has_all_charts_and_asks_for_nothing(page: str) -> None:
    for key in ("churn", "days", "relays", "money", "checkpoints"):
        assert f'id="{key}-880-t"' in page
        assert f'id="{key}-304-t"' in page
    assert "<script" not in page
    assert not re.search(r"""(?:src|href)\s*=\s*["'](?!#|data:)""", page)
    assert not re.search(r"url\((?!#)", page)
    assert not re.search(r"(?<!\{)\{\{|Undefined|nan", page)


def test_every_chart_has_a_table_of_its_numbers(page: str) -> None:
    asked = made()
    outcome = scenario_run.simulate(asked, 1)
    for label in ("Loss over churn", "Day by day", "What relays carry", "Checkpoints over the size of a group"):
        assert f'aria-label="{label}"' in page
    for share in simulation_charts.accepted(outcome):
        assert f'<td class="n">{units.format_share(share)}</td>' in page
    for name, given, rate in simulation_charts.carried(outcome):
        row = f'{name.capitalize()}</th><td class="n">{units.format_bytes(given)}</td>'
        assert f'{row}<td class="n">{units.format_rate(rate)}</td>' in page


def test_tables_of_days_and_relays_add_up_to_the_whole() -> None:
    outcome = scenario_run.simulate(made(), 1)
    rows, rules = simulation_charts.carried(outcome), outcome.rules
    assert sum(given for _, given, _ in rows) == int(outcome.relayed.sum()) > 0
    assert [given for _, given, _ in rows] == sorted((given for _, given, _ in rows), reverse=True)
    assert max(rate for *_, rate in rows) == 8000 * int(outcome.relayed.max()) / rules.exchange
    hired = [period.hired * rules.rounds for period in outcome.periods]
    accepted = sum(share * of for share, of in zip(simulation_charts.accepted(outcome), hired, strict=True))
    assert accepted == pytest.approx(outcome.of(kinds.ACCEPTED))


def test_networks_that_are_played_for_the_page_are_told_as_they_begin() -> None:
    asked, begun = made(churn__up_hours=4.0), []
    scenario_run.tell(asked, 1, scenario_run.simulate(asked, 1), begun.append)
    assert begun == [hours for hours in scenario_run.CHURNS if hours != 4.0]


def test_the_same_scenario_gives_the_same_page(page: str) -> None:
    asked = made()
    assert simulation_page.render(scenario_run.tell(asked, 1, scenario_run.simulate(asked, 1))) == page


def test_a_network_that_hires_nobody_has_a_page_too(tmp_path: Path) -> None:
    asked = made(market__wanted=0.0)
    simulation_page.write(scenario_run.tell(asked, 1, scenario_run.simulate(asked, 1)), tmp_path / "sim.html")
    assert "no money moved" in (tmp_path / "sim.html").read_text(encoding="utf-8")


def test_trying_whether_a_page_can_be_written_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "sim.html").write_text("before", encoding="utf-8")
    simulation_page.check(tmp_path / "sim.html")
    simulation_page.check(tmp_path / "other.html")
    assert [path.name for path in tmp_path.iterdir()] == ["sim.html"]
    assert (tmp_path / "sim.html").read_text(encoding="utf-8") == "before"


@pytest.mark.slow
def test_a_page_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    asked = made()
    told = scenario_run.tell(asked, 1, scenario_run.simulate(asked, 1))
    with pytest.raises(RunError) as raised:
        simulation_page.write(told, tmp_path / "missing" / "sim.html")
    assert raised.value.code == "FF-APP-434"


@pytest.mark.parametrize("hours", [4.0, 10.0, 500.0])
def test_churn_is_charted_as_all_that_is_lost_with_the_scenario_among_the_points(hours: float) -> None:
    asked = made(churn__up_hours=hours, churn__down_hours=hours / 5)
    outcome = scenario_run.simulate(asked, 1)
    rows = scenario_run.churned(asked, 1, outcome)
    assert [row.up_hours for row in rows] == sorted({*scenario_run.CHURNS, hours})
    own = next(row for row in rows if row.up_hours == hours)
    assert own.lost == pytest.approx(1 - outcome.goodput)
    assert all(row.lost >= row.losses["away"] + row.losses["left"] > 0 for row in rows)
    assert rows[0].lost > rows[3].lost > rows[-1].lost


def test_a_job_that_restarts_misses_the_same_nodes_and_waits_for_the_state() -> None:
    """Away and caught as played, 1 % late; of the rest the exact share with R = 8 x 1,000 MB / 100 Mbit/s = 80 s."""
    asked = made(round__state_mb=1000.0)
    for row in scenario_run.churned(asked, 1, scenario_run.simulate(asked, 1)):
        works = failures.best(60.0, 3600 * row.up_hours / 4, 80.0).efficiency
        there = 1 - row.losses["away"] - row.losses["caught"]
        assert row.restarting == pytest.approx(1 - there * 0.99 * works)


def test_ticks_of_long_stays_leave_room_for_the_scenario() -> None:
    near, far = sorted({*scenario_run.CHURNS, 10.0}), sorted({*scenario_run.CHURNS, 1e7})
    assert sorted(simulation_charts._stays(near, 10.0, 8)) == [0.5, 1, 2, 4, 10, 16, 32, 64]
    assert sorted(simulation_charts._stays(far, 1e7, 8)) == [0.5, 8, 1e7]


def test_the_sentence_of_churn_compares_what_its_table_says(page: str) -> None:
    asked = made()
    told = scenario_run.tell(asked, 1, scenario_run.simulate(asked, 1))
    first = told.churned[0]
    shares = [units.format_share(share) for share in (first.lost, first.restarting)]
    said = simulation_page._churn_said(told)
    assert f"hours {shares[0]} of hired nodes' rounds are lost" in said
    assert f"{shares[1]} where the job restarts" in said
    cells = [*(units.format_share(share) for share in first.losses.values()), *shares]
    assert "".join(f'<td class="n">{cell}</td>' for cell in cells) in page


def test_the_curve_of_churn_is_what_the_table_says_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[list[float]] = []
    asked = made(churn__up_hours=300.0)
    rows = scenario_run.churned(asked, 1, scenario_run.simulate(asked, 1))
    line = simulation_charts._line
    monkeypatch.setattr(simulation_charts, "_line", lambda *of: (drawn.append(of[3]), line(*of)))
    simulation_charts.churn(rows, 300.0, "")
    assert [100 * row.restarting for row in rows] in drawn
    assert [100 * row.lost for row in rows] in drawn
    assert len(rows) == len(scenario_run.CHURNS) + 1
