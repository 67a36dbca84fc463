"""The pictures of the training benchmark: drawn from its rows alone, readable, and asking nobody for anything."""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

ROOT = Path(__file__).resolve().parents[2]
SVG = "{http://www.w3.org/2000/svg}"
PARAMETERS, STEPS = 1_000_000, 2000

LOSSES = {
    "AdamW dense": (1.75, 4 * PARAMETERS * STEPS, STEPS),
    "Muon dense": (1.67, 4 * PARAMETERS * STEPS, STEPS),
    "MuLoCo, H 12, 2-bit": (1.72, 43_000_000, 166),
    "MuLoCo, H 20, 2-bit": (1.73, 26_000_000, 100),
    "MuLoCo, H 30, top 256": (1.80, 4_200_000, 66),
    "SparseLoCo, H 20, top 64": (1.90, 2_000_000, 100),
    "DiLoCo, H 20, fp32": (1.83, 400_000_000, 100),
    "LocalSGD, H 20, fp32": (1.79, 400_000_000, 100),
    "DGC, 0.1 %": (3.1, 40_000_000, STEPS),
    "DeMo, top 32": (1.93, 80_000_000, STEPS),
    "PowerSGD, rank 4": (1.81, 440_000_000, STEPS),
}


@pytest.fixture(scope="module")
def curves() -> Iterator[Any]:
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        import curves

        yield curves
    finally:
        sys.path.remove(str(ROOT / "tools"))
        for name in ("curves", "pieces"):
            sys.modules.pop(name, None)


def row(name: str, seed: int, budget: int = STEPS, rate: float = 1e-3, worse: float = 0.0) -> dict[str, Any]:
    loss, sent, rounds = LOSSES[name]
    part = budget / STEPS
    curve = [(budget * i // 10, int(sent * part * i / 10), loss + 1.0 / i) for i in range(1, 11)]
    return {
        "method": name, "rate": rate, "seed": seed, "budget": budget, "steps": budget, "peers": 4,
        "parameters": PARAMETERS, "tokens": budget * 512, "loss": loss + worse + 0.01 * seed, "curve": curve,
        "payload_bytes": int(sent * part), "rounds": int(rounds * part),
    }  # fmt: skip


def rows(*names: str) -> list[dict[str, Any]]:
    tuning = [row(n, 1, 600, rate, worse) for n in names for rate, worse in ((1e-3, 0.5), (2e-3, 0.9))]
    return [*tuning, *(row(n, seed) for n in names for seed in (1, 2, 3))]


def words(picture: str) -> list[str]:
    return ["".join(node.itertext()) for node in ET.fromstring(picture).iter(f"{SVG}text")]


def test_a_method_is_told_by_its_whole_runs_and_the_front_by_what_nothing_undercuts(curves: Any) -> None:
    found = {m.name: m for m in curves.methods(rows(*LOSSES))}
    assert list(found) == list(LOSSES)
    assert found["MuLoCo, H 20, 2-bit"].losses == pytest.approx((1.74, 1.75, 1.76))
    assert found["MuLoCo, H 20, 2-bit"].loss == pytest.approx(1.75)
    assert {m.name: m.kind for m in found.values()} == {
        name: "dense" if "dense" in name else "step" if LOSSES[name][2] == STEPS else "local" for name in LOSSES
    }
    assert [m.name for m in curves.front(list(found.values()))] == [
        "SparseLoCo, H 20, top 64", "MuLoCo, H 30, top 256", "MuLoCo, H 20, 2-bit", "MuLoCo, H 12, 2-bit",
        "Muon dense",
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["bytes_picture", "tokens_picture"])
def test_a_picture_names_every_method_in_words_in_both_themes_and_asks_nobody(curves: Any, name: str) -> None:
    given_rows = rows(*LOSSES)
    picture = getattr(curves, name)(curves.methods(given_rows), curves.about(given_rows))
    root = ET.fromstring(picture)
    shown = words(picture)
    for method in LOSSES:
        assert any(text.startswith(method) for text in shown), method
    told = root.find(f"{SVG}desc")
    assert told is not None
    assert "3 seeds" in str(told.text)
    assert "DeMo, top 32: 1.950 nats at 80 MB." in str(told.text)
    assert "prefers-color-scheme: dark" in picture
    assert set(re.findall(r"https?://[^\s\"'<)]+", picture)) == {SVG.strip("{}")}
    assert not re.search(r"<(script|image|foreignObject)\b|@import|nan|inf", picture)


def test_what_ends_beyond_the_top_is_marked_there_and_told(curves: Any) -> None:
    picture = curves.bytes_picture(curves.methods(rows(*LOSSES)), "")
    assert "DGC, 0.1 %: 3.12, beyond the top" in words(picture)


@pytest.mark.parametrize("names", [["MuLoCo, H 12, 2-bit"], ["AdamW dense"], ["DGC, 0.1 %", "DeMo, top 32"]])
def test_a_file_that_is_not_complete_is_drawn_all_the_same(curves: Any, names: list[str]) -> None:
    for some in (rows(*names), [row(names[0], 1, 600)]):
        found = curves.methods(some)
        for draw in (curves.bytes_picture, curves.tokens_picture):
            ET.fromstring(draw(found, curves.about(some)))


def test_names_do_not_cover_each_other(curves: Any) -> None:
    from pieces import LETTER, Box, places

    points = [(120.0 + 50 * (i % 6), 150.0 + 25 * (i // 3)) for i in range(12)]
    boxes = places(points, [LETTER * 16] * 12, [Box(60, 60, 200, 90)])
    assert all(a.meets(b) == 0 for a, b in combinations(boxes, 2))


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.floats(0, 400), min_size=1, max_size=20))
def test_names_in_a_column_stand_apart_in_their_order(curves: Any, wanted: list[float]) -> None:
    from pieces import apart

    found = apart(wanted, 15, 0, 400)
    pairs = sorted(zip(wanted, found, strict=True))
    for (_, above), (_, below) in pairwise(pairs):
        assert abs(below - above) >= 14
    assert all(-1e-6 <= y <= 400 + 1e-6 for y in found)
