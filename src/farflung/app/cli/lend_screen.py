"""Shows a node that lends to its owner: a line a step with its seconds, then jobs, rounds, pay. Keeps the journal."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import textwrap
import time
from collections.abc import Awaitable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from farflung.core.errors import FarflungError
from farflung.core.events import WarningEvent, from_json
from farflung.core.money import format_credits
from farflung.core.units import Seconds, format_seconds
from farflung.peers.node import home as homes
from farflung.peers.process.channel import Report

T = TypeVar("T")
SILENT: Final = ("bytes", "usage", "way", "worker", "ready")
WIDTH: Final = 79
_CLOCK_AT: Final = 70


class StepLines:
    """Lines for people on standard output, or objects for programs; on a terminal a step that is waited for counts."""

    def __init__(self, *, as_json: bool, slot: int = 0) -> None:
        """`slot`: whose lines these are, where several are shown; 0: there is one."""
        self._as_json, self._slot = as_json, slot
        self._counts = sys.stdout.isatty() and not as_json

    def say(self, name: str, text: str, /, **facts: Any) -> None:
        """One line: a word and what there is to say of it."""
        facts |= {"slot": self._slot} if self._slot else {}
        name_shown = f"{self._slot} {name}" if self._slot else name
        shown = msgspec.json.encode({"kind": name, **facts}).decode() if self._as_json else _wrapped(name_shown, text)
        with contextlib.suppress(OSError, ValueError):  # the terminal is gone: the node goes on to its round's end
            sys.stdout.write(f"{shown}\n")
            sys.stdout.flush()

    def of_slot(self, slot: int) -> StepLines:
        """The lines of one of several nodes, each marked with its number."""
        return StepLines(as_json=self._as_json, slot=slot)

    async def wait(self, name: str, text: str, work: Awaitable[T]) -> tuple[T, float]:
        """What is waited for, and for how many seconds."""
        began = time.monotonic()
        counting = asyncio.ensure_future(self._count(name, text, began)) if self._counts else None
        try:
            return await work, time.monotonic() - began
        finally:
            if counting is not None:
                counting.cancel()
                sys.stdout.write("\r\033[K")

    async def _count(self, name: str, text: str, began: float) -> None:
        while True:
            seconds = f"{time.monotonic() - began:.0f} s"
            sys.stdout.write(f"\r{name:<9} {text} ...".ljust(_CLOCK_AT) + seconds)
            sys.stdout.flush()
            await asyncio.sleep(0.5)


def _wrapped(name: str, text: str) -> str:
    """A word and its text; what does not fit goes on below it."""
    head = f"{name:<9} "
    if len(text) <= WIDTH - len(head):
        return head + text  # with its columns as they are
    return textwrap.fill(text, WIDTH, initial_indent=head, subsequent_indent=" " * len(head))


def with_clock(text: str, seconds: float) -> str:
    """A step's line ends with what it took."""
    return text[: _CLOCK_AT - 11].ljust(_CLOCK_AT - 10) + format_seconds(Seconds(seconds))


