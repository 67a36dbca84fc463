"""A network of separate computers, and what a seed lets happen to them while a job trains: nobody is wronged, no money
is lost, the job ends (chaos.py). One seed is tried with all tests, a hundred by `make soak`.

A seed that fails prints its schedule, and is tried alone with `pytest -m soak tests/computers -k seed7`.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from chaos import SEEDS, World, world

from farflung.local.netlab import why_not

pytestmark = [pytest.mark.netns, pytest.mark.whole, pytest.mark.xdist_group("lab"), pytest.mark.timeout(600)]

FIRST = 1  # its schedule found a job that waited for ever


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], World]]:
    """The network as the seeds before left it; another one after a fault."""
    if why := why_not() or (None if shutil.which("cc") else "wrong clocks need a C compiler"):
        pytest.skip(why)
    stack, made = ExitStack(), list[World]()

    def current() -> World:
        if not made or made[-1].is_spoiled:
            stack.close()
            made.append(stack.enter_context(world(tmp_path_factory.mktemp("chaos"))))
        return made[-1]

    with stack:
        yield current


def suffer(worlds: Callable[[], World], seed: int) -> None:
    outcome = worlds().suffer(seed)
    print(f"\n{outcome}")
    assert not outcome.faults, str(outcome)


def test_computers_that_die_freeze_and_move_cost_nobody_money(worlds: Callable[[], World]) -> None:
    suffer(worlds, FIRST)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(1, SEEDS + 1), ids=lambda seed: f"seed{seed}")
def test_whatever_happens_to_computers_costs_nobody_money(seed: int, worlds: Callable[[], World]) -> None:
    suffer(worlds, seed)
