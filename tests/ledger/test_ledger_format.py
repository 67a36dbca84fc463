"""The formats are final: these hashes change only with a new version of the ledger."""

from __future__ import annotations

from ledger_history import audited_batches, history
from ledger_world import JOB, NODES, REQUESTER, World, genesis

from farflung.core.codec import encode
from farflung.core.crypto import NS_SPEC, digest
from farflung.ledger import queries as q
from farflung.ledger import tx
from farflung.ledger.results import AlreadyApplied, Applied, Failed, Rejected


def named(value: object) -> str:
    return digest(NS_SPEC, encode(value)).hex()[:16]


def test_a_known_history_ends_in_a_known_block():
    """Holds every kind of row, and blocks with eight of the ten operations."""
    chain = history()
    assert (chain.id.hex()[:16], chain.head.id.hex()[:16], named(chain.blocks)) == (
        "8de395ee38929dda",
        "3e09e21fdc043780",
        "a3d9f8423834186e",
    )


def test_a_known_history_of_audits_and_slashing_ends_in_a_known_block():
    chain = history(audited_batches())
    assert (chain.head.id.hex()[:16], named(chain.blocks)) == ("ef34ffeecc905779", "ceafb84f7b9e5d71")


def test_wire_structs_have_known_bytes():
    world, chain = World(), history()
    ops = (tx.Transfer(REQUESTER.public, 5), tx.NodeLeave(), tx.JobCancel(JOB), world.accuse(NODES[0]))
    queries = (
        q.AskHead(),
        q.AskAccount(REQUESTER.public),
        q.AskNodes(3),
        q.AskJob(JOB),
        q.AskLeases(JOB),
        q.AskReceipt("jobs", JOB),
        q.AskBlocks(4),
        q.AskTx(JOB),
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
        "02d82639b637ac2c",
        "2fca20c33b647678",
        "d7afa2ba19561eee",
        "71bfb5cfa52ae10b",
    ]
