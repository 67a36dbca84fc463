"""What a ledger answers over the wire."""

from __future__ import annotations

from pathlib import Path

import pytest
from ledger_history import history, signed
from ledger_world import ACTORS, JOB, NODES, OTHER_JOB, REQUESTER, RICH, STRANGER, VALIDATOR, genesis

from farflung.core import limits
from farflung.core.codec import encode
from farflung.core.crypto import local_key
from farflung.core.errors import ProtocolError
from farflung.core.ids import Hash
from farflung.ledger import queries as q
from farflung.ledger import transactions
from farflung.ledger.chain import Chain
from farflung.ledger.io.ledger_store import LedgerStore
from farflung.ledger.receipt_checks import check_receipt
from farflung.ledger.table_rows import AccountRow, KeyRow


@pytest.fixture(scope="module")
def chain() -> Chain:
    return history()


def keyed(count: int, blocks: int = 1) -> Chain:
    """So many accounts certify a key in each of so many blocks."""
    owners = tuple(local_key(7, "owner", index) for index in range(count))
    made = Chain(genesis(owners=(*ACTORS, *owners)), VALIDATOR)
    for number in range(blocks):
        ops = transactions.KeyCertify(STRANGER.public if number % 2 else VALIDATOR.public, number + 1, 9, 9)
        block, _ = made.propose([signed(made, owner, ops) for owner in owners], made.head.time + 1)
        made.adopt(block)
    return made


def ask(chain: Chain, query: q.Read) -> q.Reply:
    """There and back through the bytes of the wire."""
    read = q.read_query(encode(query))
    assert read == query
    assert not isinstance(read, q.SubmitRequest)
    said = q.reply(chain, read)
    assert q.read_reply(encode(said)) == said
    return said


def test_head_comes_with_its_certificate(chain: Chain):
    assert ask(chain, q.GetHead()) == q.HeadReply(chain.head, chain.certificate)
    assert ask(chain, q.GetCommittee()) == q.CommitteeReply(chain.state.committee, genesis().params)


def test_account_of_a_stranger_is_empty(chain: Chain):
    assert ask(chain, q.GetAccount(STRANGER.public)) == q.AccountReply(AccountRow(STRANGER.public, 0, 0))
    said = ask(chain, q.GetAccount(REQUESTER.public))
    assert said == q.AccountReply(AccountRow(REQUESTER.public, RICH - 150, 5))


def test_leases_come_in_the_order_of_their_making(chain: Chain):
    leases = ask(chain, q.GetLeases(JOB))
    assert isinstance(leases, q.LeasesReply)
    assert [row.node for row in leases.leases] == [key.public for key in NODES[:2]]
    assert ask(chain, q.GetLeases(OTHER_JOB)) == q.LeasesReply(())


def test_nodes_come_in_pages(chain: Chain, monkeypatch: pytest.MonkeyPatch):
    whole = ask(chain, q.GetNodes())
    assert isinstance(whole, q.NodesReply)
    assert ([row.node for row in whole.nodes], whole.next) == ([key.public for key in NODES], None)
    monkeypatch.setattr(q, "PAGE", 2)
    first = ask(chain, q.GetNodes())
    assert isinstance(first, q.NodesReply)
    assert (len(first.nodes), first.next) == (2, 2)
    assert ask(chain, q.GetNodes(2)) == q.NodesReply(whole.nodes[2:], None)
    assert ask(chain, q.GetNodes(-9)) == first
    assert ask(chain, q.GetNodes(99)) == q.NodesReply((), None)


def test_nodes_that_left_are_not_listed():
    chain = history()
    block, _ = chain.propose([signed(chain, NODES[1], transactions.NodeLeave())], 0)
    chain.adopt(block)
    said = ask(chain, q.GetNodes())
    assert isinstance(said, q.NodesReply)
    assert [row.node for row in said.nodes] == [NODES[0].public, NODES[2].public]


def test_receipt_is_valid_or_none(chain: Chain):
    said = ask(chain, q.GetReceipt("jobs", JOB))
    assert isinstance(said, q.ReceiptReply)
    assert said.receipt
    assert check_receipt(said.receipt, genesis()).key == JOB
    assert ask(chain, q.GetReceipt("jobs", OTHER_JOB)) == q.ReceiptReply(None)
    assert ask(chain, q.GetReceipt("nonsense", JOB)) == q.ReceiptReply(None)


