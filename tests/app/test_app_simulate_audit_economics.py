"""`farflung audit-plan`: what it names is enough when it is set, and what cannot be meant is refused."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from farflung.app.cli.main import main
from farflung.app.simulate.audit_economics import AuditAssumptions, weigh
from farflung.job.spec import JobSpec
from farflung.peers.rundir.genesis import STAKE_ROUNDS, stake_of


def told(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    main(["audit-plan", *words])
    return capsys.readouterr().out


def facts(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    said: dict[str, Any] = json.loads(told(capsys, *words, "--json"))
    return said


def test_what_is_weighed_by_default_is_what_a_local_network_stakes_and_draws(
    capsys: pytest.CaptureFixture[str],
) -> None:
    said, spec = facts(capsys), JobSpec()
    assert said["stake"] == stake_of(spec) == STAKE_ROUNDS * said["pay"]
    assert said["rate"] == pytest.approx(spec.audit.rate)
    assert (said["segments"], said["voices"], said["spare"]) == (spec.audit.segments, 2, 1)
    assert said["overhead"] == pytest.approx(spec.audit.rate / spec.audit.segments)


def test_neither_a_lie_nor_silence_pays_in_the_default_job_from_the_first_round_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    said = facts(capsys)
    assert said["lie"]["ratio"] == pytest.approx(2.1)
    assert said["silent"]["ratio"] == pytest.approx(1.1)
    assert said["unprofitable"]
    assert said["least"]["held_rounds"] == 0
    assert (said["overhead"], said["overhead_of_run"]) == pytest.approx((0.02, 0.05))
    assert "So        cheating does not pay here\n" in told(capsys)


def test_at_the_old_price_of_silence_it_would_pay(capsys: pytest.CaptureFixture[str]) -> None:
    said = facts(capsys, "--silence", "10%")
    assert said["silent"]["ratio"] == pytest.approx(0.3)
    assert not said["unprofitable"]
    assert said["least"]["withheld_permille"] == 451


@pytest.mark.parametrize("cost", ["100%", "70%", "0.123456"])
@pytest.mark.parametrize("absent", ["0", "20%"])
@pytest.mark.parametrize("rate", ["0.125", "0.07"])
def test_what_is_named_is_enough_when_it_is_set(
    cost: str, absent: str, rate: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--cost", cost, "--absent", absent)
    said = facts(capsys, *words, "--set", f"audit.rate={rate}")
    least, bounded = said["least"], said["bounded"]
    by = {
        "stake": (f"audit.rate={rate}", "--stake", _rounds(least["stake"], said["pay"])),
        "rate": (f"audit.rate={least['rate']}",),
        "bounded": (f"audit.rate={bounded['rate']}", "--stake", _rounds(bounded["stake"], said["pay"])),
    }
    if least["withheld_permille"] is not None:
        silence = str(least["withheld_permille"] / 1000)
        by["silence"] = (f"audit.rate={rate}", "--silence", silence)
    for name, (setting, *more) in by.items():
        again = facts(capsys, *words, "--set", setting, *more)
        assert again["unprofitable"], name
    assert facts(capsys, *words, "--set", f"audit.rate={bounded['rate']}")["overhead"] <= bounded["overhead"]


@pytest.mark.parametrize("bound", ["1.2345%", "0.7%", "5%"])
def test_a_bound_is_never_exceeded(bound: str, capsys: pytest.CaptureFixture[str]) -> None:
    rate = facts(capsys, "--bound", bound)["bounded"]["rate"]
    assert facts(capsys, "--set", f"audit.rate={rate}")["overhead"] <= float(bound[:-1]) / 100


def test_a_rate_that_lies_a_hair_below_four_decimals_is_enough_as_it_is_drawn() -> None:
    """Drawn in 32 bits, 0.1 is a little less: 0.1001 is named."""
    hair = Fraction(1, 10**11)
    found = weigh(
        JobSpec(), AuditAssumptions(Fraction(20), cost=11 * (Fraction(1, 10) - hair) / 2, silence=Fraction(9, 40))
    )
    assert found.rate == 0.1001


def _rounds(stake: int, pay: int) -> str:
    """Six decimals, rounded up."""
    millionths = -(-stake * 10**6 // pay)
    return f"{millionths // 10**6}.{millionths % 10**6:06d}"


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--absent", "100%"),
        ("--set", "audit.rate=0", "--set", "audit.probation=0"),
        ("--set", "audit.rate=1", "--set", "sync.steps=100", "--set", "audit.segments=64"),
        ("--set", "name=" + "n" * 60, "--set", "unit_price=0.5", "--set", "budget=9223372"),
        ("--simulate", "--absent", "30%", "--set", "network.verifiers=1"),
        ("--set", "audit.canaries=0.123456", "--set", "audit.jackpot=99"),
    ],
)
def test_an_answer_fits_80_columns(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    shown = told(capsys, *words).splitlines()
    assert max(map(len, shown)) <= 80
    (row,) = [line for line in shown if line.startswith("So ")]
    assert "pay" in row


def test_who_looks_at_nothing_is_told_that_cheating_pays(capsys: pytest.CaptureFixture[str]) -> None:
    shown = told(capsys, "--set", "audit.rate=0", "--set", "audit.probation=0")
    assert "cheating pays here\n" in shown
    assert "To catch  never: no audit convicts here" in shown
    assert facts(capsys, "--absent", "100%")["least"]["stake"] is None


@pytest.mark.parametrize(("verifiers", "worth"), [("1", 1 / 2), ("2", 1 / 4), ("3", 3 / 8), ("9", 3 / 8)])
def test_half_of_the_verifiers_absent_is_worth_so_much_of_the_audits(
    verifiers: str, worth: float, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first must look, and of two one more; of three, two."""
    network = ("--set", f"network.verifiers={verifiers}")
    half = facts(capsys, "--absent", "50%", *network)
    fewer = facts(capsys, "--set", f"audit.rate={worth / 10}", *network)
    assert half["lie"]["ratio"] == pytest.approx(fewer["lie"]["ratio"])


