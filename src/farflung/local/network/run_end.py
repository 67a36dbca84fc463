"""Finishes a run on its ledger: pays relays, checks proofs and money totals, writes the export."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Final

import msgspec

from farflung.core.crypto import NS_JOB_KEY
from farflung.core.errors import FarflungError, RunError, VerificationError
from farflung.core.events import ChainComparisonEvent, RelayPaymentEvent, WarningEvent
from farflung.core.ids import Hash, PeerId
from farflung.job.spec import JobSpec, JobTerms
from farflung.ledger.block import worked_state
from farflung.ledger.pinpoint_game import PinpointRow
from farflung.ledger.receipt_checks import LedgerReceipt, read_row
from farflung.ledger.receipt_file import write_receipt_file
from farflung.ledger.table_rows import AccountRow, ChannelRow, JobRow, LeaseRow, NodeRow, channel_key, lease_key
from farflung.local.network.joined_network import JoinedNetwork
from farflung.net.io.endpoint import Endpoint
from farflung.peers.ledger_client.client import LedgerClient, dispute_of
from farflung.peers.ledger_client.connect import client_in_run, places_of
from farflung.peers.ledger_client.quorum_read import Reach
from farflung.peers.ledger_client.relay_channel import RelayChannelPayer
from farflung.peers.process.channel import Report
from farflung.peers.rundir.archive import Archive, RunLog
from farflung.peers.rundir.export import write_export
from farflung.peers.rundir.folder import RunFolder
from farflung.peers.rundir.journal import EventEmitter
from farflung.peers.rundir.runs import command_name
from farflung.store.io.disk_store import DiskObjectStore
from farflung.watch.phrases import many

_TRIES: Final = 5  # to have all proofs of one block


class RunStoppedError(FarflungError):
    """The person stopped the run; it can be resumed."""

    exit_code = 130


class RunDivergedError(RunStoppedError):
    """The job's evaluate.stop_loss ended the run: it is settled, and its model is worse than it began."""

    exit_code = 1


class RunLosses(msgspec.Struct, frozen=True):
    """Validation losses of a run, nats per token."""

    end: float | None  # None: the model gives no number
    start: float
    unigram: float
    baseline: float | None


class JobEndReport(msgspec.Struct, frozen=True):
    """How the job ended, as the requester's process tells it. Money in micro-credits, hashes in hex."""

    rounds: int
    root: str
    reason: str
    escrow: int
    paid: int
    refunded: int
    output: str
    burnt: int = 0


class FinalLedgerSummary(msgspec.Struct, frozen=True):
    """What the ledger says when everybody has left: its root before relays were paid (`ledger.block.worked_state`),
    and money found minus money minted."""

    ledger_root: str
    sum: int


def stopped(folder: RunFolder, spec: JobSpec, outcome: JobEndReport) -> RunStoppedError:
    """The error FF-APP-132."""
    name = command_name(folder)
    return RunStoppedError(
        "FF-APP-132",
        f"run {folder.name} was stopped after {outcome.rounds} of {many(spec.rounds, 'round')}",
        cause="all that was trained is paid; the model so far is in its folder",
        hint=f"train on: farflung resume {name}; use the model: farflung sample {name}",
    )


def diverged(folder: RunFolder, spec: JobSpec, outcome: JobEndReport, losses: RunLosses) -> RunDivergedError:
    """The error FF-APP-485."""
    name, most, lower = command_name(folder), spec.evaluate.stop_loss, spec.optimizer.lr / 10
    is_far = losses.end is not None and most and losses.end > most * losses.start
    why = (
        f"its validation loss is {losses.end:.4g}, more than evaluate.stop_loss = {most:g} times the"
        f" {losses.start:.4g} of its start"
        if is_far
        else f"the loss became NaN or infinite in round {outcome.rounds}, for each provider that trained it"
    )
    return RunDivergedError(
        "FF-APP-485",
        f"training diverged: run {folder.name} ended after {outcome.rounds} of {spec.rounds} rounds",
        cause=f"{why}; what was checked is paid, the rest of the escrow returned",
        hint=f"begin again with a lower rate: farflung resume {name} --set optimizer.lr={lower:g}",
    )


