"""Whatever becomes of the processes that judge signatures, every question is answered or refused, and rightly."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future
from threading import Event

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ledger_world import REQUESTER, STRANGER, World
from msgspec.structs import replace

from farflung.core import limits
from farflung.core.codec import encode
from farflung.core.errors import RunError
from farflung.ledger import transactions
from farflung.ledger.io.signature_pool import Answer, SignaturePool
from farflung.ledger.io.signature_worker import bitmap, flags, receive, send, serve
from farflung.ledger.mempool import CheckedTxCache

GOOD = World().sign(REQUESTER, transactions.Transfer(STRANGER.public, 5))
MIXED = [encode(GOOD), encode(replace(GOOD, signature=bytes(64))), b"", encode(GOOD) + b"\0", encode(GOOD)]
SAID = (True, False, False, False, True)
WAIT = 60


@pytest.fixture
def judges() -> Iterator[SignaturePool]:
    with SignaturePool(1) as made:
        yield made


def process_of(judges: SignaturePool) -> int:
    return judges.pids[0]


def code_of(answer: Future[Answer]) -> str:
    with pytest.raises(RunError) as caught:
        answer.result(WAIT)
    return caught.value.code


@given(st.lists(st.booleans(), max_size=40))
def test_bits_are_flags(given_flags: list[bool]):
    assert flags(bitmap(given_flags), len(given_flags)) == tuple(given_flags)


@pytest.mark.parametrize(("bits", "count"), [(b"", 1), (b"\0\0", 8), (b"\x02", 1)])
def test_bits_that_do_not_fit_are_refused(bits: bytes, count: int):
    with pytest.raises(ConnectionError):
        flags(bits, count)


def test_processes_judge_as_the_validator_would():
    with SignaturePool(2) as judges:
        answers = [judges.ask(MIXED[start:]) for start in range(len(MIXED) + 1)]
        assert [answer.result(WAIT) for answer in answers] == [SAID[start:] for start in range(len(MIXED) + 1)]
        with pytest.raises(ValueError, match="one chunk"):
            judges.ask([bytes(limits.JUDGE_BYTES)])


def test_a_process_that_was_killed_is_replaced(judges: SignaturePool):
    assert judges.ask(MIXED).result(WAIT) == SAID
    first = process_of(judges)
    os.kill(first, signal.SIGKILL)
    assert judges.ask(MIXED).result(WAIT) == SAID
    assert process_of(judges) != first


@pytest.mark.whole
def test_a_process_that_hangs_is_replaced():
    with SignaturePool(1, seconds=2) as judges:
        assert judges.ask(MIXED).result(WAIT) == SAID
        first = process_of(judges)
        os.kill(first, signal.SIGSTOP)
        assert judges.ask(MIXED).result(WAIT) == SAID
        assert process_of(judges) != first


@pytest.mark.whole
@pytest.mark.parametrize(
    "program",
    [("/nowhere/at-all",), (sys.executable, "-c", "pass"), (sys.executable, "-c", "import time; time.sleep(99)")],
)
def test_whoever_waits_is_told_that_no_process_answers(program: tuple[str, ...]):
    with SignaturePool(1, seconds=1, program=program) as judges:
        assert code_of(judges.ask(MIXED)) == "FF-LEDG-200"


def test_what_waits_is_bounded_and_fails_when_all_is_closed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "JUDGE_CHUNKS", 3)
    with SignaturePool(1) as judges:
        judges.ask(MIXED).result(WAIT)
        os.kill(process_of(judges), signal.SIGSTOP)
        taken = judges.ask(MIXED)
        while not taken.running():
            Event().wait(0.01)
        waiting = [judges.ask(MIXED) for _ in range(3)]
        with pytest.raises(RunError) as caught:
            judges.ask(MIXED)
        assert caught.value.code == "FF-LEDG-201"
        assert waiting[1].cancel()
    assert [code_of(answer) for answer in (taken, waiting[0], waiting[2])] == ["FF-LEDG-202"] * 3
    with pytest.raises(CancelledError):
        waiting[1].result(WAIT)
    with pytest.raises(RunError) as caught:
        judges.ask(MIXED)
    assert caught.value.code == "FF-LEDG-202"
    assert not judges.pids
    judges.close()


def test_a_cancelled_question_is_passed_over(judges: SignaturePool):
    judges.ask(MIXED).result(WAIT)
    os.kill(process_of(judges), signal.SIGSTOP)
    first, second, third = (judges.ask(MIXED) for _ in range(3))
    while not first.running():
        Event().wait(0.01)
    assert second.cancel()
    os.kill(process_of(judges), signal.SIGCONT)
    assert first.result(WAIT) == third.result(WAIT) == SAID


def test_a_process_ends_with_whoever_asked_and_at_what_is_no_question():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        send(ours, encode((MIXED[0], MIXED[1])))
        send(ours, b"no question")
        serve(theirs)
        assert flags(receive(ours, 1), 2) == SAID[:2]
    ours, theirs = socket.socketpair()
    ours.close()
    with theirs:
        serve(theirs)


def test_frames_that_are_too_long_are_not_read():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        send(ours, bytes(5))
        with pytest.raises(ConnectionError):
            receive(theirs, 4)


def test_an_answer_is_remembered_with_the_pool():
    verdicts = CheckedTxCache(lambda _: ("code", "asked"), most=2)
    verdicts.learn(transactions.tx_id(GOOD), GOOD)
    assert verdicts(GOOD) is None
    assert (transactions.tx_id(GOOD), GOOD.signature) in verdicts
    for nonce in range(3):
        verdicts.learn(transactions.tx_id(other := replace(GOOD, tx=replace(GOOD.tx, nonce=nonce + 9))), other)
    assert not verdicts.knows(GOOD)
