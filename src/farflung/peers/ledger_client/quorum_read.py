"""Queries several validators as if they were one; fails over from any that hangs, errs or lies.

What is asked is asked of as many as must say alike: one, where the answer proves itself, f + 1 of a committee with f
Byzantine seats where it does not, since one of so many is honest. An answer that its reader refuses counts as none.
The same bytes go to each, however often: what is signed is signed once (ledger_client).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Final, Generic, TypeVar

from farflung.core.backoff import Backoff
from farflung.core.errors import FarflungError, NetworkError, ProtocolError, RunError, VerificationError
from farflung.core.io.retry import retry
from farflung.net.io.connection import Connection
from farflung.net.messages import RemoteError

QUERY: Final = "ledger.query"
PATIENCE_SECONDS: Final = 10.0  # for a validator that is started again
ANSWER_SECONDS: Final = 5.0  # for one of several, before another one is asked as well
ALONE_SECONDS: Final = 30.0  # for the only one
PAUSES: Final = Backoff(0.05, 0.5)  # between two tries

Reach = Callable[[], Awaitable[Connection]]
# Hears once of an answer that is waited for longer than PATIENCE_SECONDS (False), and when it is there (True): seconds.
Waited = Callable[[float, bool], None]
T = TypeVar("T")


class NotYetError(NetworkError):
    """A validator says that it cannot take a transaction now: it may a little later."""


class QuorumReader:
    """The validators that one process knows. What stands is asked first; who failed is asked last."""

    def __init__(
        self,
        reaches: Sequence[Reach],
        patience: float = PATIENCE_SECONDS,
        answer: float = ANSWER_SECONDS,
        waited: Waited = lambda _seconds, _is_over: None,
    ) -> None:
        """`patience`: seconds for which all are asked again; `answer`: for which one of several is waited for."""
        self._reaches, self._patience, self._waited = tuple(reaches), patience, waited
        self._seconds = answer if len(self._reaches) > 1 else ALONE_SECONDS
        self._order = list(range(len(self._reaches)))

    def __len__(self) -> int:
        return len(self._reaches)

    async def agreed(self, body: bytes, read: Callable[[bytes], T], need: int = 1) -> T:
        """What `need` validators say alike, of all that `read` takes.

        `read` raises ProtocolError or VerificationError for what is no answer, RunError for a refusal. Raises the last
        error when nobody can be reached for `patience` seconds, and at once when all answered and none was trusted.
        """
        loop = asyncio.get_running_loop()
        began, is_told = loop.time(), False

        async def ask() -> T:
            count = _QuorumQuery(self, body, read, min(need, len(self)))
            if not await count.taken():
                raise count.error
            return count.value

        def wait(_error: FarflungError, waited: float) -> None:
            nonlocal is_told
            if not is_told and waited > PATIENCE_SECONDS:
                is_told = True
                self._waited(waited, False)

        value = await retry(ask, PAUSES, _may_pass, patience=lambda: self._patience, on_pause=wait)
        if is_told:
            self._waited(loop.time() - began, True)
        return value

    def order(self) -> Iterator[int]:
        """Places of the validators, in the order in which they are asked."""
        return iter(tuple(self._order))

    def blame(self, place: int) -> None:
        """It did not answer, or not well: from now on it is asked last."""
        self._order.remove(place)
        self._order.append(place)

    async def call(self, place: int, body: bytes) -> bytes:
        """One validator's reply, within the time that it has. Raises NetworkError, RemoteError."""
        try:
            async with asyncio.timeout(self._seconds):
                connection = await self._reaches[place]()
        except TimeoutError:
            raise NetworkError(
                "FF-APP-290",
                "a validator does not answer",
                cause=f"it let nobody in for {self._seconds:g} s",
                hint="another one is asked; start this one again if it is yours",
            ) from None
        return await connection.call(QUERY, body, timeout=self._seconds)


def _may_pass(error: FarflungError) -> bool:
    """Whether asking again may help: not where somebody answered, and wrongly."""
    return isinstance(error, NetworkError) and not isinstance(error, RemoteError | ProtocolError)


class _QuorumQuery(Generic[T]):
    """One question, put to one validator after the other until enough of them say alike."""

    def __init__(self, panel: QuorumReader, body: bytes, read: Callable[[bytes], T], need: int) -> None:
        self._panel, self._body, self._read, self._need = panel, body, read, need
        self._left = panel.order()
        self._asked: dict[asyncio.Task[bytes], int] = {}
        self._said: list[tuple[T, int]] = []  # what was said, by how many
        self._errors: list[FarflungError] = []

    @property
    def value(self) -> T:
        """What was said last: after `taken`, what enough said."""
        return self._said[-1][0]

    async def taken(self) -> bool:
        """Asks until `value` was said often enough (True), or everybody was asked."""
        for _ in range(self._need):
            self._ask_another()
        try:
            while self._asked:
                done, _ = await asyncio.wait(self._asked, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    if self._hear(task):
                        return True
        finally:
            for task in self._asked:
                task.cancel()
            await asyncio.gather(*self._asked, return_exceptions=True)
        return False

    @property
    def error(self) -> FarflungError:
        """Why not: what may pass first, because then it is worth asking again."""
        passing = [error for error in self._errors if _may_pass(error)]
        if self._errors and not self._said:
            return (passing or self._errors)[-1]
        return NotYetError(
            "FF-APP-291",
            "the ledger's validators do not say alike",
            cause=f"{len(self._said)} different answers, of which {self._need} would have to agree",
            hint="ask again; if it stays so, one of them lies",
        )

    def _ask_another(self) -> None:
        place = next(self._left, None)
        if place is not None:
            self._asked[asyncio.ensure_future(self._panel.call(place, self._body))] = place

    def _hear(self, task: asyncio.Task[bytes]) -> bool:
        place = self._asked.pop(task)
        try:
            value = self._read(task.result())
        except RemoteError as error:  # the ledger's own trouble (its disk, say), not the network's
            self._errors.append(RunError(error.code, error.message, cause=error.cause, hint=error.hint))
        except (NetworkError, ProtocolError, VerificationError, RunError) as error:
            self._errors.append(error)
        else:
            return self._counts(value)
        self._panel.blame(place)
        self._ask_another()
        return False

    def _counts(self, value: T) -> bool:
        before = next((votes for said, votes in self._said if said == value), 0)
        self._said = [each for each in self._said if each[0] != value] + [(value, before + 1)]
        if before + 1 >= self._need:
            return True
        if max(votes for _, votes in self._said) + len(self._asked) < self._need:
            self._ask_another()
        return False
