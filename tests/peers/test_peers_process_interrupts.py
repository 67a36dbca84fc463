"""An interrupt is heard, whatever swallowed it and whomever it woke; while something starts it is heard after that."""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from farflung.peers.process.interrupts import InterruptHandler


@pytest.fixture
def quiet() -> Iterator[socket.socket]:
    """Nothing comes here, but after a minute, so that a test that would wait for ever fails."""
    ours, theirs = socket.socketpair()
    late = threading.Timer(60, theirs.send, (b"late",))
    late.start()
    with ours, theirs:
        yield ours
        late.cancel()
        late.join()


def swallowed() -> None:
    """Ctrl-C in a library that catches everything."""
    with contextlib.suppress(BaseException):
        signal.raise_signal(signal.SIGINT)


def elsewhere() -> None:
    """Ctrl-C comes to another thread, a little later."""

    def hear() -> None:
        time.sleep(0.2)
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)

    threading.Thread(target=hear).start()


@pytest.mark.parametrize("interrupt", [swallowed, elsewhere])
def test_an_interrupt_that_reached_nobody_ends_the_wait(quiet: socket.socket, interrupt: Callable[[], None]) -> None:
    def waiting() -> None:
        interrupts = InterruptHandler()
        with interrupts.heard():
            interrupt()
            interrupts.wait(quiet.fileno())
            pytest.fail("it waited on")

    with pytest.raises(KeyboardInterrupt):
        waiting()
    quiet.setblocking(False)
    with pytest.raises(BlockingIOError):
        quiet.recv(1)


def test_what_was_swallowed_is_raised_at_the_end() -> None:
    with pytest.raises(KeyboardInterrupt), InterruptHandler().heard():
        swallowed()


@pytest.mark.parametrize("times", [1, 2])
def test_a_start_is_not_broken_off_but_when_asked_again(times: int) -> None:
    done = []

    def starting() -> None:
        interrupts = InterruptHandler()
        with interrupts.heard():
            with interrupts.held():
                for _ in range(times):
                    signal.raise_signal(signal.SIGINT)
                done.append("started")
            done.append("went on")

    with pytest.raises(KeyboardInterrupt):
        starting()
    assert done == (["started"] if times == 1 else [])


def test_without_an_interrupt_it_waits_as_the_kernel_does_and_leaves_all_as_it_was() -> None:
    before, interrupts = signal.getsignal(signal.SIGINT), InterruptHandler()
    ours, theirs = socket.socketpair()
    with ours, theirs, interrupts.heard(), interrupts.held():
        theirs.send(b"x")
        interrupts.wait(ours.fileno())
    assert signal.getsignal(signal.SIGINT) is before
    assert signal.set_wakeup_fd(-1) == -1


def test_who_ignores_interrupts_goes_on_ignoring_them(quiet: socket.socket) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with InterruptHandler().heard():
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
