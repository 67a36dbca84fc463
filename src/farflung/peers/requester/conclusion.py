"""Ends a job on its ledger: relays claim their pay, receipts are proved, money is counted, the export is written."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from farflung.core.errors import FarflungError, RunError, VerificationError
from farflung.core.events import ChainComparisonEvent, RelayPaymentEvent, WarningEvent
from farflung.core.ids import Hash, PeerId
from farflung.ledger.block import Genesis, worked_state
from farflung.ledger.pinpoint_game import PinpointRow
from farflung.ledger.receipt_checks import LedgerReceipt, read_row
from farflung.ledger.receipt_file import write_receipt_file
from farflung.ledger.table_rows import AccountRow, ChannelRow, JobRow, LeaseRow, NodeRow, channel_key, lease_key
from farflung.net.endpoint_records import EndpointAddress
from farflung.net.io.endpoint import Endpoint
from farflung.peers.ledger_client.client import LedgerClient, dispute_of
from farflung.peers.ledger_client.quorum_read import Reach
from farflung.peers.ledger_client.relay_channel import RelayChannelPayer
from farflung.peers.process.channel import REQUESTER
from farflung.peers.requester.job_context import JobContext
from farflung.peers.rundir.export import write_export
from farflung.peers.rundir.network_record import node_name

_TRIES: Final = 5  # to have all proofs of one block

ClientOf = Callable[[Sequence[Reach]], LedgerClient]


class FinalLedgerSummary(msgspec.Struct, frozen=True):
    """What the ledger says when everybody has left: its root before relays were paid (`ledger.block.worked_state`),
    and money found minus money minted."""

    ledger_root: str
    sum: int


class JobConclusion:
    """What a requester does with its ledger last of all."""

    def __init__(
        self,
        job: JobContext,
        genesis: Genesis,
        ledger: LedgerClient,
        relays: Sequence[EndpointAddress],
        parties: Mapping[str, PeerId],
    ) -> None:
        """`relays`: which may have a channel with this account. `parties`: all accounts but the requester's of a
        network that this job has to itself, by the names of their receipts; empty: the network is others', too.
        """
        self._job, self._genesis, self._ledger, self._relays, self._parties = job, genesis, ledger, relays, parties

    async def pay_relays(self, endpoint: Endpoint) -> None:
        """Lets each relay claim what is signed, and says what it got; whatever is not claimed now lies in its channel.

        Last of all: what it is paid for was measured, and the ledger's root before this follows from the job alone.
        """
        key = self._job.key
        for place in self._relays:
            try:
                await RelayChannelPayer(key, endpoint, self._ledger, place.relay, (place.host, place.port)).settle()
            except FarflungError as error:
                told = f"a relay is not paid yet: {error.code} {error.message}"
                hint = "its channel holds the money until then"
                self._job.journal.emit(WarningEvent(code="FF-APP-242", message=told, hint=hint))
            row = await self._ledger.channel(key.public, place.relay)
            if row is not None:
                self._job.journal.emit(_carried(row))

    async def conclude(self) -> FinalLedgerSummary:
        """Receipts of every party, then the export: all blocks are in it, up to the one that the receipts are of."""
        receipts, files = await self._all_proved()
        blocks = await self._ledger.blocks(last=max(receipt.header.height for receipt in receipts))
        job = self._job
        write_export(job.folder, self._genesis, job.terms, job.log, job.archive, blocks, receipts, files)
        return FinalLedgerSummary(worked_state(blocks).hex(), await self._difference())

    async def _difference(self) -> int:
        """Money found minus money that was there: of a network of the job's own in all, of others' in this job."""
        job = await self._ledger.job(self._job.terms.id)
        if self._parties:
            minted = sum(amount for _, amount in self._genesis.accounts)
            held = await self._disputed() + (job.burnt if job is not None else 0)
            return await self._total_money() + held - minted
        paid = sum(lease.paid for lease in await self._ledger.leases(self._job.terms.id))
        return paid - job.paid if job is not None else 0

    async def _all_proved(self) -> tuple[list[LedgerReceipt], dict[str, bytes]]:
        """All receipts, of one block: of several validators an empty one may still follow the last that held work."""
        for _ in range(_TRIES):
            receipts = [*await self._receipts(), *await self._channels()]
            if len({receipt.header.height for receipt in receipts}) == 1:
                with contextlib.suppress(VerificationError):
                    return receipts, await self._receipt_files(receipts)
        receipts = [*await self._receipts(), *await self._channels()]
        return receipts, await self._receipt_files(receipts)

    async def compare_validators(self, reaches: Sequence[Reach], client_of: ClientOf) -> None:
        """Says that all validators hold one chain. Raises VerificationError FF-APP-298 where one holds another."""
        heights, longest = [], list[Hash]()
        for reach in reaches:
            chain = [block.header.id for block in await client_of([reach]).blocks()]
            shared = min(len(chain), len(longest))
            if chain[:shared] != longest[:shared]:
                raise VerificationError(
                    "FF-APP-298",
                    "the ledger's validators hold different chains",
                    cause=f"they differ within {shared} blocks",
                    hint="keep the run's folder and report this: a committee must never fork",
                )
            heights.append(len(chain))
            longest = max(longest, chain, key=len)
        said = ChainComparisonEvent(validators=len(heights), blocks=max(heights), least=min(heights))
        self._job.journal.emit(said)

    async def _channels(self) -> list[LedgerReceipt]:
        """Proof of what each relay got: its channel with the requester, where there is one."""
        keys = [channel_key(self._job.key.public, place.relay) for place in self._relays]
        found = [await self._ledger.receipt(ChannelRow.TABLE, key) for key in keys]
        return [receipt for receipt in found if receipt is not None]

    async def _receipts(self) -> list[LedgerReceipt]:
        """Proof of the job's end, of every party's pay, and of what became of its stake."""
        job = self._job.terms.id
        leases = await self._ledger.leases(job)
        wanted = [(JobRow.TABLE, bytes(job))]
        wanted += [(LeaseRow.TABLE, lease_key(job, lease.node)) for lease in leases]
        wanted += [(NodeRow.TABLE, bytes(lease.node)) for lease in leases]
        return [await self._proved(table, key) for table, key in wanted]

    async def _receipt_files(self, receipts: Sequence[LedgerReceipt]) -> dict[str, bytes]:
        """What each party keeps, by name: its own rows and the job's, all of the last block."""
        rows = [(receipt, read_row(receipt)) for receipt in receipts]
        steps = await self._ledger.steps()
        files, requester = {}, self._job.key.public
        hired = {node_name(row.node): row.node for _, row in rows if isinstance(row, LeaseRow)}
        for name, party in {REQUESTER: requester, **(self._parties or hired)}.items():
            own = [r for r, row in rows if isinstance(row, LeaseRow | NodeRow) and row.node == party]
            channels = [r for r, row in rows if isinstance(row, ChannelRow) and party in (row.payer, row.relay)]
            if own or party == requester:
                own += [r for r, row in rows if isinstance(row, JobRow)]
            own += channels
            if own:
                own.append(await self._proved(AccountRow.TABLE, party))
                files[name] = write_receipt_file(self._genesis, party, own, steps)
        return files

    async def _proved(self, table: str, key: bytes) -> LedgerReceipt:
        receipt = await self._ledger.receipt(table, key)
        if receipt is None:
            raise RunError("FF-APP-067", "the ledger does not prove what it paid", hint="`farflung resume` asks again")
        return receipt

    async def _total_money(self) -> int:
        """All money of the network after everybody has left: it must be what genesis gave.

        What was burnt of stakes stays with its node's row for good, what no relay claimed in its channel. A stake that
        nobody took back is missing here.
        """
        ledger, payer = self._ledger, self._job.key.public
        owners = {owner for owner, _ in self._genesis.accounts} | set(self._genesis.validators)
        balances = sum([(await ledger.account(owner)).balance for owner in sorted(owners)])
        rows = [await ledger.node(party) for party in self._parties.values()]
        channels = [await ledger.channel(payer, place.relay) for place in self._relays]
        burnt = sum(row.burnt for row in rows if row is not None)
        return balances + burnt + sum(row.held for row in channels if row is not None)

    async def _disputed(self) -> int:
        """What disputes that are not decided hold: their own money, their games', and the stakes of their accusers."""
        ledger = self._ledger
        rows = [await dispute_of(ledger, self._job.terms.id, party) for party in self._parties.values()]
        pending = [row for row in rows if row is not None and row.is_pending]
        accusers = sorted({accuser for row in pending for accuser in row.accusers})
        stakes = [await ledger.node(accuser) for accuser in accusers]
        games = [await ledger.row(PinpointRow, row.key) for row in pending]
        held = sum(row.money for row in (*pending, *games) if row is not None)
        return held + sum(row.free + row.locked for row in stakes if row is not None)


def _carried(row: ChannelRow) -> RelayPaymentEvent:
    return RelayPaymentEvent(peer=row.relay.hex(), bytes=row.carried, price=row.price, paid=row.paid, held=row.held)