def test_blocks_replay_at_the_other_end(chain: Chain, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(q, "PAGE", 2)
    reader = Chain(genesis())
    while reader.head.height < chain.head.height:
        said = ask(chain, q.GetBlocks(reader.head.height + 1))
        assert isinstance(said, q.BlocksReply)
        assert 1 <= len(said.blocks) <= 2
        for block in said.blocks:
            reader.adopt(block)
    assert reader.head == chain.head
    assert ask(chain, q.GetBlocks(chain.head.height + 1)) == q.BlocksReply(())
    assert ask(chain, q.GetBlocks(-7)) == ask(chain, q.GetBlocks(1))


def test_blocks_stop_where_a_message_is_full(chain: Chain, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(q, "_PAGE_BYTES", len(encode(chain.blocks[0])) + len(encode(chain.blocks[1])))
    said = ask(chain, q.GetBlocks(1))
    assert isinstance(said, q.BlocksReply)
    assert len(said.blocks) == 2
    monkeypatch.setattr(q, "_PAGE_BYTES", 1)
    said = ask(chain, q.GetBlocks(1))
    assert isinstance(said, q.BlocksReply)
    assert len(said.blocks) == 1


def test_place_of_a_transaction(chain: Chain):
    name = transactions.tx_id(chain.blocks[2].txs[0])
    assert ask(chain, q.GetTx(name)) == q.TxReply(3)
    assert ask(chain, q.GetTx(Hash(bytes(32)))) == q.TxReply(None)


def test_submission_and_its_results_cross_the_wire(chain: Chain):
    submit = q.SubmitRequest((signed(chain, NODES[0], transactions.NodeLeave()), chain.blocks[0].txs[0]))
    assert q.read_query(encode(submit)) == submit
    wrong = transactions.sign_tx(
        VALIDATOR, transactions.make_tx(chain.id, STRANGER.public, 0, transactions.NodeLeave())
    )
    failing = signed(chain, REQUESTER, transactions.NodeLeave())
    results = chain.propose([*submit.txs, wrong, failing], 0)[1]
    assert len({type(result) for result in results}) == 4
    assert q.read_reply(encode(q.SubmitReply(results))) == q.SubmitReply(results)


@pytest.mark.parametrize("data", [b"", b"\x91\xa1x", b"\xc0", encode(("account", 5)), encode(("head", 1))])
def test_rubbish_is_refused(data: bytes):
    for read in (q.read_query, q.read_reply):
        with pytest.raises(ProtocolError):
            read(data)


def test_an_oversized_query_is_refused_before_it_is_read():
    with pytest.raises(ProtocolError, match="FF-CORE-020"):
        q.read_query(bytes(limits.CONTROL_BYTES + 1))


def test_keys_that_changed_are_told_once_and_as_they_stand_now(chain: Chain):
    said = ask(chain, q.GetKeys())
    assert isinstance(said, q.KeysReply)
    assert said.keys == (chain.state.find(KeyRow, NODES[0].public),)
    assert said.keys[0].void == 1
    assert said.height == said.head == chain.head.height
    assert ask(chain, q.GetKeys(3)) == q.KeysReply((), said.head, said.head)
    for height in (said.head, said.head + 9, -3):
        assert ask(chain, q.GetKeys(height)).height == said.head


def test_keys_are_answered_in_pages_of_whole_blocks():
    chain = keyed(3, blocks=2 * q.PAGE // 3)
    seen, height, pages = 0, 0, 0
    while (said := ask(chain, q.GetKeys(height))).height < said.head:
        assert isinstance(said, q.KeysReply)
        assert said.height > height
        seen, height, pages = seen + len(said.keys), said.height, pages + 1
    assert pages + 1 == -(-chain.head.height // q.PAGE)
    many = keyed(q.PAGE, blocks=2)
    said = ask(many, q.GetKeys())
    assert isinstance(said, q.KeysReply)
    assert (len(said.keys), said.height, said.head) == (q.PAGE, 1, 2)


def test_a_full_block_of_keys_fits_one_answer():
    row = KeyRow(STRANGER.public, STRANGER.public, STRANGER.public, *5 * [(1 << 63) - 1])
    assert len(encode(q.KeysReply(limits.BLOCK_TXS * (row,), 1, 1))) <= limits.CONTROL_BYTES


def test_an_operation_that_failed_tells_nothing_new():
    chain = Chain(genesis(), VALIDATOR)
    block, _ = chain.propose([signed(chain, NODES[0], transactions.KeyCertify(STRANGER.public, 0, 9, 9))], 10**12)
    chain.adopt(block)
    assert ask(chain, q.GetKeys()) == q.KeysReply((), 1, 1)


@pytest.mark.parametrize("number", [-1, 1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 1])
def test_no_number_is_too_large_to_be_asked_for(tmp_path: Path, number: int):
    """Over a store as over memory: SQLite knows no number above 2^63 - 1."""
    store = LedgerStore.open(tmp_path / "ledger.db", genesis())
    chain = store.load(VALIDATOR)
    store.commit(chain, (), chain.head.time + 1)
    asked = (
        q.GetNodes(number),
        q.GetSteps(number),
        q.GetBlocks(number),
        q.GetKeys(number),
        q.GetRows("accounts", number),
        q.GetNodeLeases(NODES[0].public, number),
        q.GetJobTxs(JOB, number),
        q.GetSnapshotChunk(number, "accounts", number),
    )
    for query in asked:
        said = [q.reply(each, query) for each in (chain, Chain(genesis()))]
        assert all(encode(answer) for answer in said), query
    store.close()