def test_what_an_accusation_before_a_jury_makes_good_is_half_of_what_it_costs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    shown = " ".join(told(capsys, "--stake", "30").split())
    assert "loses 30 rounds' pay, and what it made others spend is made good up to 15" in shown


@pytest.mark.whole
def test_agents_play_the_same_from_one_seed_and_others_from_another(capsys: pytest.CaptureFixture[str]) -> None:
    one, again, other = (
        facts(capsys, "--simulate", *seed)["simulated"] for seed in ((), ("--seed", "1"), ("--seed", "2"))
    )
    assert one == again
    assert one["incomes"][1]["who"] == "cheater that lies"
    assert one["incomes"] != other["incomes"]
    assert [settled["is_stable"] for settled in one["settled"]] == [False, True, False]
    assert [settled["checking"] > 0.99 for settled in one["settled"]] == [False, True, False]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--absent", "2"), "FF-APP-001"),
        (("--absent", "-1"), "FF-APP-001"),
        (("--absent", "nan"), "FF-APP-001"),
        (("--absent", "x" * 900), "FF-APP-001"),
        (("--cost", "101%"), "FF-APP-001"),
        (("--stake", "1e9"), "FF-APP-001"),
        (("--stake", "9999999"), "FF-APP-001"),
        (("--cost", "0"), "FF-VERI-096"),
        (("--bound", "0"), "FF-VERI-097"),
        (("--seed", "1"), "FF-APP-340"),
        (("--set", "audit.rate=2"), "FF-JOB-004"),
        (("no-such-job.toml",), "FF-JOB-"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_words(
    words: tuple[str, ...], code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(["audit-plan", *words])
    shown = capsys.readouterr()
    assert left.value.code == 2
    assert shown.out == ""
    assert shown.err.startswith(f"error[{code}")
    assert "  try:   " in shown.err


PAGE = Path(__file__).parents[2] / "docs" / "concepts" / "audit-plan.md"


def test_the_example_of_the_page_is_what_is_calculated(capsys: pytest.CaptureFixture[str]) -> None:
    said = facts(capsys)
    least, pay = said["least"], said["pay"]
    rate, lie, silent = (round(x, 6) for x in (said["rate"], said["lie"]["ratio"], said["silent"]["ratio"]))
    all_false, three, two, _ = (one["rounds"] for one in said["rounds_to_catch"])
    text = " ".join(PAGE.read_text(encoding="utf-8").split())
    for wanted in (
        f"{said['segments']} segments, a rate of {100 * rate:g} %,",
        f"and a stake of {said['stake'] // pay:g} rounds",
        f"| {rate} x (1 + 20) rounds' pay | {lie} times what it saves | does not pay |",
        f"| {rate} x (1 + 10) rounds' pay | {silent} times what it saves | does not pay |",
        f"| stake, in rounds' pay | 20 | {least['stake'] // pay} |",
        f"| `audit.rate` | {rate} | {least['rate']} |",
        f"| share of the stake that silence costs | 50 % | {least['withheld_permille'] / 10:g} % |",
        f"repeat {100 * said['overhead']:g} % of the training, and {100 * said['overhead_of_run']:.2g} % of a run",
        f"after {all_false} rounds with a certainty of 99 %,",
        f"in three of five after {three}, in two after {two}.",
    ):
        assert wanted in text


def test_by_default_no_stake_pays_for_a_guess_and_it_is_said_which_canaries_would(
    capsys: pytest.CaptureFixture[str],
) -> None:
    said = facts(capsys)["checking"]
    assert (said["canaries"], said["stable"]) == (0.0, False)
    assert "a verifier that guesses risks its pay, and not its stake" in " ".join(told(capsys).split())
    enough = ("--set", f"audit.canaries={said['least']}")
    fewer = ("--set", f"audit.canaries={said['least'] - 0.0002}")
    assert facts(capsys, *enough)["checking"]["stable"]
    assert not facts(capsys, *fewer)["checking"]["stable"]


def test_a_jackpot_stands_for_a_stake(capsys: pytest.CaptureFixture[str]) -> None:
    """Of so many segments' pay, where a check costs one."""
    canaries = ("--stake", "0", "--set", "audit.canaries=0.1", "--set")
    assert not facts(capsys, *canaries, "audit.jackpot=9")["checking"]["stable"]
    assert facts(capsys, *canaries, "audit.jackpot=11")["checking"]["stable"]
    none = facts(capsys, "--stake", "0", "--set", "audit.canaries=0.5")["checking"]
    assert (none["stable"], none["least"]) == (False, None)


def test_a_plan_says_how_likely_a_cheater_is_caught_in_this_job(capsys: pytest.CaptureFixture[str]) -> None:
    first, rate, rounds = 2, 0.1, 12
    said = facts(
        capsys, "--set", f"rounds={rounds}", "--set", f"audit.rate={rate}", "--set", f"audit.probation={first}"
    )
    for row in said["caught_in_job"]:
        share = row["cheated"] / said["segments"]
        once = (1 - share) ** first * (1 - rate * share) ** (rounds - first)
        assert row["chance"] == pytest.approx(1 - once, rel=1e-3)
    nothing = facts(capsys, "--set", "audit.rate=0", "--set", "audit.probation=0")["caught_in_job"]
    assert {row["chance"] for row in nothing} == {0.0}
    main(["audit-plan"])
    text = " ".join(capsys.readouterr().out.split())
    assert "each of this job's 12 rounds is caught: 100 % with 5 of 5 false" in text
    assert "stable" not in text
