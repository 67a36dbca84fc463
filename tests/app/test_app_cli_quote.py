"""`farflung quote`: the market's answer before a job is submitted, as lines, as an object, and where it is none."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import msgspec
import pytest
from app_models import finished_run
from click.testing import CliRunner

from farflung.advice.job_work import work
from farflung.app.cli.quote import quote
from farflung.core.errors import FarflungError
from farflung.core.events import ProviderMatchEvent
from farflung.core.money import format_credits, parse_credits, rounded_credits
from farflung.core.units import Millis
from farflung.local.jobs import recent_prices, resolve
from farflung.local.jobs.deadline import deadline_of
from farflung.peers.rundir import folder
from farflung.peers.rundir.folder import RunFolder
from farflung.peers.rundir.inputs import known_layout
from farflung.peers.rundir.journal import Journal
from farflung.peers.rundir.runs import resolve_again
from farflung.plan import run_price as prices

OFFERS = Path(__file__).parents[2] / "examples" / "offers"
STREET = OFFERS / "two_dozen_hosts.toml"
SIZES = {"model.layers": 12, "model.width": 768, "model.heads": 12, "model.context": 1024}
SIZES |= {"batch": 8, "sync.steps": 100}
JOB = [word for key, value in (SIZES | {"rounds": 20}).items() for word in ("--set", f"{key}={value}")]
NOW = Millis(1_700_000_000_000)


@pytest.fixture(autouse=True)
def nothing_was_hired(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("FARFLUNG_RUNS", str(tmp_path / "runs"))
    return tmp_path / "runs"


def asked(*words: str, offers: Path = STREET) -> tuple[str, FarflungError | None]:
    """What is printed, and how it ends."""
    done = CliRunner().invoke(quote, ["--offers", str(offers), *words], standalone_mode=False)
    assert done.exception is None or isinstance(done.exception, FarflungError), done.exception
    return done.stdout, done.exception


def said(*words: str) -> str:
    out, error = asked(*JOB, *words)
    assert error is None, error
    return out


def flat(*words: str) -> str:
    return " ".join(said(*words).split())


def facts(*words: str) -> Any:
    return json.loads(asked(*JOB, "--json", *words)[0])


def test_price_winners_and_setter_are_told_and_belong_together() -> None:
    told, text = facts("--members", "4", "--spares", "1"), flat("--members", "4", "--spares", "1")
    assert len(told["hired"]) == 5
    asks = {one["host"]: one["ask"] for one in told["offers"]}
    speeds = {one["host"]: one["speed"] for one in told["offers"]}
    assert told["ask"] == asks[told["setter"]] >= max(asks[name] for name in told["hired"])
    assert told["setter"] not in told["hired"]
    crew = [speeds[name] for name in (*told["hired"], told["setter"])]
    assert max(crew) <= 1.25 * min(crew)
    assert told["price_of_round"] == -(-told["ask"] * told["unit_flop"] // 10**15)
    assert told["total"] == 4 * 20 * told["price_of_round"]
    assert (
        f"{rounded_credits(told['ask'])} credits for 10^15 FLOP, the ask of {told['setter']}, who is not hired" in text
    )
    assert f"Hired {', '.join(told['hired'])} (which of them begin" in text
    for key in ("price_of_round", "price_of_million", "total"):
        assert f"{rounded_credits(told[key])} for" in text


def test_what_a_lease_pays_is_within_a_hundredth_of_the_quote_and_told_beside_it() -> None:
    told, text = facts("--members", "4"), flat("--members", "4")
    tokens = 4 * 20 * 819_200
    assert told["lease_price_of_token"] * 819_200 >= told["price_of_round"]
    assert told["total"] <= told["lease_total"] == tokens * told["lease_price_of_token"] <= 1.01 * told["total"]
    assert not told["lease_is_above_budget"]
    each, total = format_credits(told["lease_price_of_token"]), format_credits(told["lease_total"])
    assert f"{each} each, {total} credits for all" in text
    assert "above the budget" not in text
    tight = ("--members", "4", "--budget", format_credits(told["total"]))
    assert facts(*tight)["lease_is_above_budget"]
    assert f"above the budget of {format_credits(told['total'])}" in flat(*tight)
    nobody = facts("--budget", "0.001")
    assert (nobody["lease_price_of_token"], nobody["lease_total"]) == (None, None)


def test_the_plan_of_the_same_job_costs_what_its_leases_pay() -> None:
    told = facts("--members", "4")
    price = format_credits(told["lease_price_of_token"])
    sizes = dict(SIZES, rounds=20) | {"network.providers": 4, "unit_price": price}
    assert prices.price(resolve.resolve(None, "local", sizes)[0].spec).training == told["lease_total"]


def test_one_owner_has_one_of_five_at_most() -> None:
    owners = {one["host"]: one["owner"] for one in facts()["offers"]}
    hired = [owners[name] for name in facts("--members", "5", "--spares", "2")["hired"]]
    assert "gus" in owners.values()
    assert len(set(hired)) == 7


def test_the_job_is_told_with_its_work_and_terms() -> None:
    text = flat("--deadline", "2d", "--stake", "5", "--class", "B", "--members", "1")
    assert "each member makes 20 rounds of 100 steps and 819,200 tokens" in text
    assert f"{facts()['calibrated_units']:.4g} x 10^15 FLOP" in text
    assert "1 member and no spares of similar speed, within 2 days, class B of machine, a stake of 5.0" in text
    reserve = facts("--members", "1")["reserve"]
    assert "at most 5.000000 credits in all and 0.000001 a token, so at most" in text
    assert f"{rounded_credits(reserve)} for 10^15 FLOP; at most 1 of one owner" in text
    assert "24 hosts of 22 owners, at 0.001131 to 0.009271 credits" in text


def test_time_is_that_of_the_slowest_with_what_it_waits() -> None:
    told = facts("--members", "4")
    rounds = {one["host"]: one["round_seconds"] for one in told["offers"]}
    assert told["seconds"] == pytest.approx(20 * max(rounds[name] for name in told["hired"]))
    assert 0 < told["waiting"] < 1
    assert f"{told['waiting']:.0%} of it waiting for its line" in flat("--members", "4")
    assert "waiting" not in flat("--members", "1")


def test_the_supply_curve_goes_beyond_the_budget_and_ends_where_supply_does() -> None:
    told = facts("--budget", "0.001")
    assert [point["members"] for point in told["curve"]] == [1, 2, 4, 8, 16]
    prices = [point["ask"] for point in told["curve"]]
    assert prices[-1] is None
    assert prices[:-1] == sorted(prices[:-1])
    assert told["ask"] is None
    text = " ".join(asked(*JOB, "--budget", "0.001")[0].split())
    assert f"1 member at {rounded_credits(prices[0])}, 2 members at {rounded_credits(prices[1])}" in text
    assert "16 members cannot be had" in text


def test_the_funnel_names_whom_each_constraint_removes_and_whom_it_alone_keeps_out() -> None:
    words = ("--members", "2", "--card", "rtx 3090", "--stake", "10", "--class", "A")
    told = facts(*words)
    losses = {one["name"]: one for one in told["losses"] if one["removed"] or one["alone"]}
    assert losses["card"]["removed"] == 11
    assert losses["stake"]["removed"] == 1  # den, beside those that have another card
    assert "cores of class A" not in losses  # den is out already
    left = 24 - sum(one["removed"] for one in losses.values())
    assert told["funnel"][-2] == {"constraint": "price", "left": left}
    text = said(*words) if told["ask"] is not None else asked(*JOB, *words)[0]
    rows = {match[1]: match for match in re.finditer(r"^ {9}(\S.*?) +(\d+) +(\d+) +(\d+)", text, re.M)}
    for name, one in losses.items():
        left = {step["constraint"]: step["left"] for step in told["funnel"]}[name]
        assert [int(rows[name][at]) for at in (2, 3, 4)] == [left, one["removed"], one["alone"]]
    assert "GeForce RTX 3090" in text
    assert re.search(rf"similar speed +{told['funnel'][-1]['left']} ", text)


def test_where_money_is_too_little_the_error_says_how_much_would_do_and_it_does() -> None:
    out, error = asked(*JOB, "--budget", "0.001")
    assert error is not None
    assert (error.code, error.exit_code) == ("FF-APP-437", 4)
    assert "relax price" in error.cause
    assert "would do it" in " ".join(out.split())
    enough = error.hint.split()
    assert facts(*enough)["total"] == parse_credits(enough[1])
    less = f"{float(enough[1]) - 0.0001:.6f}"
    assert asked(*JOB, "--budget", less)[1] is not None


def test_where_the_price_of_a_token_binds_it_is_proposed_too(tmp_path: Path) -> None:
    dear = tmp_path / "dear.toml"
    dear.write_text(STREET.read_text().replace('price = "0.', 'price = "9000.'))
    error = asked(*JOB, offers=dear)[1]
    assert error is not None
    flag, budget, *price = error.hint.split()
    assert flag == "--budget"
    assert asked(*JOB, "--budget", budget, offers=dear)[1] is not None
    assert asked(*JOB, "--budget", budget, *price, offers=dear)[1] is None


def test_where_hosts_are_too_few_no_money_is_proposed() -> None:
    out, error = asked(*JOB, "--members", "1024", "--spares", "1024")
    assert error is not None
    assert "2049 hosts are needed, one of them to set the price, and 24 offer" in error.cause
    assert "fewer --members" in error.hint
    assert "would do it" not in out


def test_a_card_that_nobody_offers_is_the_constraint_to_relax() -> None:
    out, error = asked(*JOB, "--card", "GTX 1660")
    assert error is not None
    assert error.cause.startswith("relax card: GeForce GTX 1660")
    assert "card                   0      24" in out


def test_the_example_on_the_page_is_what_is_printed() -> None:
    root = OFFERS.parents[1]
    page = (root / "docs" / "plan" / "quote.md").read_text().split("\n\n")
    (at,) = [number for number, part in enumerate(page) if part.startswith("    farflung quote --offers")]
    words = shlex.split(page[at].replace("\\\n", " "))
    assert words[:4] == ["farflung", "quote", "--offers", "examples/offers/two_dozen_hosts.toml"]
    out, error = asked(*words[4:])
    assert error is None
    assert out.splitlines() == [row.removeprefix("    ") for row in page[at + 1].splitlines()]


@pytest.mark.parametrize("columns", [40, 60, 80, 120])
def test_lines_fit_the_terminal(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    for words in ((), ("--class", "A", "--stake", "10", "--deadline", "1h"), ("--budget", "0.001")):
        rows = asked(*JOB, *words)[0].splitlines()
        widest = max(len(row) for row in rows if not re.match(r" {9}\S.*\d+$| {29}left", row))
        assert widest <= min(columns, 80)
        assert max(map(len, rows)) <= max(56, min(columns, 80))


def test_what_makes_no_sense_is_refused_and_nothing_is_printed(subtests: pytest.Subtests) -> None:
    for words, code in [
        (("--budget", "0"), "FF-JOB-004"),
        (("--price", "0"), "FF-JOB-004"),
        (("--budget", "-1"), "FF-JOB-004"),
        (("--price", "nan"), "FF-JOB-004"),
        (("--stake", "much"), "FF-CORE-011"),
        (("--deadline", "soon"), "FF-APP-435"),
        (("--deadline", "99999-01-01"), "FF-APP-435"),
        (("--deadline", "2001-01-01"), "FF-APP-436"),
        (("--deadline", "0h"), "FF-APP-436"),
        (("--deadline", "999999d"), "FF-APP-436"),
        (("--card", "RTX 4900"), "FF-PLAN-031"),
    ]:
        with subtests.test(words=words, code=code):
            out, error = asked(*JOB, *words)
            assert error is not None
            assert (error.code, error.exit_code, out) == (code, 2, "")


@pytest.mark.parametrize("words", [("--members", "0"), ("--members", "1025"), ("--spares", "-1"), ("--class", "D")])
def test_absurd_numbers_are_refused_with_their_option(words: tuple[str, ...]) -> None:
    done = CliRunner().invoke(quote, ["--offers", str(STREET), *words])
    assert done.exit_code == 2
    assert words[0] in done.output


def test_a_deadline_that_is_now_is_not_called_past() -> None:
    error = asked(*JOB, "--deadline", "0h")[1]
    assert error is not None
    assert error.message == "the deadline 0h must be later than now"


def test_offers_that_are_none_are_refused(tmp_path: Path) -> None:
    (tmp_path / "none.toml").write_text("host = []\n")
    for path, code in (("none.toml", "FF-PLAN-060"), ("away.toml", "FF-APP-161")):
        assert getattr(asked(*JOB, offers=tmp_path / path)[1], "code", "") == code


@pytest.mark.whole
def test_a_module_of_ones_own_is_quoted_by_its_trace() -> None:
    text, error = asked(str(OFFERS.parent / "own_module.toml"))
    assert error is None
    assert "49.7 k parameters" in text


@pytest.mark.parametrize(
    ("text", "ms"),
    [("90m", 5_400_000), ("36h", 129_600_000), ("1.5d", 129_600_000), ("2023-11-14T23:13:20", 3_600_000),
     ("2023-11-15T00:13:20+01:00", 3_600_000)],
)  # fmt: skip
def test_a_deadline_is_a_span_or_a_time_in_utc(text: str, ms: int) -> None:
    assert deadline_of(text, NOW) == NOW + ms


def hired(runs: Path, name: str, *prices: int, at: float = 0.0) -> RunFolder:
    """A run in which four peers were hired, `at` seconds after it was made; the later ones after it was resumed."""
    run = finished_run(runs, name, is_done=False)
    journal = Journal(run.events_file, run.read_identity().created - at)
    for price in prices:
        journal.emit(ProviderMatchEvent(peers=("a", "b", "c", "d"), offers=9, unit_price=price))
    journal.close()
    return run


def test_the_last_day_tells_what_runs_on_this_computer_hired_at(nothing_was_hired: Path) -> None:
    assert "this computer hired nobody in the last 24 h" in flat()
    run = hired(nothing_was_hired, "one", 3, 9)
    assert "test credits for 10^15 FLOP, 4 hosts in 1 run on this computer's own processor" in flat()
    hired(nothing_was_hired, "two", 5)
    spec = resolve_again(run).spec
    layout = known_layout(spec)
    assert layout is not None
    ask = 3e15 / work(spec, layout).flop(1)
    told = facts()["last_day"]
    assert (told["bundles"], told["hosts"]) == (2, 8)
    assert told["low"] == told["median"] == round(ask)
    assert told["high"] == round(5 / 3 * ask)
    assert "half of 8 hosts at" in flat()
    assert "Those jobs name their own price of a token" in flat()
    assert "in 2 runs on this computer's own processor" in flat()
    assert facts("--card", "RTX 3090")["last_day"] is None
    assert "hired no GeForce RTX 3090 in the last 24 h" in flat("--card", "RTX 3090")


def test_a_sale_stands_at_the_time_of_its_hiring_and_for_a_day(nothing_was_hired: Path) -> None:
    run = hired(nothing_was_hired, "one", 3, at=50.0)
    made = round(run.read_identity().created * 1000)
    (sale,) = recent_prices.last_day(nothing_was_hired, Millis(made + 600_000))
    assert sale.hosts == 4
    assert sale.at >= made + 50_000
    day = 86_400_000
    assert recent_prices.last_day(nothing_was_hired, Millis(sale.at)) == (sale,)
    assert recent_prices.last_day(nothing_was_hired, Millis(sale.at + day - 1)) == (sale,)
    assert recent_prices.last_day(nothing_was_hired, Millis(sale.at + day)) == ()
    assert recent_prices.last_day(nothing_was_hired, Millis(sale.at - 1)) == ()


def test_runs_that_hired_nobody_or_cannot_be_read_hide_no_other(nothing_was_hired: Path) -> None:
    run = hired(nothing_was_hired, "one", 3)
    hired(nothing_was_hired, "empty")
    broken = hired(nothing_was_hired, "broken", 7)
    broken.identity_file.write_text("{")
    foreign = hired(nothing_was_hired, "foreign", 7)
    own = foreign.read_identity()
    text = own.text.replace('kind = "gpt"', 'kind = "module"').replace('module = ""', 'module = "model.py:build"')
    foreign.identity_file.write_bytes(msgspec.json.encode(msgspec.structs.replace(own, text=text)))
    assert resolve_again(foreign).spec.model.kind == "module"
    (nothing_was_hired / "nothing").mkdir()
    assert len(folder.all_runs(nothing_was_hired)) == 4
    now = Millis(round(run.read_identity().created * 1000) + 60_000)
    assert [sale.hosts for sale in recent_prices.last_day(nothing_was_hired, now)] == [4]
