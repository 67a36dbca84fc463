"""What rounds are drawn from, asked of real validators: one answer a round, whoever asks, however often."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from core_asks import scheduled
from test_peers_validator_committee import ALICE, BOB, CAPS, World, run

from farflung.core.crypto import NS_SPEC, digest
from farflung.core.errors import RunError
from farflung.core.ids import ZERO_HASH, Hash
from farflung.ledger.table_rows import JobRow
from farflung.ledger.transactions import JobCoordinate, JobCreate, JobDraw, LeaseOffer, NodeRegister, sign_offer
from farflung.peers.ledger_client.client import LedgerClient
from farflung.peers.requester.audit_draw import CommitmentAnchors

JOB, ONE, OTHER = (digest(NS_SPEC, name) for name in (b"job", b"one", b"other"))
HOUR = 3_600_000


async def hired(made: World) -> LedgerClient:
    """Alice's client; her job runs."""
    alice, until = made.client(), made.genesis.time + 5 * HOUR
    await made.client(key=BOB).submit(NodeRegister(CAPS, 1, 100, until))
    offer = LeaseOffer(made.genesis.chain, JOB, BOB.public, 1, 100, 10, until)
    await alice.submit(JobCreate(JOB, 100, 1, 3, until - HOUR))
    await alice.submit(scheduled(JOB, [sign_offer(BOB, offer)]))
    return alice


def test_a_round_is_drawn_from_the_one_block_that_took_its_commitments(tmp_path: Path) -> None:
    async def body(made: World) -> None:
        alice = await hired(made)
        found = await CommitmentAnchors(alice, JOB).drop(0, ONE)
        chain = made.service(0).chain
        (block,) = (b for b in chain.blocks if any(JobDraw(JOB, 0, ONE) in s.tx.ops for s in b.txs))
        assert found == block.header.id
        assert await CommitmentAnchors(alice, JOB).drop(1, OTHER) not in (found, ZERO_HASH)
        # The next coordinator, after a crash: with a connection of its own, and what the log says.
        await made.client().submit(JobDraw(JOB, 2, ONE))
        again = await CommitmentAnchors(made.client(), JOB).drop(2, ONE)
        assert again == next(b.header.id for b in chain.blocks if any(JobDraw(JOB, 2, ONE) in s.tx.ops for s in b.txs))

    run(tmp_path, body)


def test_the_only_validator_adds_nothing_that_it_could_have_chosen(tmp_path: Path) -> None:
    async def body(made: World) -> None:
        anchors = CommitmentAnchors(await hired(made), JOB)
        assert await anchors.drop(0, ONE) == ZERO_HASH
        assert await anchors.drop(0, ONE) == ZERO_HASH

    run(tmp_path, body, seats=1)


@pytest.mark.parametrize(("round", "said"), [(0, OTHER), (2, ONE)])
def test_a_log_that_the_ledger_knows_otherwise_is_not_gone_on_with(tmp_path: Path, round: int, said: Hash) -> None:
    """It was restored from a copy that is older than what the ledger was told."""

    async def body(made: World) -> None:
        anchors = CommitmentAnchors(await hired(made), JOB)
        await anchors.drop(0, ONE)
        with pytest.raises(RunError, match="FF-APP-389"):
            await anchors.drop(round, said)

    run(tmp_path, body, seats=1)


def test_what_others_said_in_vain_before_a_draw_draws_nothing() -> None:
    """A stranger, and a process of the requester that does not know yet that another one took the job over."""
    said, name = JobDraw(JOB, 0, ONE), SimpleNamespace
    older, newer = (JobCoordinate(JOB, term, OTHER) for term in (1, 2))
    told = [(BOB, said), (ALICE, older), (ALICE, said), (ALICE, newer), (ALICE, older, said), (ALICE, newer, said)]
    told += [(ALICE, newer, said), (ALICE, JobCoordinate(JOB, 3, OTHER))]
    txs = [name(tx=name(sender=key.public, ops=ops)) for key, *ops in told]
    blocks = [name(header=name(height=height), txs=[tx]) for height, tx in enumerate(txs, 1)]

    async def job(_: Hash) -> JobRow:
        return JobRow(JOB, ALICE.public, 1, 1, 1, 1, drawn=1, drawn_of=ONE)

    async def answer(found: Any = blocks) -> Any:
        return found

    ledger = name(job=job, blocks=answer, unforeseen=answer)
    assert asyncio.run(CommitmentAnchors(cast(LedgerClient, ledger), JOB).drop(0, ONE)) == 6
