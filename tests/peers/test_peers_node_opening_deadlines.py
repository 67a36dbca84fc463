"""How long a peer may take for what it owes: a slow line is no cheating, and nobody is waited for for ever."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farflung.core import limits
from farflung.core.backoff import Backoff
from farflung.core.errors import NetworkError, PolicyError
from farflung.core.ids import PeerId
from farflung.peers.node import opening_deadlines
from farflung.peers.node.opening_deadlines import OpeningDeadlines, WithheldError, allowance

ME, PEER = PeerId(b"m" * 32), PeerId(b"p" * 32)


async def _nobody(_peer: PeerId) -> object:
    raise opening_deadlines.RemoteError("FF-STOR-003", "no such object")  # the requester answers: the line is fine


def _debts() -> OpeningDeadlines:
    return OpeningDeadlines(ME, _nobody)  # type: ignore[arg-type]


@given(st.integers(0, 1 << 50), st.integers(0, 1 << 50))
def test_more_bytes_never_give_less_time_and_never_more_than_the_longest(one: int, other: int) -> None:
    less, more = sorted((one, other))
    assert opening_deadlines.WITHHOLD_SECONDS <= allowance(less) <= allowance(more) <= limits.OWED_SECONDS


def test_a_home_of_one_mbit_has_the_time_that_its_line_takes() -> None:
    state = 100_000_000
    assert allowance(state) == pytest.approx(opening_deadlines.WITHHOLD_SECONDS + state * 8 / 1e6)


@pytest.mark.parametrize(("size", "is_enough"), [(10**7, True), (0, False)])
def test_a_state_that_takes_longer_than_a_word_is_withheld_only_if_it_is_small(
    size: int, is_enough: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening_deadlines, "WITHHOLD_SECONDS", 0.1)

    async def ask() -> bytes:
        await asyncio.sleep(0.5)
        return b"state"

    async def run() -> bytes:
        return await _debts().paid(PEER, ask, size)

    if is_enough:
        assert asyncio.run(run()) == b"state"
    else:
        with pytest.raises(WithheldError):
            asyncio.run(run())


def test_a_peer_that_serves_nothing_has_withheld_when_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it says of its line: it is asked again, and the time does not begin anew."""
    monkeypatch.setattr(opening_deadlines, "WITHHOLD_SECONDS", 0.1)
    monkeypatch.setattr(opening_deadlines, "REDIAL", Backoff.every(0.01))
    monkeypatch.setattr(limits, "OWED_SECONDS", 0.3)
    tries = []

    async def ask() -> bytes:
        tries.append(1)
        raise NetworkError("FF-NET-043", "my line is slow")

    async def run() -> None:
        async with asyncio.timeout(30):
            await _debts().paid(PEER, ask, 1 << 40)

    with pytest.raises(WithheldError):
        asyncio.run(run())
    assert len(tries) > 1


def test_a_refusal_of_ones_own_is_no_debt() -> None:
    async def ask() -> bytes:
        raise PolicyError("FF-APP-047", "nobody has said where it is")

    with pytest.raises(PolicyError):
        asyncio.run(_debts().paid(PEER, ask, 0))
