"""The formats are final: these hashes change only with a new version of the ledger."""

from __future__ import annotations

from ledger_history import audited_batches, history, rotated
from ledger_world import JOB, NODES, REQUESTER, World, genesis

from farflung.core.codec import encode
from farflung.core.crypto import NS_SPEC, digest
from farflung.ledger import queries as q
from farflung.ledger import tx
from farflung.ledger.results import AlreadyApplied, Applied, Failed, Rejected


def named(value: object) -> str:
    return digest(NS_SPEC, encode(value)).hex()[:16]


def test_a_known_history_ends_in_a_known_block():
    """Holds every kind of row, and blocks with thirteen of the fifteen operations."""
    chain = history()
    assert (chain.id.hex()[:16], chain.head.id.hex()[:16], named(chain.blocks)) == (
        "8de395ee38929dda",
        "70a50d63ac53cbca",
        "55fb2b1d6499407f",
    )


def test_a_known_history_of_audits_and_slashing_ends_in_a_known_block():
    chain = history(audited_batches())
    assert (chain.head.id.hex()[:16], named(chain.blocks)) == ("9384e2e8ead3194a", "fe98b5448ad1c0ae")


def test_wire_structs_have_known_bytes():
    world, chain = World(), history()
    ops = (
        tx.Transfer(REQUESTER.public, 5),
        tx.NodeLeave(),
        tx.JobCancel(JOB),
        world.accuse(NODES[0]),
        *rotated(),
        world.open_channel(),
        tx.ChannelClaim(REQUESTER.public, (world.passage(3, (NODES[0], 70, 9)),)),
        tx.ChannelClose(REQUESTER.public),
    )
    queries = (
        q.AskHead(),
        q.AskAccount(REQUESTER.public),
        q.AskNodes(3),
        q.AskJob(JOB),
        q.AskLeases(JOB),
        q.AskReceipt("jobs", JOB),
        q.AskBlocks(4),
        q.AskTx(JOB),
        q.AskKeys(),
        q.AskGenesis(),
    )
    answers = tuple(q.answer(chain, query) for query in queries)
    results = (
        Applied(JOB, 1),
        Failed(JOB, 2, 3, "code", "message"),
        Rejected(JOB, "code", "message"),
        AlreadyApplied(JOB, 4, "code"),
    )
    rest = (q.Submit((world.sign(NODES[0], *ops),)), q.Submitted(results), q.Refused("code", "message"))
    assert [named(value) for value in (queries, answers, rest, genesis())] == [
        "f669d98e8f4e2ee7",
        "36f12f3f2de002c8",
        "73a3b47c4b84c1ee",
        "71bfb5cfa52ae10b",
    ]
