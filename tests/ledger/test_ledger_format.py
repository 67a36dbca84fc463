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
    """Holds every kind of row, and blocks with ten of the twelve operations."""
    chain = history()
    assert (chain.id.hex()[:16], chain.head.id.hex()[:16], named(chain.blocks)) == (
        "8de395ee38929dda",
        "f409b5d61a595685",
        "f3fb8b71519add9a",
    )


def test_a_known_history_of_audits_and_slashing_ends_in_a_known_block():
    chain = history(audited_batches())
    assert (chain.head.id.hex()[:16], named(chain.blocks)) == ("c4f8c519be15ffc1", "ec0449607461d02e")


def test_wire_structs_have_known_bytes():
    world, chain = World(), history()
    ops = (
        tx.Transfer(REQUESTER.public, 5),
        tx.NodeLeave(),
        tx.JobCancel(JOB),
        world.accuse(NODES[0]),
        *rotated(),
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
        "e42f0cf47df7630e",
        "0287cdefa7786d4d",
        "a078823ec5b8d20a",
        "71bfb5cfa52ae10b",
    ]