def read_outcome(said: Report) -> JobEndReport:
    """An outcome from the report that carries it."""
    return msgspec.convert(said, JobEndReport)


async def pay_relays(network: JoinedNetwork, endpoint: Endpoint, ledger: LedgerClient, journal: EventEmitter) -> None:
    """Lets each relay claim what is signed, and says what it got; whatever is not claimed now lies in its channel.

    Last of all: what it is paid for was measured, and the ledger's root before this follows from the job alone.
    """
    key = network.account
    for place in places_of(network.record.relays):
        try:
            await RelayChannelPayer(key, endpoint, ledger, place.relay, (place.host, place.port)).settle()
        except FarflungError as error:
            told = f"a relay is not paid yet: {error.code} {error.message}"
            journal.emit(WarningEvent(code="FF-APP-242", message=told, hint="its channel holds the money until then"))
        row = await ledger.channel(key.public, place.relay)
        if row is not None:
            journal.emit(_carried(row))


def _carried(row: ChannelRow) -> RelayPaymentEvent:
    return RelayPaymentEvent(peer=row.relay.hex(), bytes=row.carried, price=row.price, paid=row.paid, held=row.held)


async def conclude(
    folder: RunFolder, network: JoinedNetwork, terms: JobTerms, ledger: LedgerClient
) -> FinalLedgerSummary:
    """Receipts of every party, then the export: all blocks are in it, up to the one that the receipts are of."""
    receipts, files = await _all_proved(ledger, network, terms)
    blocks = await ledger.blocks(last=max(receipt.header.height for receipt in receipts))
    key = network.account
    log = RunLog(folder.rounds_file, key)
    try:
        disk = DiskObjectStore(folder.store, "requester.store")
        archive = Archive(disk, folder.snapshots, key.secret(NS_JOB_KEY, terms.id), key.public)
        write_export(folder, network.genesis, terms, log, archive, blocks, receipts, files)
    finally:
        log.close()
    difference = await _difference(ledger, network, terms)
    return FinalLedgerSummary(worked_state(blocks).hex(), difference)


async def _difference(ledger: LedgerClient, network: JoinedNetwork, terms: JobTerms) -> int:
    """Money found minus money that was there: of a network of the run's own in all, of others' network in this job."""
    job = await ledger.job(terms.id)
    if network.staged is not None:
        minted, nodes = sum(amount for _, amount in network.genesis.accounts), network.staged.nodes
        held = await _disputed(ledger, nodes, terms) + (job.burnt if job is not None else 0)
        return await _total_money(ledger, network, nodes) + held - minted
    paid = sum(lease.paid for lease in await ledger.leases(terms.id))
    return paid - job.paid if job is not None else 0


async def _all_proved(
    ledger: LedgerClient, network: JoinedNetwork, terms: JobTerms
) -> tuple[list[LedgerReceipt], dict[str, bytes]]:
    """All receipts, of one block: of several validators an empty one may still follow the last that held work."""
    for _ in range(_TRIES):
        receipts = [*await _receipts(ledger, terms), *await _channels(ledger, network)]
        if len({receipt.header.height for receipt in receipts}) == 1:
            with contextlib.suppress(VerificationError):
                return receipts, await _receipt_files(ledger, network, terms, receipts)
    receipts = [*await _receipts(ledger, terms), *await _channels(ledger, network)]
    return receipts, await _receipt_files(ledger, network, terms, receipts)


async def compare_validators(network: JoinedNetwork, reaches: Sequence[Reach], journal: EventEmitter) -> None:
    """Says that all validators hold one chain. Raises VerificationError FF-APP-298 where one holds another."""
    heights, longest = [], list[Hash]()
    for reach in reaches:
        ledger = client_in_run([reach], network.account, network.genesis, journal.emit)
        chain = [block.header.id for block in await ledger.blocks()]
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
    journal.emit(ChainComparisonEvent(validators=len(heights), blocks=max(heights), least=min(heights)))


