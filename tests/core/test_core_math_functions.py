"""exp, log, erf and tanh: the nearest float32 in nearly all cases, everywhere defined, the same bits everywhere."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal, localcontext
from typing import Any

import core_oracle as oracle
import numpy as np
import pytest

from farflung.core.canon import math_functions

FUNCTIONS: dict[str, tuple[Callable[[Any], Any], Callable[[float], float]]] = {
    "exp": (math_functions.exp, oracle.exp),
    "log": (math_functions.log, oracle.log),
    "erf": (math_functions.erf, math.erf),
    "tanh": (math_functions.tanh, math.tanh),
}
NAN, INF = math.nan, math.inf
TINY, LARGEST = 2.0**-149, (2.0 - 2.0**-23) * 2.0**127


def f32(*values: float) -> Any:
    return np.array(values, np.float32)


def arguments() -> Any:
    """Any bits, the usual range, and what lies about the borders of the series."""
    source = np.random.default_rng(8)
    borders = f32(
        0.25, 0.34657359, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 3.9192059, 88.722839, 103.97208, 87.336548, 10.0, 20.0
    )
    near = np.concatenate([borders.view(np.int32) + step for step in range(-3, 4)]).view(np.float32)
    return np.concatenate(
        [
            source.integers(0, 1 << 32, 6000, np.uint32).view(np.float32),
            source.standard_normal(4000).astype(np.float32) * np.float32(3),
            near,
            -near,
            np.arange(1, 64, dtype=np.int32).view(np.float32),
        ]
    )


def steps_apart(a: Any, b: Any) -> Any:
    """How many float32 lie between, across zero too."""
    ordered = [
        np.where(x.view(np.int32) < 0, -(x.view(np.int32) & 0x7FFFFFFF).astype(np.int64), x.view(np.int32))
        for x in (a, b)
    ]
    return np.abs(ordered[0] - ordered[1])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_is_within_one_step_of_the_true_value_and_mostly_the_nearest(name: str) -> None:
    ours, true = FUNCTIONS[name]
    x = arguments()
    made = ours(x)
    expected = f32(*(oracle.single(true(float(each))) if each == each else NAN for each in x))
    assert (np.isnan(made) == np.isnan(expected)).all()
    number = ~np.isnan(expected)
    away = steps_apart(made[number], expected[number])
    assert away.max() <= 1
    assert (away > 0).sum() <= 2


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        ("exp", (0.0, -0.0, INF, -INF, NAN, 89.0, -104.0, TINY), (1.0, 1.0, INF, 0.0, NAN, INF, 0.0, 1.0)),
        ("exp", (88.72283, -87.4, -103.97), (3.4027985e38, 1.1032187391e-38, TINY)),
        ("log", (0.0, -0.0, 1.0, INF, -INF, -1.0, -TINY, NAN), (-INF, -INF, 0.0, INF, NAN, NAN, NAN, NAN)),
        ("log", (TINY, LARGEST), (-103.27893, 88.72284)),
        ("erf", (0.0, -0.0, INF, -INF, NAN, 4.0, -9.0, LARGEST), (0.0, -0.0, 1.0, -1.0, NAN, 1.0, -1.0, 1.0)),
        ("erf", (TINY, -TINY), (TINY, -TINY)),
        ("tanh", (0.0, -0.0, INF, -INF, NAN, 30.0, -LARGEST), (0.0, -0.0, 1.0, -1.0, NAN, 1.0, -1.0)),
        ("tanh", (TINY, -TINY, 1e-30), (TINY, -TINY, 1e-30)),
    ],
)
def test_a_function_is_defined_for_every_argument(name: str, values: Any, expected: Any) -> None:
    made = FUNCTIONS[name][0](f32(*values))
    assert made.tolist() == pytest.approx(f32(*expected).tolist(), rel=2e-7, abs=0.0, nan_ok=True)
    assert (np.signbit(made) == np.signbit(f32(*expected)))[~np.isnan(made)].all()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_shapes_are_kept_and_arguments_are_not_written_into(name: str) -> None:
    ours = FUNCTIONS[name][0]
    x = np.arange(1, 7, dtype=np.float32).reshape(2, 3)
    before = x.copy()
    assert ours(x).shape == (2, 3)
    assert ours(x).dtype == np.float32
    assert ours(x[0, 0, None].reshape(())).shape == ()
    assert (ours(x)[:, ::2] == ours(x[:, ::2])).all()
    assert (x == before).all()


def test_a_signalling_nan_is_a_nan_and_warns_nobody() -> None:
    signalling = np.array([0x7F800001, 0xFF800001], np.uint32).view(np.float32)
    for ours, _ in FUNCTIONS.values():
        assert np.isnan(ours(signalling)).all()


def error_function(x: Decimal) -> Decimal:
    """Maclaurin's series without the factor 2/√π."""
    total = term = x
    n = 0
    while abs(term) > Decimal("1e-60"):
        n += 1
        term = -term * x * x / n
        total += term / (2 * n + 1)
    return total


def test_the_constants_are_what_they_are_called() -> None:
    with localcontext() as context:
        context.prec = 70
        ln2 = Decimal(2).ln()
        assert math.floor(ln2 * 2**40) / 2**40 == math_functions.LN2_HIGH
        assert float(ln2 - Decimal(math_functions.LN2_HIGH)) == math_functions.LN2_LOW
        assert float(1 / ln2) == math_functions.LOG2_E
        assert float(Decimal(2).sqrt()) == math_functions.ROOT_2
        pi = Decimal("3.14159265358979323846264338327950288419716939937510582097494459230781")
        factor = 2 / pi.sqrt()
        assert float(factor) == math_functions.TWO_OVER_ROOT_PI
        for row in range(6):
            c = Decimal("1.25") + Decimal("0.5") * row
            hermite = [Decimal(1), 2 * c]
            for n in range(1, 13):
                hermite.append(2 * c * hermite[n] - 2 * n * hermite[n - 1])
            taylor = [factor * error_function(c)]
            slope = factor * (-c * c).exp()
            taylor.extend(slope * (-1) ** n * hermite[n] / math.factorial(n + 1) for n in range(13))
            assert math_functions.ERF_FAR[row].tolist() == [float(each) for each in taylor]
