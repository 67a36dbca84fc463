"""Prepares a run on a network that others keep: joins it, looks who is online, sees that the account can pay.

Nothing is locked here: the requester's process funds the job when the person has agreed.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from farflung.core import relay_passes
from farflung.core.crypto import SigningKey
from farflung.core.errors import NetworkError, PolicyError
from farflung.core.ids import PeerId, short
from farflung.core.money import Credits, format_credits, times
from farflung.core.units import Seconds, format_seconds
from farflung.job.job_loader import ResolvedJob
from farflung.job.open_network import may_hire_fewer_verifiers
from farflung.job.proof_class import may_be_outcome
from farflung.job.spec import JobSpec
from farflung.ledger.params import LedgerParams
from farflung.ledger.transactions import LeaseRole
from farflung.net.counters import ByteCounter
from farflung.net.io.endpoint import Endpoint
from farflung.peers.ledger_client.client import LedgerClient, serve_nothing
from farflung.peers.ledger_client.connect import any_of, reaches_of, validators_in
from farflung.peers.ledger_client.quorum_read import Reach
from farflung.peers.network.account import own_account
from farflung.peers.network.grant import request_grant
from farflung.peers.network.invitation import is_invitation, read
from farflung.peers.network.join import KnownNetwork, join
from farflung.peers.network.model_transfer import FoundModel, ModelSource, find
from farflung.peers.network.published_model import PREFIX, query_of
from farflung.peers.protocol.job_notices import NOTICE_SECONDS, JobNotice, announce
from farflung.peers.requester.lease_negotiation import StandingAsks, read_asks
from farflung.peers.requester.market_survey import MarketSurvey, away_of, survey
from farflung.peers.rundir.genesis import stake_of
from farflung.peers.rundir.inputs import known_layout
from farflung.peers.rundir.network_record import NetworkRecord
from farflung.plan.run_duration import forward_flop
from farflung.plan.run_price import RunPrice, price, price_at

LOOK_SECONDS: Final = 1.0  # between two looks at the market
TRANSACTIONS: Final = 20  # that a job takes beside those of its rounds
OF_A_ROUND: Final = 4

Tell = Callable[[str], None]


class RemoteStart(NamedTuple):
    """What a run on a network begins with. Pico-credits: `cost` as the asks stand now, `fees` at most, `balance` of the
    account, `need`: what the job may take; `price` is at the job's own `unit_price`.
    """

    network: KnownNetwork
    record: NetworkRecord
    found: MarketSurvey
    price: RunPrice
    cost: Credits
    fees: Credits
    balance: int
    need: int
    model: FoundModel | None = None  # that `model.start` names

    @property
    def verifiers(self) -> int:
        """How many the job is to have."""
        return self.found.verifiers.wanted


async def prepare_start(
    on: str, job: ResolvedJob, memory_bytes: int, deadline: int, wait: Seconds, tell: Tell
) -> RemoteStart:
    """Joins the network that `on` names and looks at its market until enough nodes are online, `wait` at most.

    A second verifier that nobody asked for is left out where there is none: `found` says how many the job can have.
    `deadline`: of the job, ms since 1970. `tell` hears a line of each step. Raises what `join` raises, PolicyError
    FF-APP-562 (too few nodes), FF-APP-563 (too little money), FF-APP-564 (the ledger allows no such deadline),
    FF-APP-680 (a named verifier that cannot be one).
    """
    spec = job.spec
    priced = price(spec)
    known, account = await join(on), own_account()
    for note in known.notes:
        tell(note)
    model = None
    if spec.model.start.startswith(PREFIX):
        model = await find(ModelSource(known.genesis, known.ledger, account), query_of(spec.model.start))
    law = known.genesis.params
    _check_deadline(law, deadline)
    relay_price = max((relay.price for relay in known.card.relays), default=0)
    endpoint = Endpoint(account, serve_nothing, ByteCounter())
    try:
        reaches = reaches_of(validators_in(known.ledger), endpoint)
        ledger = LedgerClient(reaches, account, known.genesis)
        channels = len(known.relays) * relay_passes.cost(relay_passes.GIB, relay_price)  # at least: what each is given
        fees = times(Credits(law.fee_min), TRANSACTIONS + OF_A_ROUND * spec.rounds)
        need = priced.escrow + channels + fees
        token = read(on).token if is_invitation(on) else b""
        balance = await _funded(known, ledger, account, need, token, tell)
        wanted = notice_of(spec, priced, memory_bytes)
        found = await _found(ledger, reaches, job, wanted, wait, tell)
    finally:
        await endpoint.close()
    record = NetworkRecord(known.name, known.ledger, deadline, found.stake, known.relays, relay_price)
    cost = price_at(spec, found.providers.unit_price, found.verifiers.unit_price)
    return RemoteStart(known, record, found, priced, cost, fees, balance, need, model)


def _check_deadline(law: LedgerParams, deadline: int) -> None:
    span = deadline - round(1000 * time.time())
    if span > law.job_ms_max:
        raise PolicyError(
            "FF-APP-564",
            f"this network's jobs end within {format_seconds(Seconds(law.job_ms_max / 1000))}",
            cause=f"the deadline is {format_seconds(Seconds(span / 1000))} from now",
            hint='an earlier one: deadline = "2h" in the job file, or --deadline 2h',
        )


async def _funded(
    known: KnownNetwork, ledger: LedgerClient, account: SigningKey, need: int, token: bytes, tell: Tell
) -> int:
    """The account's balance, after a grant where it needs one. Raises PolicyError FF-APP-563."""
    balance, refused = (await ledger.account(account.public)).balance, ""
    if balance < need and known.card.faucet.grant:
        tell(f"The account holds {format_credits(Credits(balance))} credits: asks the network's faucet")
        try:
            await request_grant(known, account, token)
        except PolicyError as error:
            refused = f"; its faucet: {error.message}"
        balance = (await ledger.account(account.public)).balance
    if balance >= need:
        return balance
    raise PolicyError(
        "FF-APP-563",
        f"the account holds {format_credits(Credits(balance))} credits, the job locks up to"
        f" {format_credits(Credits(need))}",
        cause=f"account {account.public.hex()} on network {known.name}; escrow, and fees{refused}",
        hint="ask the network's operator for credits, or choose fewer rounds (--rounds) or a smaller budget",
    )