async def _channels(ledger: LedgerClient, network: JoinedNetwork) -> list[LedgerReceipt]:
    """Proof of what each relay got: its channel with the requester, where there is one."""
    payer = network.account.public
    found = [await ledger.receipt(ChannelRow.TABLE, channel_key(payer, relay)) for relay in network.relays.values()]
    return [receipt for receipt in found if receipt is not None]


async def _receipts(ledger: LedgerClient, terms: JobTerms) -> list[LedgerReceipt]:
    """Proof of the job's end, of every party's pay, and of what became of its stake."""
    leases = await ledger.leases(terms.id)
    wanted = [(JobRow.TABLE, bytes(terms.id))]
    wanted += [(LeaseRow.TABLE, lease_key(terms.id, lease.node)) for lease in leases]
    wanted += [(NodeRow.TABLE, bytes(lease.node)) for lease in leases]
    return [await _proved(ledger, table, key) for table, key in wanted]


async def _receipt_files(
    ledger: LedgerClient, network: JoinedNetwork, terms: JobTerms, receipts: Sequence[LedgerReceipt]
) -> dict[str, bytes]:
    """What each party keeps, by name: its own rows and the job's, all of the last block."""
    rows = [(receipt, read_row(receipt)) for receipt in receipts]
    steps = await ledger.steps()
    files = {}
    leases = [row for _, row in rows if isinstance(row, LeaseRow)]
    for name, party in network.parties(leases).items():
        own = [r for r, row in rows if isinstance(row, LeaseRow | NodeRow) and row.node == party]
        channels = [r for r, row in rows if isinstance(row, ChannelRow) and party in (row.payer, row.relay)]
        if own or party == terms.requester:
            own += [r for r, row in rows if isinstance(row, JobRow)]
        own += channels
        if own:
            own.append(await _proved(ledger, AccountRow.TABLE, party))
            files[name] = write_receipt_file(network.genesis, party, own, steps)
    return files


async def _proved(ledger: LedgerClient, table: str, key: bytes) -> LedgerReceipt:
    receipt = await ledger.receipt(table, key)
    if receipt is None:
        raise RunError("FF-APP-067", "the ledger does not prove what it paid", hint="`farflung resume` asks again")
    return receipt


async def _total_money(ledger: LedgerClient, network: JoinedNetwork, nodes: Sequence[PeerId]) -> int:
    """All money of a staged network after everybody has left: it must be what genesis gave.

    What was burnt of stakes stays with its node's row for good, what no relay claimed in its channel. A stake that
    nobody took back is missing here.
    """
    owners = {owner for owner, _ in network.genesis.accounts} | set(network.genesis.validators)
    balances = sum([(await ledger.account(owner)).balance for owner in sorted(owners)])
    rows = [await ledger.node(node) for node in nodes]
    channels = [await ledger.channel(network.account.public, relay) for relay in network.relays.values()]
    burnt = sum(row.burnt for row in rows if row is not None)
    return balances + burnt + sum(row.held for row in channels if row is not None)


async def _disputed(ledger: LedgerClient, nodes: Sequence[PeerId], terms: JobTerms) -> int:
    """What disputes that are not decided hold: their own money, their games', and the stakes of their accusers."""
    rows = [await dispute_of(ledger, terms.id, node) for node in nodes]
    pending = [row for row in rows if row is not None and row.is_pending]
    accusers = sorted({accuser for row in pending for accuser in row.accusers})
    stakes = [await ledger.node(accuser) for accuser in accusers]
    games = [await ledger.row(PinpointRow, row.key) for row in pending]
    held = sum(row.money for row in (*pending, *games) if row is not None)
    return held + sum(row.free + row.locked for row in stakes if row is not None)
