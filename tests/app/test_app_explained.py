"""`farflung plan --offers --explain`: each line that is a formula multiplies out to the value before it."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from farflung.app.cli.run import plan

pytestmark = pytest.mark.whole

EXAMPLES = Path(__file__).parents[2] / "examples" / "offers"
MIDDLE = {"layers": 12, "width": 768, "heads": 12, "context": 512}
LARGE = {"layers": 32, "width": 4096, "heads": 32, "context": 1024}
LAN = """
[[host]]
name = "h{at}"
card = "RTX 4080"
cards = {cards}
link = "10000/10000/1ms"
price = "0.2"
cores = 32
memory_gb = 512
lanes = 16
"""
UNITS = {
    "": 1.0, "k": 1e3, "M": 1e6, "B": 1e9, "s": 1.0, "ms": 1e-3, "us": 1e-6, "min": 60.0, "h": 3600.0, "kB": 1e3,
    "MB": 1e6, "GB": 1e9, "TB": 1e12, "kbit/s": 1e3, "Mbit/s": 1e6, "Gbit/s": 1e9, "GB/s": 1e9, "TFLOP/s": 1e12,
    "MFLOP": 1e6, "BFLOP": 1e9, "GFLOP": 1e9, "TFLOP": 1e12, "PFLOP": 1e15, "EFLOP": 1e18, "credits": 1.0, "%": 0.01,
}  # fmt: skip
NUMBER = re.compile(r"(?<![\w.])((?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:e[+-]?\d+)?) ?([A-Za-z%]+(?:/s)?)?")
WORDS = (" a micro-batch", " alive", "x 1 = 1")
EQUATIONS = ("method", "fragments", "checkpoint interval")  # begin with a number or a bracket, and are words or solved
# What no line of a way may leave out.
SHOWN = {
    "rounds": {"compute of a step", "forward and backward", "optimizer", "exchange of a round", "a step of a round",
               "work that counts", "all steps", "price", "weights"},
    "one host alone": {"compute of a step", "forward and backward", "work that counts", "all steps", "price"},
    "data parallel": {"gradients", "waiting of a step", "all steps", "price"},
    "sharded": {"parameters and gradients", "waiting of a step", "all steps", "price"},
    "pipeline": {"a step", "optimizer", "activations", "work that counts", "all steps", "price"},
    "pipelines": {"a step", "exchange of a round", "a step of a round", "work that counts", "all steps", "price"},
}  # fmt: skip


def worked(text: str) -> float | None:
    """What an expression with units comes to; None for words."""
    for word in WORDS:
        text = text.replace(word, "")
    text = re.sub(r"([\d.]+) B x", r"\1 x", text)  # bytes, before a count that may be of billions
    unknown: list[str] = []

    def number(found: re.Match[str]) -> str:
        unit = found[2] or ""
        if unit and unit not in UNITS and unit not in ("x", "exp", "max"):
            unknown.append(unit)
        value = float(found[1].replace(",", "")) * UNITS.get(unit, 1.0)
        return f" {value!r} {unit if unit in ('x', 'exp', 'max') else ''}"

    plain = re.sub(r"(\d) h (\d+) min", lambda m: f"{int(m[1]) + int(m[2]) / 60} h", text)
    plain = re.sub(r"(\d+) min (\d+) s", lambda m: f"{int(m[1]) * 60 + int(m[2])} s", plain)
    code = NUMBER.sub(number, plain).replace(" x ", " * ")
    if unknown or re.search(r"[A-Za-z]{2,}", re.sub(r"\b(exp|max)\b|\d+\.?\d*e[+-]?\d+", "", code)):
        return None
    try:
        return float(eval(code, {"__builtins__": {}}, {"exp": math.exp, "max": max}))
    except (SyntaxError, NameError):
        return None


def told(file: Path, model: dict[str, int], *more: str) -> list[dict[str, object]]:
    words = [word for key, value in model.items() for word in ("--set", f"model.{key}={value}")]
    done = CliRunner().invoke(plan, ["--offers", str(file), *words, *more, "--json"], catch_exceptions=False)
    found = json.loads(done.stdout)
    return [*found["best"], *found["dropped"]]


def lan(folder: Path, count: int, cards: int) -> Path:
    file = folder / f"lan{cards}.toml"
    file.write_text("".join(LAN.format(at=at, cards=cards) for at in range(count)))
    return file


@pytest.mark.parametrize("case", ["measured", "six", "large", "lan", "two cards", "adam in RAM"])
def test_every_formula_multiplies_out_to_its_value(case: str, tmp_path: Path) -> None:
    ways = {
        "measured": lambda: told(EXAMPLES / "measured.toml", MIDDLE, "--rounds", "500"),
        "six": lambda: told(EXAMPLES / "six_hosts.toml", MIDDLE, "--rounds", "500"),
        "large": lambda: told(EXAMPLES / "six_hosts.toml", LARGE),
        "lan": lambda: told(lan(tmp_path, 4, 1), MIDDLE | {"context": 1024}, "--rounds", "500"),
        "two cards": lambda: told(lan(tmp_path, 4, 2), MIDDLE | {"context": 1024}, "--rounds", "500"),
        "adam in RAM": lambda: told(
            lan(tmp_path, 4, 1), MIDDLE | {"layers": 24, "width": 2048, "heads": 16}, "--set", "sync.method=diloco"
        ),
    }[case]()
    assert ways
    for way in ways:
        held = set()
        for fact in way["facts"]:  # type: ignore[attr-defined]
            value, formula = worked(fact["value"]), worked(fact["formula"].split(";")[0])
            if value is None or formula is None:
                assert not re.match(r"[\d(]", fact["formula"]) or fact["name"] in EQUATIONS, fact
                continue
            assert value == pytest.approx(formula, rel=0.02, abs=2e-4), fact
            held.add(fact["name"])
        assert SHOWN[str(way["kind"])] <= held, SHOWN[str(way["kind"])] - held