class LendChannel:
    """Who started the node is a person: orders come by signals and commands, reports become lines."""

    def __init__(self, home: Path, lines: StepLines) -> None:
        self.home, self.lines = home, lines
        self._orders: asyncio.Queue[Report | None] = asyncio.Queue()
        self._began = time.monotonic()
        self._round_at = self._began
        self._paid: dict[str, int] = {}
        self._waits: dict[str, tuple[bool, int]] = {}  # of each job that is left
        self._is_ending = self._leaves = False
        self.state, self.job, self.round = "starting", "", -1
        self.warning = ""

    def report(self, kind: str, **facts: Any) -> None:
        """A line, and for jobs and pay one in the journal."""
        if kind in SILENT:
            return
        match kind:
            case "registered":
                self._say("ledger", with_clock("registered", time.monotonic() - self._began))
                self._wait()
            case "lease":
                self.state, self.job, self.round = "working", facts["job"], -1
                self._round_at = time.monotonic()
                self._note(kind, facts)
                price = format_credits(facts["price"])
                text = f"{self._short} taken at {price} credits a token, of {facts['requester'][:8]}"
                self._say("job", text, **facts)
            case "round":
                now = time.monotonic()
                self.round, took, self._round_at = facts["round"], now - self._round_at, now
                word = "checked" if homes.is_verifier(self.home) else "round"
                text = f"{'round ' if word == 'checked' else ''}{facts['round']} of job {facts['job'][:8]}"
                self._say(word, with_clock(text, took), **facts)
            case "pay":
                self._pay(facts)
            case "sent":
                self._note(kind, facts)
                text = f"{format_credits(facts['amount'])} credits to your account {facts['owner'][:8]}"
                self._say("sent", text, **facts)
            case "lease_end":
                self._note(kind, facts)
                self._say("job", f"{facts['job'][:8]} is over: {facts['reason']}", **facts)
                self.job = ""
                self._wait()
            case "warning":
                self.warning = f"{facts['code']} {facts['message']}"
                self._note(kind, facts)
                self._say("warning", self.warning, **facts)
            case "event":
                event = from_json(str(facts["event"]))
                if isinstance(event, WarningEvent):
                    self.report("warning", code=event.code, message=event.message)
            case "note":
                sys.stderr.write(f"{facts['text']}\n")
            case "owed":
                text = f"of round {facts['round']} are not over: stays for them, an hour at most; again: now"
                self._say("audits", text, **facts)
            case "leaving":
                self._leaving(facts)
            case "finished":
                self._orders.put_nowait({"do": "leave"} if self._leaves else None)
            case "left" | "stayed":
                text = "the stake is back in your account" if kind == "left" else f"the stake stays: {facts['why']}"
                self._note(kind, facts)
                self._say("ledger", text, **facts)
                self._orders.put_nowait(None)

    @property
    def _short(self) -> str:
        return self.job[:8]

    def _wait(self) -> None:
        if self.state not in ("paused", "ending"):
            self.state = "waiting"
            self._say("waiting", "for work; Ctrl-C ends after the open round")

    def _pay(self, facts: Report) -> None:
        job, before = facts["job"], self._paid.get(facts["job"], 0)
        self._paid[job] = facts["paid"]
        self._note("pay", facts)
        if facts["paid"] > before:
            self._say("paid", f"{format_credits(facts['paid'] - before)} credits for job {job[:8]}", **facts)
        else:
            self._say("earned", f"{format_credits(facts['owed'])} credits so far in job {job[:8]}", **facts)

    def _leaving(self, facts: Report) -> None:
        """A line whenever what is waited for has changed, with a clock."""
        job, self.state = facts["job"][:8], "leaving"
        waits = (facts["is_recorded"], facts["recorded"])
        if self._waits.get(job) == waits:
            return
        self._waits[job] = waits
        if facts["is_recorded"]:
            at = time.strftime("%H:%M", time.localtime(time.time() + facts["seconds"]))
            text = f"job {job}: stake free at {at}, in {format_seconds(Seconds(facts['seconds']))}"
        else:
            text = f"job {job}: waits for round {facts['last']}, {facts['recorded']} are recorded"
        self._say("leaving", f"{text}; Ctrl-C: ends now", **facts)

    def _say(self, name: str, text: str, /, **facts: Any) -> None:
        self.lines.say(name, text, **facts)

    def _note(self, kind: str, facts: Report) -> None:
        homes.note(self.home, {"time": int(time.time()), "kind": kind, **facts})

    async def next(self) -> Report | None:
        """The next order."""
        return await self._orders.get()

    async def answer(self, order: dict[str, Any]) -> dict[str, Any]:
        """What the owner's other commands ask for."""
        match order.get("do"):
            case "pause":
                self.state = "paused"
                self._say("paused", "after the open round, until: farflung lend resume")
                self._orders.put_nowait({"do": "close", "why": "its owner paused it"})
            case "resume":
                self._orders.put_nowait({"do": "open"})
                self.state = "working" if self.job else "waiting"
                self._say(self.state, "on" if self.job else "for work; Ctrl-C ends after the open round")
            case "leave":
                self.finish(leaves=True)
            case "status":
                pass
            case _:
                return {"error": "the node does not know that order"}
        up = int(time.monotonic() - self._began)
        paid = sum(self._paid.values())
        at = {"job": self.job, "round": self.round, "paid": paid, "warning": self.warning}
        return {"state": self.state, "pid": os.getpid(), "seconds": up, **at}

    def finish(self, *, leaves: bool = False) -> None:
        """No new job; the open round is finished, what is owed of it is served, then the node ends."""
        self._leaves |= leaves
        if not self._is_ending:
            self._is_ending, self.state = True, "ending"
            self._say("ending", "after the open round; again: now")
            self._orders.put_nowait({"do": "finish", "why": "its owner ends it", "leaves": self._leaves})

    def interrupt(self, task: asyncio.Future[None]) -> None:
        """A first signal lets the round finish, a second one, or one before the start is over, ends the work now."""
        if self._is_ending or self.state == "starting":
            task.cancel()
        self.finish()

    def fail(self, error: FarflungError) -> None:
        """The error's lines."""
        sys.stderr.write("".join(f"{line}\n" for line in error.lines()))


async def run_nodes(channels: Sequence[LendChannel], works: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Does the work of all nodes to its end; signals are for all of them, and the error of one ends the others."""
    tasks = [asyncio.ensure_future(work) for work in works]

    def end() -> None:
        for channel, task in zip(channels, tasks, strict=True):
            channel.interrupt(task)

    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as behind nohup
        numbers.append(signal.SIGHUP)
    for number in numbers:
        asyncio.get_running_loop().add_signal_handler(number, end)
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
    for error in ended:
        if isinstance(error, BaseException) and not isinstance(error, asyncio.CancelledError):
            raise error
