"""Gives a key access to the ledger over the network: submits its transactions in order, and queries."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar, cast

from farflung.core import limits
from farflung.core.codec import encode
from farflung.core.crypto import SigningKey
from farflung.core.errors import PolicyError, ProtocolError, RunError, VerificationError
from farflung.core.ids import ID_BYTES, Hash, PeerId
from farflung.core.release import LAW
from farflung.ledger import light_client, queries
from farflung.ledger.block import Block, BlockHeader, Genesis, unforeseen
from farflung.ledger.disputes import DisputeRow
from farflung.ledger.law_version import FIRST_LAW, law_in, law_name, unknown_law
from farflung.ledger.ledger_state import R
from farflung.ledger.motions import MotionRow
from farflung.ledger.params import HOUR_MS
from farflung.ledger.receipt_checks import LedgerReceipt, read_row
from farflung.ledger.search_queries import GetNodeLeases, RowsReply
from farflung.ledger.table_rows import (
    AccountRow,
    ChannelRow,
    JobRow,
    KeyRow,
    LeaseRow,
    NodeRow,
    NodeState,
    channel_key,
    lease_key,
)
from farflung.ledger.transactions import (
    JobCoordinate,
    NodeLeave,
    NodeRegister,
    Op,
    SignedTx,
    Transfer,
    coordinator_of,
    make_tx,
    notice_of,
    sign_tx,
)
from farflung.ledger.validators import CommitteeRow
from farflung.ledger.votes import faults
from farflung.net.io.connection import Connection
from farflung.peers.ledger_client.quorum_read import (
    ANSWER_SECONDS,
    PATIENCE_SECONDS,
    QUERY,
    NotYetError,
    QuorumReader,
    Reach,
    Waited,
)
from farflung.peers.ledger_client.replies import AnswerT, TransactionOutcome, answer_of, fate_of, is_void

VALID_MS: Final = 60_000  # block time, after which a transaction for several validators is void
OUT_OF_TERM: Final = frozenset({"FF-LEDG-405", "FF-LEDG-406"})
_SIGNED_ANEW: Final = 3  # times that one submission is signed at most
T = TypeVar("T")


class LedgerClient:
    """Signs, submits and asks. One transaction at a time, because a nonce is used once.

    What is signed is sent until its fate is known, the very same bytes, to one validator after the other: the ledger
    takes it once however often it comes. For several validators it carries an `expires`; an intent is signed anew only
    when f + 1 of them say that the ledger is past that time, or has used the nonce for something else, without it.
    Whoever gave up waiting and submits the same again sends the same bytes again.

    A row is trusted of any single validator, because it comes with its proof: checked under the committee that follows
    from the genesis, epoch by epoch (ledger.light_client). Nobody can prove that there is *no* row, nor that it is
    the newest; but nothing is trusted of a block below one that this client has seen or has a transaction in, and
    after `refresh` rows are the newest.
    """

    def __init__(
        self,
        connect: Reach | Sequence[Reach],
        key: SigningKey,
        genesis: Genesis,
        patience: float = PATIENCE_SECONDS,
        answer: float = ANSWER_SECONDS,
        waited: Waited = lambda _seconds, _is_over: None,
    ) -> None:
        """`connect` reaches a validator, or each of several.

        `patience`: seconds for which a lost connection is made again; then its NetworkError is raised. `answer`:
        seconds after which a validator that hangs is left for another one. `waited`: as a Panel's.
        """
        reaches = [connect] if callable(connect) else connect
        self._panel = QuorumReader(reaches, patience, answer, waited)
        self._key, self._genesis = key, genesis
        self._turn = asyncio.Lock()
        self._open: tuple[tuple[Op, ...], SignedTx] | None = None  # of unknown fate
        self._trust = light_client.trust_in(genesis)
        self._seen = 0  # a height: what is proved of a lower one is too old
        self._term: tuple[JobCoordinate, ...] = ()  # that each transaction names
        self._law_of = 0  # the version of the parameters whose law is known here; that of the first is
        self._nonce = 0  # the least that this client has not used: a validator that is behind names an earlier one

    @property
    def chain(self) -> Hash:
        """The chain's id."""
        return self._genesis.chain

    @property
    def counts_blocks(self) -> bool:
        """Whether the ledger's time counts its blocks, as a local network's does, and waiting does not move it."""
        return self._genesis.time == 0

    async def time(self) -> int:
        """The ledger's time (ms): its head's, or what this computer's clock says of it since, an hour more at most.

        An idle ledger makes no blocks: the next one's time is what its validators' clocks say, not its head's.
        """
        head = (await self.head()).header.time
        return head if self.counts_blocks else min(max(head, round(time.time() * 1000)), head + HOUR_MS)

    @property
    def own(self) -> PeerId:
        """The account that signs."""
        return self._key.public

    @property
    def _honest(self) -> int:
        """So many validators that say alike are not all Byzantine."""
        return faults(len(self._trust.committee)) + 1

    async def submit(self, *ops: Op) -> int:
        """Signs and submits one transaction, and returns its block's height.

        Raises RunError FF-APP-070 when the ledger refuses it, 605 where another process coordinates the job.

        When its fate stays unknown, the NetworkError of the last try: the next submission settles it first.
        RunError FF-LEDG-270 where a law holds that this farflung does not know.
        """
        ops = (*self._term, *ops)
        async with self._turn:
            fate = await self._settled()
            if fate is None or fate[0] != ops:
                fate = await self._carried_out(ops)
        height, code, why = fate[1].height, fate[1].code, fate[1].why
        if code in OUT_OF_TERM:
            raise superseded(why)
        if code or height is None:
            names = ", ".join(type(op).__name__ for op in ops)
            raise RunError("FF-APP-070", f"the ledger refused {names}", cause=f"{code}: {why}" if why else code)
        return height

    async def coordinate(self, job: Hash) -> JobCoordinate:
        """Takes the next term of a job, which each later transaction of this client names.

        Raises RunError FF-APP-605 where another process was first.
        """
        held = await self.keys(coordinator_of(job))
        term = JobCoordinate(job, held.epoch + 1, Hash(secrets.token_bytes(ID_BYTES)))
        await self.submit(term)
        self._term = (term,)
        return term

    async def refresh(self) -> int:
        """Whatever row is asked for afterwards is at least as new as this call: such a read is linearizable.

        It waits for a transaction of this key, signed now, to be final, pays its fee, and returns its block's height.
        No block that was final before the call can contain it, so all of them are below (docs/protocol/ledger, "What a
        read promises"). Raises RunError FF-APP-320 when the ledger takes none of this key, and what `submit` raises.
        A submission of unknown fate stays so, for the next one to settle.
        """
        async with self._turn:
            if self._open is not None:
                await self._fate(self._open[1])
            for _ in range(_SIGNED_ANEW):
                # More than anybody has: it moves nothing. Drawn: the same bytes may be in a block of before.
                mark = Transfer(self.own, 1 + secrets.randbits(62))
                fate = await self._fate(await self._signed((mark,)))
                if fate.height is not None:
                    return fate.height
        raise RunError(
            "FF-APP-320",
            "the ledger takes no transaction of this key",
            cause=f"{fate.code}: {fate.why}" if fate.why else fate.code,
            hint="rows are read without `refresh` by whoever cannot pay a fee: proved, and perhaps not the newest",
        )

    async def _settled(self) -> tuple[tuple[Op, ...], TransactionOutcome] | None:
        """What became of the transaction that was given up, if there is one; None too if it is void."""
        if self._open is None:
            return None
        ops, signed = self._open
        fate = await self._closed(signed)
        return None if is_void(fate) else (ops, fate)

    async def _carried_out(self, ops: tuple[Op, ...]) -> tuple[tuple[Op, ...], TransactionOutcome]:
        for _ in range(_SIGNED_ANEW):
            self._open = ops, await self._signed(ops)
            fate = await self._closed(self._open[1])
            if not is_void(fate) or len(self._panel) == 1:
                break
        return ops, fate

    async def _signed(self, ops: tuple[Op, ...]) -> SignedTx:
        account = (await self._ask(queries.GetAccount(self._key.public), queries.AccountReply, self._honest)).account
        expires = await self.time() + VALID_MS if len(self._panel) > 1 else 0
        committee = await self.committee()
        await self._check_law(committee.committee)
        if committee.committee.epoch > self._trust.epoch:
            await self._follow()
        fee = committee.params.fee_min
        nonce = max(account.nonce, self._nonce)
        tx = make_tx(self.chain, self._key.public, nonce, *ops, fee=fee, expires=expires)
        return sign_tx(self._key, tx)

    async def _check_law(self, now: CommitteeRow) -> None:
        """Once for each version of the parameters. Raises RunError FF-LEDG-270: nothing is signed."""
        if now.params > self._law_of:
            if (held := await self._law_at(now.params)) > LAW:
                raise unknown_law(held, now.first)
            self._law_of = now.params

    async def _law_at(self, version: int) -> int:
        """Proved; 1 where a validator says that there is no row."""
        return law_in(await self.row(MotionRow, law_name(version))) if version else FIRST_LAW

    async def law(self) -> int:
        """The version of the law that holds for the next block."""
        return await self._law_at((await self.committee()).committee.params)

    async def _fate(self, signed: SignedTx) -> TransactionOutcome:
        """What enough validators say alike of it. Raises what `Panel.agreed` raises."""
        body = encode(queries.SubmitRequest((signed,)))
        fate = await self._panel.agreed(body, lambda data: fate_of(signed, data), self._honest)
        if fate.height is not None:
            self._seen = max(self._seen, fate.height)
            self._nonce = max(self._nonce, signed.tx.nonce + 1)
        return fate

    async def _closed(self, signed: SignedTx) -> TransactionOutcome:
        """The fate of what was given up or is handed in first; it may still enter one day if that is not known."""
        fate = await self._fate(signed)
        if fate.height is not None or is_void(fate):
            self._open = None
        return fate

    async def _ask(self, query: queries.Query, kind: type[AnswerT], need: int = 1) -> AnswerT:
        return await self._panel.agreed(encode(query), lambda data: answer_of(data, kind), need)

    async def committee(self) -> queries.CommitteeReply:
        """The committee and the parameters of the next block."""
        return await self._ask(queries.GetCommittee(), queries.CommitteeReply)

    async def _follow(self) -> bool:
        """Learns of the committees since the one that is trusted; whether there were any."""
        before = self._trust

        def walked(data: bytes) -> light_client.TrustedCommittee:
            steps = answer_of(data, queries.StepsReply).steps
            return light_client.follow_steps(self._trust, steps, self._trust.epoch + len(steps))

        while True:
            body = encode(queries.GetSteps(self._trust.epoch))
            found = await self._panel.agreed(body, walked, 1)
            if found.epoch == self._trust.epoch:
                return self._trust.epoch > before.epoch
            self._trust = found

    async def row(self, kind: type[R], key: bytes) -> R | None:
        """A row, proved; None where a validator says that there is none. Raises as `receipt`."""
        receipt = await self.receipt(kind.TABLE, key)
        return cast(R, read_row(receipt)) if receipt is not None else None

    async def account(self, owner: PeerId) -> AccountRow:
        """An account; all zero where there is none."""
        return await self.row(AccountRow, owner) or AccountRow(owner)

    async def job(self, job: Hash) -> JobRow | None:
        """A job; None where there is none."""
        return await self.row(JobRow, job)

    async def leases(self, job: Hash) -> tuple[LeaseRow, ...]:
        """A job's leases."""
        return (await self._ask(queries.GetLeases(job), queries.LeasesReply)).leases

    async def node_leases(self, node: PeerId) -> list[LeaseRow]:
        """A node's, in any job, by a validator's word: what it withholds another one says on another day."""
        found: list[LeaseRow] = []
        place: int | None = 0
        while place is not None:
            said = await self._ask(GetNodeLeases(node, place), RowsReply)
            found += [row for row in map(read_row, said.receipts) if isinstance(row, LeaseRow)]
            place = said.next if said.next is not None and said.next > place else None
        return found

    async def open_leases(self) -> list[LeaseRow]:
        """This key's own that are open."""
        return [row for row in await self.node_leases(self._key.public) if row.is_open]

    async def notice(self, job: Hash, node: PeerId) -> int:
        """The first round of a job without a node that gave notice; 0 where a validator says that it gave none."""
        row = await self.row(KeyRow, notice_of(job, node))
        return row.epoch if row is not None else 0

    async def nodes(self) -> list[NodeRow]:
        """All nodes that may be hired: active, and not excluded."""
        found: list[NodeRow] = []
        start: int | None = 0
        while start is not None:
            page = await self._ask(queries.GetNodes(start), queries.NodesReply)
            found += page.nodes
            start = page.next
        return found

    async def receipt(self, table: str, key: bytes) -> LedgerReceipt | None:
        """The proof of one row, checked; None where a validator says that there is none.

        Raises VerificationError FF-LEDG-071 to -076, FF-APP-319: none holds; NotYetError FF-APP-321: all are behind.
        """
        query = queries.GetReceipt(table, key)
        found = await self._believed(query, lambda data: self._proved(data, table, key))
        self._seen = max(self._seen, found.header.height if found is not None else 0)
        return found

    async def _believed(self, query: queries.Query, read: Callable[[bytes], T]) -> T:
        """What one validator proves; committees that are not known here yet are followed first."""

        def gently(data: bytes) -> list[T]:
            try:
                return [read(data)]
            except VerificationError:  # perhaps of a later epoch: followed at once, whoever else is away
                return []

        if found := await self._panel.agreed(encode(query), gently):
            return found[0]
        await self._follow()
        return await self._panel.agreed(encode(query), read)

    def _proved(self, data: bytes, table: str, key: bytes) -> LedgerReceipt | None:
        receipt = answer_of(data, queries.ReceiptReply).receipt
        if receipt is not None:
            row = light_client.check(self._trust, receipt)
            if (row.TABLE, row.key) != (table, key):
                raise VerificationError(
                    "FF-APP-319",
                    "a validator proved another row than was asked for",
                    cause=f"{row.TABLE} instead of {table}, or another one of its rows",
                    hint="another validator is asked; this one lies, or is broken",
                )
            self._check_seen(receipt.header)
        return receipt

    def _check_seen(self, header: BlockHeader) -> None:
        if header.height < self._seen:
            raise NotYetError(
                "FF-APP-321",
                "a validator is behind what this client has seen of the ledger",
                cause=f"it is at block {header.height}, and block {self._seen} is final",
                hint="another one is asked; `farflung ledger status` shows who is behind",
            )

    async def steps(self) -> list[LedgerReceipt]:
        """What leads from the genesis to the committee of today: one receipt for each epoch from 1 on."""
        found: list[LedgerReceipt] = []
        while page := (await self._ask(queries.GetSteps(len(found)), queries.StepsReply)).steps:
            found += page
        return found

    async def node(self, node: PeerId) -> NodeRow | None:
        """A node's row, whether it still lends or not; None where there never was one."""
        return await self.row(NodeRow, node)

    async def keys(self, account: PeerId) -> KeyRow:
        """An account's node keys; epoch 0, its own key, where it never said anything."""
        return await self.row(KeyRow, account) or KeyRow(account, account, account)

    async def channel(self, payer: PeerId, relay: PeerId) -> ChannelRow | None:
        """A payer's channel with a relay, open or not; None where there never was one."""
        return await self.row(ChannelRow, channel_key(payer, relay))

    async def blocks(self, first: int = 1, last: int = limits.NEVER) -> list[Block]:
        """Blocks from height `first` on, up to `last` or the head: by one validator's word, and all since genesis."""
        found: list[Block] = []
        while (at := first + len(found)) <= last:
            page = (await self._ask(queries.GetBlocks(at), queries.BlocksReply)).blocks
            if not page:
                break
            found += page[: last - at + 1]
        return found

    async def unforeseen(self, height: int) -> Hash:
        """What nobody alone could choose of a final block, by as many validators' word as hold one honest one."""

        def named(data: bytes) -> Hash:
            first = next(iter(answer_of(data, queries.BlocksReply).blocks), None)
            if first is None or first.header.height != height:
                raise ProtocolError("FF-APP-390", f"a validator has no block {height}")
            return unforeseen(first)

        return await self._panel.agreed(encode(queries.GetBlocks(height)), named, self._honest)

    async def head(self) -> queries.HeadReply:
        """A final header, none below one that was seen before. Raises as `receipt`."""
        head = await self._believed(queries.GetHead(), self._headed)
        self._seen = max(self._seen, head.header.height)
        return head

    def _headed(self, data: bytes) -> queries.HeadReply:
        head = answer_of(data, queries.HeadReply)
        light_client.check_header(self._trust, head.header, head.certificate)
        self._check_seen(head.header)
        return head

    async def register(self, caps: Hash, unit_price: int, stake: int, expires: int, *more: Op) -> None:
        """Registers this key's node for the first time, or again where its registration has run out.

        One that left by itself stays away: a run that is resumed after its end brings nobody back. `more` is done in
        the same transaction.
        """
        known = await self.receipt(NodeRow.TABLE, self._key.public)
        row = await self.node(self._key.public) if known is not None else None
        is_over = row is not None and row.expires <= (await self.head()).header.time
        if known is None or is_over:
            await self.submit(NodeRegister(caps, unit_price, stake, expires), *more)

    async def leave(self) -> None:
        """Takes this key's node off the ledger and its stake back, unless that is done."""
        if await self._is_registered():
            await self.submit(NodeLeave())

    async def _is_registered(self) -> bool:
        row = await self.node(self._key.public)
        return row is not None and row.state == NodeState.ACTIVE


