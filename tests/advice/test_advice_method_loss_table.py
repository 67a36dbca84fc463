"""What was measured of methods: the plan's table is that of the committed results, and lines up in a terminal.

After the runs: `FARFLUNG_BLESS=1 python -m pytest tests/advice/test_advice_method_loss_table.py` writes it from them.
"""

from __future__ import annotations

import os
import re
import statistics
import sys
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import pytest

from farflung.advice import method_loss_table
from farflung.advice.method_choice import MethodChoice, choose
from farflung.advice.method_costs import MethodSetting as On
from farflung.advice.method_costs import sync_of
from farflung.advice.method_loss_table import LossSetting, setting_of
from farflung.app.cli import plan_link
from farflung.core.tensor_layout import TensorLayout
from farflung.core.units import Seconds
from farflung.job.methods.registry import METHODS
from farflung.plan.link_syntax import parse

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "bench" / "results" / "train.jsonl"
TABLE = re.compile(r"( *# measured: begin\n)(?:.*\n)*?( *# measured: end\n)")
LAYOUT = TensorLayout.of({"a": (1024, 1024), "b": (512, 2048), "c": (1024,)})


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    """bench/train.py, whose rows these are."""
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    import train

    yield train
    for name in ("train", "reporting"):
        sys.modules.pop(name, None)


def found(bench: Any) -> dict[LossSetting, float]:
    """The table that the results give: per cent above the best dense run, to one decimal."""
    rows = bench.done(RESULTS)
    results = bench.results(rows)
    dense = [one.loss for one in results if bench.METHODS[one.name].is_alone]
    table: dict[LossSetting, float] = {}
    for one in results:
        spec = bench.spec_of(bench.Run(one.name, one.rate, bench.SEEDS[0]))
        sync = spec.sync
        is_alone = bench.METHODS[one.name].is_alone
        key = setting_of(sync_of("dense")) if is_alone else setting_of(sync)
        if is_alone and one.name != "AdamW dense":
            continue  # no method steps with Muon after each gradient
        if not is_alone and spec.optimizer.name != METHODS[sync.method].defaults["optimizer.name"]:
            continue  # the plan's table is of methods as they come
        table[key] = round(100 * (one.loss / min(dense) - 1), 1)
    return table


def bless(table: dict[LossSetting, float]) -> None:
    """Writes the table into the source."""
    path = Path(method_loss_table.__file__)
    lines = [
        f'        Setting("{k.method}", {k.steps}, "{k.codec}"): {v},\n'
        for k, v in sorted(table.items(), key=lambda one: one[1])
    ]
    text = path.read_text(encoding="utf-8")
    path.write_text(TABLE.sub(lambda m: m[1] + "".join(lines) + m[2], text), encoding="utf-8")


def test_the_table_is_that_of_the_results(bench: Any) -> None:
    if not RESULTS.exists():
        assert not method_loss_table.ABOVE, "figures without results"
        return
    wanted = found(bench)
    if os.environ.get("FARFLUNG_BLESS"):
        bless(wanted)
        return
    if list(bench.wanted(bench.done(RESULTS), [])):
        wanted = {key: wanted[key] for key in method_loss_table.ABOVE}  # runs are missing: what is told is right
    assert dict(method_loss_table.ABOVE) == wanted


def test_the_page_of_methods_shows_the_results(bench: Any) -> None:
    text = (ROOT / "docs" / "train" / "methods.md").read_text(encoding="utf-8")
    assert text.split(bench.START)[1].split(bench.END)[0].strip() == bench.page(bench.done(RESULTS))


def test_the_condition_is_that_of_the_results(bench: Any) -> None:
    if not method_loss_table.ABOVE:
        pytest.skip("nothing was measured yet")
    rows = [row for row in bench.done(RESULTS) if row["budget"] == bench.STEPS]
    parameters, peers = statistics.mode(row["parameters"] for row in rows), rows[0]["peers"]
    assert f"{parameters / 1e6:.3g} M parameters" in method_loss_table.CONDITION
    assert f"{peers} peers, {bench.STEPS:,} steps, {len(bench.SEEDS)} seeds" in method_loss_table.CONDITION


def test_a_figure_holds_for_its_setting_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    sync = sync_of("muloco", steps=20)
    monkeypatch.setattr(method_loss_table, "ABOVE", MappingProxyType({setting_of(sync): 3.2}))
    assert method_loss_table.above(sync) == 3.2
    for change in ({"steps": 30}, {"value_bits": 4}, {"codec": "topk"}, {"delay": 1}, {"fragments": 2}):
        assert method_loss_table.above(msgspec.structs.replace(sync, **change)) is None
    dgc = sync_of("dgc")
    assert setting_of(dgc) != setting_of(msgspec.structs.replace(dgc, warmup_rounds=200))


def choice(link: str, peers: int) -> MethodChoice:
    return choose(On(LAYOUT, parse(link), peers, Seconds(0.75)))


@pytest.mark.parametrize("link", ["20/100/30ms", "0.01/0.01/1s", "10000/10000/0.1ms"])
def test_the_column_lines_up_in_eighty_columns(link: str, monkeypatch: pytest.MonkeyPatch) -> None:
    on_link = choice(link, 64)
    first, *_, last = on_link.methods
    monkeypatch.setattr(
        method_loss_table, "ABOVE", MappingProxyType({setting_of(first.sync): 0.0, setting_of(last.sync): 123.4})
    )
    shown = plan_link.lines(on_link, ("sync.method=muloco",), is_measured=False)
    assert max(map(len, shown)) <= 80
    head = next(at for at, row in enumerate(shown) if row.split()[:2] == ["method", "H"])
    rows = shown[head - 1 : head + 1 + len(on_link.methods)]
    assert {len(row) for row in rows} == {80}
    assert [row.split()[-1] for row in rows] == ["loss", "%", "+0.0", *["-"] * (len(rows) - 4), "+123"]
    said = " ".join(" ".join(shown).split())
    assert method_loss_table.CONDITION in said
    assert f"Measured {first.method} H={first.sync.steps} dense fp32 +0.0 %;" in said


def test_nothing_is_said_of_loss_where_nothing_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(method_loss_table, "ABOVE", MappingProxyType({}))
    shown = plan_link.lines(choice("20/100/30ms", 8), ("sync.method=muloco",), is_measured=False)
    assert "loss" not in " ".join(shown[:20])
    assert not any(row.startswith("Measured") for row in shown)


def test_a_setting_that_was_not_measured_is_told_with_the_measured_one_that_is_most_like_it() -> None:
    dense = sync_of("muloco", steps=20)
    assert (
        method_loss_table.told(dense) == f"{method_loss_table.ABOVE[setting_of(dense)]:g} % above the best dense run's"
    )
    longer = sync_of("muloco", steps=100)
    assert method_loss_table.nearest(longer) == setting_of(dense)  # not the sparse one, whose rounds are longer
    assert method_loss_table.told(longer).startswith("not measured at these settings; muloco H=20 dense 2-bit: ")
    late = sync_of("sparse_loco", steps=10, topk=64, delay=1)
    assert f"{method_loss_table.ABOVE[setting_of(sync_of('sparse_loco', steps=20))]:g} %" in method_loss_table.told(
        late
    )
