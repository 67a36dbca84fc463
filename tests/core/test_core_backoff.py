"""How long pauses between tries are, and when to give up."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farflung.core.backoff import Backoff
from farflung.core.errors import NetworkError, PolicyError
from farflung.core.io.retry import retry

SECONDS = st.floats(1e-3, 1e3)


@given(first=SECONDS, more=SECONDS, most=st.integers(1, 2000))
def test_pauses_begin_with_the_first_and_double_up_to_the_longest(first: float, more: float, most: int) -> None:
    backoff = Backoff(first, first + more)
    pauses = [backoff.pause(failures) for failures in range(most)]
    assert pauses[0] == first
    assert all(later == min(2 * earlier, first + more) for earlier, later in itertools.pairwise(pauses))
    assert {Backoff.every(first).pause(failures) for failures in (0, 1, most)} == {first}


class Work:
    """Fails with these errors, one a try, and then for ever with the last."""

    def __init__(self, *errors: NetworkError | PolicyError | None, seconds: float = 0.0) -> None:
        self.errors, self.seconds, self.tries = errors, seconds, 0

    async def __call__(self) -> str:
        self.tries += 1
        await asyncio.sleep(self.seconds)
        if error := self.errors[min(self.tries, len(self.errors)) - 1]:
            raise error
        return "done"


AWAY = NetworkError("FF-NET-043", "nobody there")


def passes(error: Exception) -> bool:
    return isinstance(error, NetworkError)


def test_what_passes_is_tried_again_and_anything_else_is_raised_at_once() -> None:
    heard: list[Exception] = []
    work = Work(AWAY, AWAY, None)
    said = asyncio.run(retry(work, Backoff.every(0.0), passes, on_pause=lambda error, _: heard.append(error)))
    assert (said, work.tries, heard) == ("done", 3, [AWAY, AWAY])
    work = Work(AWAY, PolicyError("FF-APP-047", "no"))
    with pytest.raises(PolicyError):
        asyncio.run(retry(work, Backoff.every(0.0), passes))
    assert work.tries == 2


def test_tries_end_with_the_patience() -> None:
    with pytest.raises(NetworkError, match="FF-NET-043"):
        asyncio.run(retry(work := Work(AWAY), Backoff.every(0.01), passes, patience=lambda: 0.05))
    assert 2 <= work.tries <= 6


def test_a_try_that_went_well_for_long_has_its_own_patience() -> None:
    work = Work(*5 * [AWAY], None, seconds=0.03)
    assert asyncio.run(retry(work, Backoff.every(0.0), passes, patience=lambda: 0.05, stood=0.01)) == "done"
    with pytest.raises(NetworkError):
        asyncio.run(retry(Work(AWAY, None, seconds=0.03), Backoff.every(0.0), passes, patience=lambda: 0.02))