def superseded(cause: str) -> RunError:
    """The error FF-APP-605: the run goes on in another place."""
    return RunError(
        "FF-APP-605",
        "another process of this account coordinates the job",
        cause=cause,
        hint="go on there, or stop it and copy its folder here: then `farflung resume` takes the job back",
    )


async def serve_nothing(_: Connection, method: str, __: bytes) -> bytes:
    """Who only asks the ledger answers nobody. Raises PolicyError FF-APP-145."""
    raise PolicyError("FF-APP-145", f"who asks the ledger does not serve {method[:40]!r}")


async def genesis_from(connect: Callable[[], Awaitable[Connection]], validator: PeerId) -> Genesis:
    """What the ledger of this validator began with, by its own word: whoever names its key trusts it.

    Raises NetworkError when it cannot be reached, ProtocolError FF-APP-071 (wrong answer), FF-APP-144 (not its ledger).
    """
    connection = await connect()
    said = answer_of(await connection.call(QUERY, encode(queries.GetGenesis())), queries.GenesisReply)
    committee = answer_of(await connection.call(QUERY, encode(queries.GetCommittee())), queries.CommitteeReply)
    if validator not in (*said.genesis.validators, *committee.committee.members):
        raise ProtocolError("FF-APP-144", "what answers for the ledger is none of its validators")
    return said.genesis


async def dispute_of(ledger: LedgerClient, job: Hash, node: PeerId) -> DisputeRow | None:
    """What a node is or was accused of in a job; None where nobody accused it under `dispute_ms`."""
    return await ledger.row(DisputeRow, lease_key(job, node))
