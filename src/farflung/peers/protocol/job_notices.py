"""Defines the board on which requesters that look for nodes say what their jobs need, for lenders to read.

A notice is its requester's own word. It binds nobody and enters no root: what binds is the proposal, which each node
holds against the ledger (peers.node.admission). Keys are free, so a notice is taken only from an account that holds
the escrow that it names; one per account, `NOTICE_SECONDS` long, `NOTICES` in all. On a full board a notice takes the
place of the one with the smallest escrow, so that accounts of next to nothing keep nobody off it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from farflung.core import limits
from farflung.core.codec import Wire, decode, encode
from farflung.core.errors import PolicyError, ProtocolError
from farflung.core.ids import PeerId
from farflung.net.io.connection import Connection

ANNOUNCE: Final = "directory.announce"
NOTICES_LIST: Final = "directory.notices"
NOTICE_BYTES: Final = 256
NOTICE_SECONDS: Final = 30.0
NOTICES: Final = 256
MOST: Final = 1 << 62


class JobNotice(Wire, frozen=True):
    """A job that looks for nodes. `token_flop`: FLOP to train one token; 0: unknown, of a module. Money in the
    ledger's smallest units: the most that is paid a token, and the escrow.
    """

    token_flop: int
    tokens: int  # of one provider, over the whole job
    unit_price_max: int
    escrow: int
    worker_bytes: int
    is_module: bool
    providers: int
    verifiers: int
    is_named: bool = False  # its requester named the verifiers: nothing is at stake
    is_outcome: bool = False  # its work may turn out to be outcome only (job.proof_class)


class PostedNotice(Wire, frozen=True):
    """A notice and the account that posted it."""

    requester: PeerId
    notice: JobNotice


class NoticeListing(Wire, frozen=True):
    """All notices that a seat holds."""

    posted: tuple[PostedNotice, ...]


class NoticeBoard:
    """One seat's. `balance`: what an account holds on the ledger; `clock`: seconds that only go forward."""

    def __init__(self, balance: Callable[[PeerId], int], clock: Callable[[], float]) -> None:
        self._balance, self._clock = balance, clock
        self._posted: dict[PeerId, tuple[float, JobNotice]] = {}

    def post(self, requester: PeerId, notice: JobNotice) -> None:
        """Raises ProtocolError FF-APP-620 (no job is like that), PolicyError FF-APP-621 (no money), 622 (full)."""
        if any(not 0 <= value <= MOST for value in _counts(notice)) or not notice.escrow:
            raise ProtocolError("FF-APP-620", "a notice of a job has a number that no job has")
        if self._balance(requester) < notice.escrow:
            raise PolicyError(
                "FF-APP-621",
                "the account does not hold the escrow that its notice names",
                hint="a job is announced by the account that pays for it",
            )
        self._forget()
        if requester not in self._posted and len(self._posted) >= NOTICES:
            least = min(self._posted, key=lambda who: self._posted[who][1].escrow)
            if self._posted[least][1].escrow >= notice.escrow:
                raise PolicyError("FF-APP-622", "the board of jobs is full", hint="the job runs without a notice, too")
            del self._posted[least]
        self._posted[requester] = self._clock() + NOTICE_SECONDS, notice

    def listing(self) -> NoticeListing:
        """Those that stand, ascending by account."""
        self._forget()
        return NoticeListing(tuple(PostedNotice(who, self._posted[who][1]) for who in sorted(self._posted)))

    def _forget(self) -> None:
        now = self._clock()
        for requester in [who for who, (until, _) in self._posted.items() if until <= now]:
            del self._posted[requester]


def _counts(notice: JobNotice) -> tuple[int, ...]:
    sizes = notice.token_flop, notice.tokens, notice.worker_bytes, notice.providers, notice.verifiers
    return (*sizes, notice.unit_price_max, notice.escrow)


def read_notice(body: bytes) -> JobNotice:
    """Raises ProtocolError."""
    return decode(body, JobNotice, NOTICE_BYTES)


async def announce(connection: Connection, notice: JobNotice) -> None:
    """Posts a notice at a seat, in the name of the own key. Raises NetworkError where it is refused."""
    await connection.call(ANNOUNCE, encode(notice))


async def read_notices(connection: Connection) -> tuple[PostedNotice, ...]:
    """What a seat lists."""
    return decode(await connection.call(NOTICES_LIST, b""), NoticeListing, limits.CONTROL_BYTES).posted
