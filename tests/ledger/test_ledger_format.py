"""The formats are final: these hashes change only with a new version of the ledger."""

from __future__ import annotations

from ledger_game import HONEST, TINY, Game, flipped
from ledger_history import audited_batches, disputed_batches, governed_batches, history, perjured_batches, rotated
from ledger_world import JOB, NODES, REQUESTER, SLOW_PARAMS, STRANGER, World, genesis

from farflung.core.codec import encode
from farflung.core.crypto import NS_SPEC, digest
from farflung.ledger import queries as q
from farflung.ledger import search_queries, transactions
from farflung.ledger.disputes import DisputeAnswer, JuryVote
from farflung.ledger.earnings_tally import JobAttest
from farflung.ledger.exclusions import Appeal, AppealVote, HostTampered
from farflung.ledger.pinpoint_game import PinpointStage
from farflung.ledger.tx_results import AlreadyAppliedResult, AppliedResult, FailedResult, RejectedResult


def named(value: object) -> str:
    return digest(NS_SPEC, encode(value)).hex()[:16]


def test_a_known_history_ends_in_a_known_block():
    """Holds all kinds of rows but those of disputes, and blocks with thirteen of the nineteen operations."""
    chain = history()
    assert (chain.id.hex()[:16], chain.head.id.hex()[:16], named(chain.blocks)) == (
        "b255b700f7faee1a",
        "ef5946071a7838ca",
        "e5b1188cf4e62573",
    )


def test_a_known_history_of_audits_and_slashing_ends_in_a_known_block():
    chain = history(audited_batches())
    assert (chain.head.id.hex()[:16], named(chain.blocks)) == ("4e73861f52c24cea", "ceef36cb55546045")


def test_a_known_history_of_a_dispute_and_a_voucher_ends_in_a_known_block():
    chain = history(disputed_batches(), SLOW_PARAMS)
    assert (chain.head.id.hex()[:16], named(chain.blocks)) == ("971eee0a17e5b4df", "3a1e9754984b6f9b")


def test_a_known_history_of_a_canary_ends_in_a_known_block():
    chain = history(perjured_batches())
    assert (chain.head.id.hex()[:16], named(chain.blocks)) == ("2835c77f1d891ae2", "72376b05c9956862")


def test_a_known_history_of_validators_and_motions_ends_in_a_known_block():
    chain = history(governed_batches())
    assert (chain.head.id.hex()[:16], named(chain.blocks)) == ("687fb85d41e3cae5", "f050111358c67a36")


def test_a_known_game_leaves_known_rows():
    game = Game(TINY.player(flipped(20)), HONEST).begun()
    ops = [game.opening(), game.challenge(), game.verdict_leaf()]
    while game.row.stage != PinpointStage.REFEREE:
        ops += [game.move(0), game.move(1)]
        game.step()
    ops.append(game.exhibit())
    game.must(STRANGER, ops[-1])
    assert (game.state.root.hex()[:16], named(tuple(ops))) == ("90fabe6c4c651244", "b818a5acfeb1711e")


def test_wire_structs_have_known_bytes():
    world, chain = World(), history()
    ops = (
        transactions.Transfer(REQUESTER.public, 5),
        transactions.NodeLeave(),
        transactions.JobCancel(JOB),
        world.accuse(NODES[0]),
        *rotated(),
        world.draw(2),
        world.open_channel(),
        transactions.ChannelClaim(REQUESTER.public, (world.passage(3, (NODES[0], 70, 9)),)),
        transactions.ChannelClose(REQUESTER.public),
        world.settle_many((NODES[0], 70), (NODES[1], 8)),
        JobAttest(JOB, world.settle_many().signed.marks),
        DisputeAnswer(JOB, 5, JOB),
        JuryVote(JOB, REQUESTER.public, True),
        HostTampered(JOB, JOB),
        Appeal(5, JOB),
        AppealVote(REQUESTER.public, True),
    )
    queries = (
        q.GetHead(),
        q.GetCommittee(),
        q.GetAccount(REQUESTER.public),
        q.GetNodes(3),
        q.GetLeases(JOB),
        q.GetReceipt("jobs", JOB),
        q.GetSteps(),
        q.GetBlocks(4),
        q.GetTx(JOB),
        search_queries.GetRows("nodes"),
        search_queries.GetNodeLeases(NODES[0].public),
        search_queries.GetNames(JOB.hex()[:8]),
        search_queries.GetJobTxs(JOB),
        q.GetKeys(),
        q.GetGenesis(),
    )
    answers = tuple(q.reply(chain, query) for query in queries)
    results = (
        AppliedResult(JOB, 1),
        FailedResult(JOB, 2, 3, "code", "message"),
        RejectedResult(JOB, "code", "message"),
        AlreadyAppliedResult(JOB, 4, "code"),
    )
    rest = (
        q.SubmitRequest((world.sign(NODES[0], *ops),)),
        q.SubmitReply(results),
        q.QueryErrorReply("code", "message"),
    )
    assert [named(value) for value in (queries, answers, rest, genesis())] == [
        "07a158fa8611ce1b",
        "c9d459f423a60b9f",
        "a75df04825aaa7aa",
        "c8d9faff8628ec41",
    ]
