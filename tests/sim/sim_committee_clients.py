"""Clients of a simulated committee: accounts that pay, hire, work, bond stakes and vote on motions, from one seed.

Each hands its next transaction to some validator, again and again until it is final, and then makes the next one.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from core_asks import scheduled
from msgspec.structs import replace
from sim_committee_app import CheapKey
from sim_committee_law import LawWorld

from farflung.core.crypto import NS_SEAT, NS_SPEC, digest, local_key
from farflung.core.ids import Hash, PeerId
from farflung.ledger import transactions
from farflung.ledger.block import Genesis
from farflung.ledger.ledger_state import LedgerState
from farflung.ledger.motions import (
    AdmitValidator,
    AmendParams,
    Motion,
    MotionRow,
    MotionVote,
    RemoveValidator,
    What,
    motion_id,
)
from farflung.ledger.params import LedgerParams
from farflung.ledger.table_rows import AccountRow, JobRow, NodeRow
from farflung.ledger.validators import ValidatorJoin, ValidatorRow, ValidatorState, join_parts

RICH, START, STEP_MS = 1_000_000, 1000, 30
JOB, ROOT, CAPS = (digest(NS_SPEC, name) for name in (b"job", b"root", b"caps"))

PATIENCE = 5000  # at this time accounts stop waiting for each other

Intent = Callable[[LedgerState], transactions.Op | None]  # what an account does next, or None while it cannot


class Story(NamedTuple):
    """Seats of the genesis; validators that join; whether seat 0 is removed; blocks of an epoch at least."""

    seats: int
    joins: int
    removes: bool
    epoch_blocks: int


STORIES = (
    Story(4, 0, False, 3),
    Story(4, 1, False, 2),
    Story(4, 1, True, 2),
    Story(7, 0, False, 4),
    Story(1, 3, False, 2),
)


@dataclass
class Client:
    """One account and what it means to do, in order."""

    key: Any
    intents: list[Intent] = field(default_factory=list)
    sent: transactions.SignedTx | None = None

    def next(self, state: LedgerState) -> transactions.SignedTx | None:
        """The transaction to hand in now, by what is known to be final."""
        nonce = (state.find(AccountRow, self.key.public) or AccountRow(self.key.public)).nonce
        if self.sent is not None and nonce > self.sent.tx.nonce:
            self.sent = None
            del self.intents[0]
        if self.sent is None and self.intents:
            op = self.intents[0](state)
            if op is not None:
                said = transactions.make_tx(state.law.chain, self.key.public, nonce, op, fee=state.params.fee_min)
                self.sent = transactions.sign_tx(self.key, said)
        return self.sent


class Busy(LawWorld):
    """A ledger with clients."""

    clients: tuple[Client, ...] = ()

    def start(self) -> None:
        super().start()
        self.step()

    def step(self) -> None:
        best = self.best()
        for client in self.clients if best is not None else ():
            signed = client.next(best.app.chain.state)
            if signed is not None:
                self.source.choice(self.nodes).feed(signed)
        if not self.is_settled():
            self.at(self.now + STEP_MS, self.step)

    def is_settled(self) -> bool:
        return not any(client.intents for client in self.clients)


def law_world(seed: int, source: random.Random, is_real: bool) -> tuple[LawWorld, int]:
    """Whole validators of one ledger with clients; and its first seats."""
    story = source.choice(STORIES)
    names = ("payer", "payee", "requester", "worker", "helper")
    make = (lambda index: local_key(seed, "key", index)) if is_real else CheapKey
    seats = [make(index) for index in range(story.seats + story.joins)]
    people = dict(zip(names, (make(100 + index) for index in range(len(names))), strict=True))
    owners = [make(200 + index) for index in range(story.joins)]
    params = LedgerParams(
        fee_min=source.randrange(3),
        epoch_blocks=story.epoch_blocks,
        delta_ms=source.choice((20, 40)),
        idle_ms=200,
        unbonding_ms=source.choice((2000, 10**6)),
        dispute_ms=0,
    )
    rich = tuple((key.public, RICH) for key in (*seats, *people.values(), *owners))
    members = tuple(key.public for key in seats[: story.seats])

    world = Busy(len(seats), lambda keys: Genesis("sim", START, rich, members, params), seed=seed, keys=seats)
    world.clients = (
        *(Client(people[name], transfers(source, [key for key, _ in rich])) for name in ("payer", "payee")),
        *hiring(people["requester"], [people["worker"], people["helper"]], world.genesis.chain),
        *committee(story, seats, owners, world.genesis),
    )
    return world, story.seats


def transfers(source: random.Random, to: list[PeerId]) -> list[Intent]:
    """Payments, some of which the account cannot make."""
    amounts = [source.choice((1, 1000, RICH // 2, 2 * RICH)) for _ in range(source.randint(2, 5))]
    return [always(transactions.Transfer(source.choice(to), amount)) for amount in amounts]


def always(op: transactions.Op) -> Intent:
    return lambda _: op


def hiring(requester: Any, workers: list[Any], chain: Hash) -> tuple[Client, ...]:
    """A job from its escrow to its settlement."""

    def schedule(state: LedgerState) -> transactions.Op | None:
        if any(state.find(NodeRow, key.public) is None for key in workers):
            return None
        ends = state.time + 10**6
        offers = [transactions.LeaseOffer(chain, JOB, key.public, 5, 100, 60, ends) for key in workers]
        signed = [transactions.sign_offer(key, offer) for key, offer in zip(workers, offers, strict=True)]
        return scheduled(JOB, signed)

    def progress(_: LedgerState) -> transactions.Op:
        return transactions.Progress(JOB, 0, ROOT, CAPS, tuple((key.public, 10) for key in workers))

    def register(state: LedgerState) -> transactions.Op:
        return transactions.NodeRegister(CAPS, 3, 500, state.time + 10**7)

    course: list[Intent] = [
        lambda state: transactions.JobCreate(JOB, 1000, 5, 1, state.time + 10**6),
        schedule,
        progress,
        always(transactions.JobFinish(JOB, ROOT, CAPS)),
        lambda state: transactions.JobSettle(JOB) if state.find(JobRow, JOB) else None,
    ]
    return (
        Client(requester, course),
        Client(workers[0], [register]),
        Client(workers[1], [register, always(transactions.NodeLeave())]),
    )


def committee(story: Story, seats: list[Any], owners: list[Any], genesis: Genesis) -> list[Client]:
    """Joining, motions and the votes for them."""
    chain, mover = genesis.chain, seats[0]
    clients = [Client(key) for key in seats[: story.seats]]
    for seat, owner in zip(seats[story.seats :], owners, strict=True):
        signature = seat.sign(NS_SEAT, *join_parts(chain, owner.public))
        join = ValidatorJoin(seat.public, 500, "sim.example:1", signature)
        clients.append(Client(owner, [always(join)]))
    motions = [
        Motion(AdmitValidator(seat.public), START + 10**6 + place) for place, seat in enumerate(seats[story.seats :])
    ]
    motions.append(Motion(AmendParams(replace(genesis.params, idle_ms=150)), START + 10**6))
    if story.removes:
        motions.append(Motion(RemoveValidator(mover.public), START + 10**6 + 9))
    for motion in motions:
        clients[0].intents.append(moving(motion))
        for client in clients[1 : story.seats]:
            client.intents.append(voting(motion_id(chain, mover.public, motion)))
    return clients


def moving(motion: Motion) -> Intent:
    """Or a payment to nobody, where what it waits for does not happen: the mover's own seat may be lost by then."""

    def move(state: LedgerState) -> transactions.Op | None:
        if _may(state, motion.what):
            return motion
        return transactions.Transfer(state.committee.members[0], 1) if state.time > PATIENCE else None

    return move


def voting(motion: Hash) -> Intent:
    def vote(state: LedgerState) -> transactions.Op | None:
        is_moved = state.find(MotionRow, motion) is not None
        return MotionVote(motion) if is_moved or state.time > PATIENCE else None

    return vote


def _may(state: LedgerState, what: What) -> bool:
    if isinstance(what, AdmitValidator):
        row = state.find(ValidatorRow, what.validator)
        return row is not None and row.state == ValidatorState.CANDIDATE
    return not isinstance(what, RemoveValidator) or len(state.committee.members) > 4
