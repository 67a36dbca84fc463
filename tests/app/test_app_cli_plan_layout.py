"""`farflung plan --layout`: the formulas of parallel training, asked as a person asks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from farflung.advice.traffic import article_figures, goodput, packet_overhead
from farflung.advice.traffic.collectives import RankSpan
from farflung.advice.traffic.local_step_methods import averaged
from farflung.app.cli.run import plan
from farflung.core.errors import UsageError

ARTICLE = "layers=80,hidden=8192,params=70e9,sequence=428,batch=2048,tokens=156e9"  # 427.87 tokens a sample there
RING = {figure.name: figure.value for figure in article_figures.figures()}


def said(layout: str, *words: str) -> str:
    return CliRunner().invoke(plan, ["--layout", layout, *words], catch_exceptions=False).output


def facts(layout: str, *words: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(said(layout, *words, "--json"))
    return found


@pytest.mark.parametrize(
    ("ways", "phase", "figure"),
    [
        ("dp=8", "backward", "data parallel, backward"),
        ("dp=8,zero=3", "forward", "fully sharded, forward"),
        ("dp=8,zero=3", "backward", "fully sharded, backward"),
        ("tp=8", "forward", "tensor parallel, forward"),
        ("tp=8", "backward", "tensor parallel, backward"),
        ("pp=8", "forward", "pipeline, forward"),
        ("pp=8", "backward", "pipeline, backward"),
    ],
)
def test_an_epoch_of_the_article_is_what_its_rings_move(ways: str, phase: str, figure: str) -> None:
    epoch = facts(f"{ways},{ARTICLE}")["epoch"]
    assert epoch[phase]["total"] / 1e15 == pytest.approx(RING[figure], rel=1e-3)


def test_1024_cards_of_the_article_send_what_its_groups_do_and_most_of_it_inside_nodes() -> None:
    epoch = facts(f"dp=16,tp=8,pp=8,node=8,sp=1,{ARTICLE}")["epoch"]
    between = sum(one["between_nodes"] for one in epoch.values())
    assert between == pytest.approx(article_figures.mixed()[1], rel=1e-3)


def test_a_terminal_shows_each_kind_its_waits_and_the_fullest_card() -> None:
    shown = said("model=llama3-70b,dp=4,tp=8,pp=4,batch=64,tokens=1e9", "--link", "10000/10000/1ms")
    assert "128 cards: 4 data x 8 tensor x 4 pipeline; 70.6 B parameters" in shown
    for word in ("data parallel", "tensor parallel", "pipeline", "together", "forward", "Epoch", "Link", "Memory"):
        assert word in shown
    assert "stages stand idle 15.8 %" in " ".join(shown.split())  # 3 of 3 + 16
    assert max(map(len, shown.splitlines())) <= 80
    assert "Li et al. 2020" in said("dp=4", "--explain")


def test_context_and_experts_have_rows_of_their_own() -> None:
    found = facts("model=mixtral-8x7b,dp=8,ep=8,cp=2,sequence=8192")
    assert set(found["step"]) == {"data parallel", "context parallel", "expert parallel"}
    assert found["cards"] == 16


def test_replicas_that_exchange_rarely_send_what_that_method_does() -> None:
    found = facts("dp=8,layers=10,hidden=1024,params=1e9,every=100,bits=8")
    wanted = averaged(1e9, RankSpan(8), 100, 8.0).expected
    assert found["step"]["data parallel"]["update"]["total"] == pytest.approx(wanted.total)
    assert found["memory_bytes"] is None  # parameters alone say nothing of activations


def test_seconds_are_of_what_headers_and_lost_packets_leave_of_a_line() -> None:
    even, lossy = (facts(f"dp=2,{ARTICLE}{more}", "--link", "100/100/30ms") for more in ("", ",loss=0.01"))
    up, messages = even["together"]["up"], even["together"]["messages"]
    trip = 0.03 * messages
    assert even["seconds_a_step"] == pytest.approx(8 * up / packet_overhead.payload_rate(100e6) + trip)
    assert lossy["seconds_a_step"] == pytest.approx(8 * up / goodput.goodput(100e6, 0.03, 0.01) + trip)


def test_a_jobs_own_model_and_data_are_what_is_planned(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("to be or not to be, " * 1000)
    (tmp_path / "job.toml").write_text('name = "x"\nbatch = 4\n[data]\npath = "text.txt"\n[model]\nlayers = 8\n')
    found = facts("dp=2,pp=4", str(tmp_path / "job.toml"))
    assert (found["batch"], found["cards"]) == (8, 8)
    assert found["epoch_steps"] > 1


@pytest.mark.parametrize(
    ("layout", "code", "words"),
    [
        ("dp", "FF-PLAN-063", "NAME=VALUE"),
        ("dp=8,dp=4", "FF-PLAN-063", "twice"),
        ("dp=many", "FF-PLAN-063", "no number"),
        ("dq=8", "FF-PLAN-064", "did you mean dp?"),
        ("model=lama3-70b", "FF-PLAN-064", "did you mean llama3-70b?"),
        ("pp=3", "FF-PLAN-023", "layers = 4"),
        ("dp=8,batch=9", "FF-PLAN-023", "batch = 9"),
        ("dp=2,ep=4", "FF-PLAN-023", "expert = 4"),
        ("dp=0", "FF-PLAN-020", "data"),
        ("dp=1.5", "FF-PLAN-020", "dp"),
        ("dp=8,zero=1,every=5", "FF-PLAN-020", "every"),
        ("dp=2,recompute=some", "FF-PLAN-026", "selective"),
        ("dp=2,loss=1", "FF-PLAN-021", "loss"),
    ],
)
def test_a_layout_that_cannot_be_is_refused_with_what_would(layout: str, code: str, words: str) -> None:
    with pytest.raises(UsageError) as error:
        said(layout)
    assert error.value.code == code
    assert words in f"{error.value.message} {error.value.cause} {error.value.hint}"


def test_a_module_of_ones_own_has_no_sizes_to_cut(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("def model(): ...\n")
    (tmp_path / "job.toml").write_text('name = "x"\n[model]\nkind = "module"\nmodule = "own.py:model"\n')
    with pytest.raises(UsageError, match="FF-PLAN-065"):
        said("dp=8", str(tmp_path / "job.toml"))
