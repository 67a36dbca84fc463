"""A key's view of the ledger over the network: its transactions in order, and questions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from farflung.core.codec import encode
from farflung.core.crypto import SigningKey
from farflung.core.errors import NetworkError, PolicyError, ProtocolError, RunError
from farflung.core.ids import Hash, PeerId
from farflung.ledger import queries
from farflung.ledger.block import Block, Genesis
from farflung.ledger.receipts import Receipt, read_row
from farflung.ledger.results import AlreadyApplied, Applied
from farflung.ledger.rows import (
    AccountRow,
    ChannelRow,
    JobRow,
    KeyRow,
    LeaseRow,
    NodeRow,
    NodeState,
    channel_key,
)
from farflung.ledger.tx import NodeLeave, NodeRegister, Op, make_tx, sign_tx
from farflung.net.io.connection import Connection
from farflung.net.messages import RemoteError

QUERY: Final = "ledger.query"
PATIENCE_SECONDS: Final = 10.0  # for a validator that is started again
PAUSES_SECONDS: Final = (0.05, 0.5)  # between two tries: the first, and the longest

AnswerT = TypeVar("AnswerT", bound=queries.Answer)


class LedgerClient:
    """Signs, submits and asks. One transaction at a time, because a nonce is used once.

    A validator that dies and comes back costs time only: a question is asked again, and so is the very same signed
    transaction, which the ledger takes once however often it comes.
    """

    def __init__(
        self,
        connect: Callable[[], Awaitable[Connection]],
        key: SigningKey,
        genesis: Genesis,
        patience: float = PATIENCE_SECONDS,
    ) -> None:
        """`patience`: seconds for which a lost connection is made again; then its NetworkError is raised."""
        self._connect, self._key, self._genesis, self._patience = connect, key, genesis, patience
        self._turn = asyncio.Lock()

    @property
    def chain(self) -> Hash:
        """The chain's id."""
        return self._genesis.chain

    async def submit(self, *ops: Op) -> None:
        """Signs and submits one transaction; raises RunError FF-APP-070 when the ledger refuses it."""
        async with self._turn:
            account = await self.account(self._key.public)
            fee = self._genesis.params.fee_min
            tx = make_tx(self.chain, self._key.public, account.nonce, *ops, fee=fee)
            (result,) = (
                await self._ask(queries.Submit((sign_tx(self._key, tx),)), queries.Submitted)
            ).results
        if not isinstance(result, Applied | AlreadyApplied) or (
            isinstance(result, AlreadyApplied) and result.code
        ):
            names = ", ".join(type(op).__name__ for op in ops)
            why = getattr(result, "message", "")
            raise RunError("FF-APP-070", f"the ledger refused {names}", cause=f"{result.code}: {why}")

    async def _ask(self, query: queries.Query, kind: type[AnswerT]) -> AnswerT:
        try:
            answer = queries.read_answer(await self._call(encode(query)))
        except RemoteError as error:  # the ledger's own trouble (its disk, say), not the network's
            raise RunError(error.code, error.message, cause=error.cause, hint=error.hint) from error
        if isinstance(answer, queries.Refused):
            raise RunError(answer.code, answer.message, cause=answer.cause, hint=answer.hint)
        if not isinstance(answer, kind):
            raise ProtocolError("FF-APP-071", f"the ledger answered {type(answer).__name__}")
        return answer

    async def _call(self, query: bytes) -> bytes:
        """The ledger's reply. What cannot be reached, or breaks off, is tried again while there is patience."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._patience
        pause, longest = PAUSES_SECONDS
        while True:
            try:
                connection = await self._connect()
                return await connection.call(QUERY, query)
            except (RemoteError, ProtocolError):
                raise
            except NetworkError:
                if loop.time() + pause > deadline:
                    raise
            await asyncio.sleep(pause)
            pause = min(2 * pause, longest)

    async def account(self, owner: PeerId) -> AccountRow:
        """An account; all zero where there is none."""
        return (await self._ask(queries.AskAccount(owner), queries.AccountIs)).account

    async def job(self, job: Hash) -> JobRow | None:
        """A job, if it is known."""
        return (await self._ask(queries.AskJob(job), queries.JobIs)).job

    async def leases(self, job: Hash) -> tuple[LeaseRow, ...]:
        """A job's leases."""
        return (await self._ask(queries.AskLeases(job), queries.LeasesAre)).leases

    async def nodes(self) -> list[NodeRow]:
        """All active nodes."""
        found: list[NodeRow] = []
        start: int | None = 0
        while start is not None:
            page = await self._ask(queries.AskNodes(start), queries.NodesAre)
            found += page.nodes
            start = page.next
        return found

    async def receipt(self, table: str, key: bytes) -> Receipt | None:
        """The proof of one row."""
        return (await self._ask(queries.AskReceipt(table, key), queries.ReceiptIs)).receipt

    async def node(self, node: PeerId) -> NodeRow | None:
        """A node's row, whether it still lends or not; None where there never was one."""
        receipt = await self.receipt(NodeRow.TABLE, node)
        row = read_row(receipt) if receipt is not None else None
        return row if isinstance(row, NodeRow) else None

    async def keys(self, account: PeerId) -> KeyRow:
        """An account's node keys; epoch 0, its own key, where it never said anything."""
        receipt = await self.receipt(KeyRow.TABLE, account)
        row = read_row(receipt) if receipt is not None else None
        return row if isinstance(row, KeyRow) else KeyRow(account, account, account)

    async def channel(self, payer: PeerId, relay: PeerId) -> ChannelRow | None:
        """A payer's channel with a relay, open or not; None where there never was one."""
        receipt = await self.receipt(ChannelRow.TABLE, channel_key(payer, relay))
        row = read_row(receipt) if receipt is not None else None
        return row if isinstance(row, ChannelRow) else None

    async def blocks(self) -> list[Block]:
        """All blocks since genesis."""
        found: list[Block] = []
        while page := (await self._ask(queries.AskBlocks(len(found) + 1), queries.BlocksAre)).blocks:
            found += page
        return found

    async def head(self) -> queries.HeadIs:
        """The newest header."""
        return await self._ask(queries.AskHead(), queries.HeadIs)

    async def register(self, caps: Hash, unit_price: int, stake: int, expires: int, *more: Op) -> None:
        """Registers this key's node, unless it ever was: a run that is resumed after its end brings nobody back.

        `more` is done in the same transaction.
        """
        if await self.receipt(NodeRow.TABLE, self._key.public) is None:
            await self.submit(NodeRegister(caps, unit_price, stake, expires), *more)

    async def leave(self) -> None:
        """Takes this key's node off the ledger and its stake back, unless that is done."""
        if await self._is_registered():
            await self.submit(NodeLeave())

    async def _is_registered(self) -> bool:
        return any(n.node == self._key.public and n.state == NodeState.ACTIVE for n in await self.nodes())


async def serve_nothing(_: Connection, method: str, __: bytes) -> bytes:
    """Who only asks the ledger answers nobody. Raises PolicyError FF-APP-145."""
    raise PolicyError("FF-APP-145", f"who asks the ledger does not serve {method[:40]!r}")


async def genesis_from(connect: Callable[[], Awaitable[Connection]], validator: PeerId) -> Genesis:
    """What the ledger of this validator began with, by its own word: whoever names its key trusts it.

    Raises NetworkError when it cannot be reached, ProtocolError FF-APP-071 (wrong answer), FF-APP-144 (not its ledger).
    """
    said = queries.read_answer(await (await connect()).call(QUERY, encode(queries.AskGenesis())))
    if not isinstance(said, queries.GenesisIs):
        raise ProtocolError("FF-APP-071", f"the ledger answered {type(said).__name__}")
    if validator not in said.genesis.validators:
        raise ProtocolError("FF-APP-144", "what answers for the ledger is none of its validators")
    return said.genesis