def notice_of(spec: JobSpec, priced: RunPrice, memory_bytes: int) -> JobNotice:
    """What lenders are told of a job that waits for nodes."""
    layout, is_module = known_layout(spec), spec.model.kind == "module"
    return JobNotice(
        token_flop=int(3 * forward_flop(spec, layout)) if layout is not None and not is_module else 0,
        tokens=spec.rounds * spec.round_tokens,
        unit_price_max=priced.unit,
        escrow=priced.escrow,
        worker_bytes=memory_bytes,
        is_module=is_module,
        providers=spec.network.providers,
        verifiers=spec.verifiers,
        is_named=bool(spec.audit.verifiers),
        is_outcome=may_be_outcome(spec),
    )


async def _found(
    ledger: LedgerClient, reaches: Sequence[Reach], job: ResolvedJob, wanted: JobNotice, wait: Seconds, tell: Tell
) -> MarketSurvey:
    """Who is online, when enough are; lenders can read what is looked for. Raises PolicyError FF-APP-562."""
    directory, spec = any_of(reaches), job.spec
    began, told, posted = time.monotonic(), "", -NOTICE_SECONDS
    while True:
        asks = await read_asks(ledger, await directory())
        await check_named(spec.named_verifiers, asks, ledger)
        found = survey(spec, asks, wanted.worker_bytes, stake_of(spec))
        if found.is_enough:
            return found
        if may_hire_fewer_verifiers(job) and found.providers.is_enough and found.verifiers.fitting:
            fewer = replace(spec, network=replace(spec.network, verifiers=found.verifiers.fitting))
            return survey(fewer, asks, wanted.worker_bytes, stake_of(spec))
        said = online_text(found)
        waited = time.monotonic() - began
        if waited >= wait:
            raise PolicyError(
                "FF-APP-562",
                f"too few nodes: {said}",
                cause="; ".join(filter(None, (found.providers.why or found.verifiers.why, found.versions)))
                or "no more are online",
                hint="wait longer (--wait 1h), or hire fewer: --set network.providers=N --set network.verifiers=N",
            )
        if said != told:
            tell(f"{said}; waits for more, {format_seconds(Seconds(wait - waited))} at most")
            told = said
        if waited - posted >= NOTICE_SECONDS / 2:
            with contextlib.suppress(NetworkError):  # the job is found without it, too
                await announce(await directory(), wanted)
                posted = waited
        await asyncio.sleep(LOOK_SECONDS)


def online_text(found: MarketSurvey) -> str:
    """`8 of 8 providers, 3 of 3 verifiers online`; and why not, where as many ask."""
    providers, verifiers = found.providers, found.verifiers
    unfit = [role.why for role in (providers, verifiers) if role.online >= role.wanted > role.fitting and role.why]
    said = [f"{min(providers.fitting, providers.wanted)} of {providers.wanted} providers"]
    if verifiers.wanted:
        said.append(f"{min(verifiers.fitting, verifiers.wanted)} of {verifiers.wanted} verifiers")
    away = f" (away: {', '.join(short(key) for key in found.away)})" if found.away else ""
    return "; ".join([f"{', '.join(said)} online{away}", *unfit])


async def check_named(names: Sequence[PeerId], asks: StandingAsks, ledger: LedgerClient) -> None:
    """Whether each named verifier is another account's node, on the ledger, that does not lend to train.

    One that is away is none of these. Raises PolicyError FF-APP-680 with all of them.
    """
    training, away = {ask.peer for ask in asks.of[LeaseRole.TRAIN]}, away_of(names, asks)
    wrong = []
    for name in names:
        if name == ledger.own:
            wrong.append(f"{name.hex()} is your own account, which checks no job of its own")
        elif name in away and name in training:
            wrong.append(f"{short(name)} lends to train, not to check (farflung lend --audit)")
        elif name in away and await ledger.node(name) is None:
            wrong.append(f"{name.hex()} is no node of this network")
    if wrong:
        raise PolicyError(
            "FF-APP-680",
            "audit.verifiers names a key that cannot check this job",
            cause="; ".join(wrong),
            hint="name keys of verifiers, or leave audit.verifiers out; nothing is locked",
        )
