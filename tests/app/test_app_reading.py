"""What readers of a ledger are answered: every answer fits its description, and its proof holds for who checks it."""

from __future__ import annotations

import base64
import csv
import json
import re
import urllib.error
import urllib.request
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from app_reading import served
from click.testing import CliRunner
from hypothesis import example, given
from hypothesis import strategies as st
from ledger_committee import SEATS, Reign
from ledger_history import (
    audited_batches,
    batches,
    disputed_batches,
    governed_batches,
    history,
    perjured_batches,
    signed,
)
from ledger_world import JOB, NODES, PARAMS, REQUESTER, SLOW_PARAMS, VALIDATOR

from farflung.app.cli.main import cli
from farflung.app.explorer.ledger_export import chain_of, lines_of
from farflung.app.explorer.lookup import LookupTarget, place_of
from farflung.app.explorer.proofs import ProofChecker
from farflung.app.explorer.schema_check import fault_of
from farflung.app.explorer.screens import PATHS, facts, screen
from farflung.app.explorer.sources import FileLedgerSource, HttpLedgerSource, chain_from
from farflung.app.explorer.statements import COLUMNS, as_csv, cell, record, statement_of
from farflung.core.errors import FarflungError, NetworkError, UsageError, VerificationError
from farflung.core.ids import Hash, PeerId
from farflung.ledger import transactions
from farflung.ledger.block_execution import make
from farflung.ledger.chain import Chain
from farflung.ledger.table_rows import KINDS, AccountRow, JobRow, NodeRow
from farflung.ledger.transactions import tx_id
from farflung.ledger.votes import VoteKind
from farflung.peers.ledger_http import openapi, routes
from farflung.peers.ledger_http.metrics import LedgerMetrics
from farflung.peers.ledger_http.rate_limit import AddressRateLimiter, block_of

HISTORIES = {
    "plain": batches,
    "audited": audited_batches,
    "disputed": disputed_batches,
    "perjured": perjured_batches,
    "governed": governed_batches,
}


@cache
def chain_named(name: str) -> Chain:
    return history(HISTORIES[name](), SLOW_PARAMS if name == "disputed" else PARAMS)


def source_of(name: str = "plain") -> FileLedgerSource:
    return FileLedgerSource(name, chain_named(name))


def targets(chain: Chain) -> list[str]:
    """A request of every path, and for every row that there is."""
    txs = [tx_id(signed).hex() for block in chain.blocks for signed in block.txs]
    rows = [f"/v1/receipts/{name}/{row.key.hex()}" for name in KINDS for row in chain.state.tables[name].rows]
    jobs = [row.job.hex() for row in chain.state.rows(JobRow)]
    return [
        "/v1/head",
        "/v1/genesis",
        "/v1/validators",
        "/v1/committees/0",
        "/v1/params",
        "/v1/motions",
        "/v1/steps",
        "/v1/blocks?whole=1",
        "/v1/blocks?from=2&limit=1",
        *(f"/v1/blocks/{block.header.height}" for block in chain.blocks),
        *(f"/v1/tx/{name}" for name in txs),
        *(f"/v1/accounts/{key.public.hex()}" for key in (VALIDATOR, REQUESTER)),
        "/v1/nodes",
        *(f"/v1/nodes/{row.node.hex()}{more}" for row in chain.state.rows(NodeRow) for more in ("", "/leases")),
        *(path for job in jobs for path in (f"/v1/jobs/{job}", f"/v1/jobs/{job}/life")),
        *rows,
        f"/v1/find/{JOB.hex()[:8]}",
    ]


@pytest.mark.parametrize("name", HISTORIES)
def test_every_answer_is_as_the_description_says(name: str) -> None:
    chain = chain_named(name)
    described = openapi.description()["paths"]
    asked = set()
    for target in targets(chain):
        route, _ = routes.found(target)
        schema = described[route.path]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
        answer = json.loads(json.dumps(source_of(name).get(target)))
        assert fault_of(answer, schema) == "", target
        asked.add(route.path)
    assert asked == set(described) or name == "governed", "a path was not asked"


def test_the_check_against_a_description_sees_what_is_wrong() -> None:
    schema = routes.found("/v1/head")[0].schema
    answer = source_of().get("/v1/head")
    assert fault_of(answer, schema) == ""
    assert "lacks" in fault_of({"genesis": answer["genesis"]}, schema)
    assert "besides" in fault_of({**answer, "more": 1}, schema)
    assert "no such text" in fault_of({**answer, "genesis": "xyz"}, schema)


def test_a_live_listener_answers_and_its_description_is_its_own() -> None:
    with served(chain_named("audited")) as url:
        with urllib.request.urlopen(f"{url}/v1/openapi.json") as reply:
            told = json.load(reply)
        assert told == json.loads(json.dumps(openapi.description()))
        checker = ProofChecker(HttpLedgerSource(url), chain_named("audited").id)
        for kind, name in places():
            assert screen(checker, LookupTarget(kind, name), 80)
        assert chain_from(checker.source, checker.genesis).head == chain_named("audited").head
        with urllib.request.urlopen(f"{url}/metrics") as reply:
            assert b"farflung_ledger_api_requests_total" in reply.read()


def places() -> list[tuple[str, str]]:
    chain = chain_named("audited")
    return [
        ("head", ""),
        ("validators", ""),
        ("params", ""),
        ("block", "0"),
        ("block", "3"),
        ("txs", tx_id(chain.blocks[2].txs[0]).hex()),
        ("jobs", JOB.hex()),
        ("nodes", NODES[1].public.hex()),
        ("accounts", REQUESTER.public.hex()),
    ]


@pytest.mark.parametrize("columns", [40, 80, 120])
@pytest.mark.parametrize("place", places(), ids=lambda place: f"{place[0]}{place[1][:4]}")
def test_a_screen_fits_its_width_and_says_what_was_proved(place: tuple[str, str], columns: int) -> None:
    rows = screen(ProofChecker(source_of("audited"), None), LookupTarget(*place), columns)
    assert max(len(row.text) for row in rows) <= columns
    assert any(row.text.startswith("Genesis") for row in rows)


def test_a_jobs_life_holds_what_was_claimed_by_vouchers_and_what_was_disputed() -> None:
    rows = [row.text for row in screen(ProofChecker(source_of("disputed"), None), LookupTarget("jobs", JOB.hex()), 120)]
    told = " ".join(rows)
    assert all(words in told for words in ("count 1 voucher", "deny what is said", "innocent", "early"))


def test_a_jobs_life_says_whose_guess_was_wrong() -> None:
    rows = [row.text for row in screen(ProofChecker(source_of("perjured"), None), LookupTarget("jobs", JOB.hex()), 120)]
    assert "called planted work true" in " ".join(rows)


def test_a_jobs_life_is_told_in_the_order_of_its_blocks() -> None:
    rows = [row.text for row in screen(ProofChecker(source_of("audited"), None), LookupTarget("jobs", JOB.hex()), 120)]
    first = next(number for number, row in enumerate(rows) if row.startswith("Life"))
    told = " ".join(row.split("block ", 1)[-1] for row in rows[first:])
    words = ("create job", "take 2 offers", "fix what was committed", "record round 0", "accuse", "hand over", "settle")
    assert [told.index(word) for word in words] == sorted(told.index(word) for word in words)
    heights = [int(m[1]) for row in rows[first:] if (m := re.search(r"block (\d+)  ", row))]
    assert heights == sorted(heights)


class Liar:
    """A source that changes one byte of a proof, or of the form, of every answer but the genesis."""

    name, known = "liar", None

    def __init__(self, place: int, flip: int) -> None:
        self.place, self.flip = place, flip

    def get(self, path: str) -> dict[str, Any]:
        said = json.loads(json.dumps(source_of("audited").get(path)))
        return said if path == "/v1/genesis" else self._changed(said)

    def _changed(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._changed(item) for item in value]
        if not isinstance(value, dict):
            return value
        made = {name: self._changed(item) for name, item in value.items()}
        if "proof" in made:
            made["proof"] = {name: self._flipped(text) for name, text in made["proof"].items()}
        return {**made, "canonical": self._flipped(made["canonical"])} if "canonical" in made else made

    def _flipped(self, text: str) -> str:
        data = bytearray(base64.b64decode(text))
        data[self.place % len(data)] ^= self.flip
        return base64.b64encode(data).decode()


@given(st.integers(0, 5000), st.integers(1, 255), st.sampled_from(places()))
@example(0, 1, ("jobs", JOB.hex()))
@example(212, 224, ("head", ""))  # an epoch below 0
def test_nothing_is_shown_of_an_answer_whose_proof_was_changed(at: int, flip: int, place: tuple[str, str]) -> None:
    if place == ("block", "0"):
        return  # follows from the genesis, and is not asked for
    checker = ProofChecker(Liar(at, flip), None)
    with pytest.raises(FarflungError) as refused:
        screen(checker, LookupTarget(*place), 80)
    assert refused.value.exit_code in (3, 5)


def test_another_row_or_transaction_than_was_asked_for_is_refused_though_its_proof_holds() -> None:
    first, other = (tx_id(signed).hex() for signed in chain_named("plain").blocks[0].txs[:2])
    swaps = {REQUESTER.public.hex(): VALIDATOR.public.hex(), first: other, "blocks/3": "blocks/2"}

    class Swapped(FileLedgerSource):
        def get(self, path: str) -> dict[str, Any]:
            for said, instead in swaps.items():
                path = path.replace(said, instead)
            return super().get(path)

    checker = ProofChecker(Swapped("swapped", chain_named("plain")), None)
    for place in (
        LookupTarget("accounts", REQUESTER.public.hex()),
        LookupTarget("txs", first),
        LookupTarget("block", "3"),
    ):
        with pytest.raises(VerificationError, match="FF-APP-283"):
            screen(checker, place, 80)


def test_a_ledger_of_another_genesis_is_not_looked_at() -> None:
    with pytest.raises(VerificationError, match="FF-APP-282"):
        ProofChecker(source_of(), Hash(bytes(32)))


@cache
def reigns() -> Chain:
    """A chain under committees of 1, 4 and 2 seats, and a block that only a later one makes final."""
    committee = Reign()
    for size in (1, 4, 2):
        committee.grow(size)
        committee.do(REQUESTER, transactions.Transfer(SEATS[0].public, 1))
    made, _ = committee.made(signed(committee.chain, REQUESTER, transactions.Transfer(SEATS[0].public, 2)))
    later, _ = make(made, (), made.header.time + 1000, made.state.committee.members[0])
    blocks = committee.certified(made, VoteKind.NOTARIZE), committee.certified(later)
    committee.chain.adopt_many(blocks)
    return committee.chain


def test_a_reader_follows_the_committees_from_the_genesis_and_tells_what_is_not_final_by_itself(tmp_path: Path) -> None:
    chain, file = reigns(), tmp_path / "reigns.jsonl"
    with served(chain, AddressRateLimiter(1000, 1000)) as url:
        checker = ProofChecker(HttpLedgerSource(url), chain.id)
        (row,) = (r for r in screen(checker, LookupTarget("head"), 100) if r.text.startswith("Signed"))
        assert "by 2 of 2 seats of epoch 2" in row.text
        rows = [r.text for r in screen(checker, LookupTarget("block", str(chain.head.height - 1)), 100)]
        assert any("notarized: a later block" in text for text in rows)
        for block in chain.blocks:
            assert screen(checker, LookupTarget("block", str(block.header.height)), 80)
        assert chain_from(checker.source, checker.genesis).head == chain.head
    file.write_bytes(b"".join(lines_of(chain)))
    assert chain_of(file).head == chain.head
    cut = [line for line in lines_of(chain) if b'"height":%d,' % chain.head.height not in line[:40]]
    file.write_bytes(b"".join(cut))
    with pytest.raises(VerificationError, match="FF-APP-281"):
        chain_of(file)


def test_a_committee_that_the_genesis_does_not_lead_to_signs_nothing() -> None:
    class Skipping(FileLedgerSource):
        """Leaves out a step, or shows one of another ledger's."""

        def get(self, path: str) -> dict[str, Any]:
            said = super().get(path)
            return {"steps": said["steps"][1:]} if path.startswith("/v1/steps") else said

    with pytest.raises(VerificationError):
        screen(ProofChecker(Skipping("skipping", reigns()), None), LookupTarget("head"), 80)


def test_what_a_word_names_is_found_by_its_first_digits() -> None:
    source = source_of()
    assert place_of(source, "HEAD") == LookupTarget("head")
    assert place_of(source, "12") == LookupTarget("block", "12")
    assert place_of(source, JOB.hex()[:8].upper()) == LookupTarget("jobs", JOB.hex())
    assert place_of(source, NODES[0].public.hex()) == LookupTarget("nodes", NODES[0].public.hex())
    name = tx_id(chain_named("plain").blocks[1].txs[0]).hex()
    assert place_of(source, name[:10]) == LookupTarget("txs", name)
    for said, code in (("zz", "287"), ("abcdef012345", "285"), ("f" * 65, "287")):
        with pytest.raises(UsageError, match=f"FF-APP-{code}"):
            place_of(source, said)


def test_absence_is_the_sources_word_and_said_to_be() -> None:
    with served(chain_named("plain")) as url, pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"{url}/v1/accounts/{'00' * 32}")
    assert refused.value.code == 404
    told = json.load(refused.value)
    assert fault_of(told, routes.ERROR) == ""
    assert (told["code"], told["is_proved"]) == ("FF-APP-271", False)


# Statements


@pytest.mark.parametrize("name", HISTORIES)
def test_every_accounts_statement_ends_at_its_row(name: str) -> None:
    chain = chain_named(name)
    for row in chain.state.rows(AccountRow):
        lines = list(statement_of(chain, row.owner))
        assert (lines[-1].balance if lines else 0) == row.balance
        rows = list(csv.DictReader(as_csv(map(record, lines))))
        assert sum(int(each["amount"]) for each in rows) == row.balance
        assert [each["balance"] for each in rows] == [str(line.balance) for line in lines]


def test_a_statement_that_does_not_sum_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    from farflung.app.explorer import statements

    monkeypatch.setattr(statements, "entries_of", lambda *_: iter(()))
    with pytest.raises(FarflungError, match="FF-APP-289"):
        statement_of(chain_named("plain"), REQUESTER.public)


@given(st.text())
@example("=1+1")
@example("-2+3")
@example("@SUM(A1)")
@example("\t=1")
def test_no_text_in_a_table_is_taken_for_a_formula(text: str) -> None:
    shown = cell(text)
    is_number = re.fullmatch(r"-?[0-9]+\.[0-9]+", shown, re.ASCII)
    assert is_number or not shown.startswith(tuple("=+-@\t\r"))
    assert shown.removeprefix("'") == text.removeprefix("'")


def test_a_table_is_of_the_form_that_spreadsheets_read() -> None:
    lines = list(statement_of(chain_named("plain"), REQUESTER.public))
    text = "".join(as_csv(map(record, lines)))
    assert text.splitlines()[0] == ",".join(COLUMNS)
    assert text.count("\r\n") == len(lines) + 1


# Exports


def test_a_row_of_an_export_that_its_blocks_do_not_lead_to_is_refused(tmp_path: Path) -> None:
    file, lines = tmp_path / "rows.jsonl", list(lines_of(chain_named("plain")))
    place = next(number for number, line in enumerate(lines) if line.startswith(b'{"type":"row"'))
    lines[place : place + 2] = [
        lines[place].replace(b'"index":0', b'"index":1'),
        lines[place + 1].replace(b'"index":1', b'"index":0'),
    ]
    file.write_bytes(b"".join(lines))
    with pytest.raises(VerificationError, match="FF-APP-281"):
        chain_of(file)


def test_an_export_leads_to_the_same_chain(tmp_path: Path) -> None:
    chain, file = chain_named("governed"), tmp_path / "ledger.jsonl"
    file.write_bytes(b"".join(lines_of(chain)))
    again = chain_of(file)
    assert (again.head, again.state.root) == (chain.head, chain.state.root)


@given(st.data())
def test_an_export_that_was_changed_is_refused(tmp_path_factory: pytest.TempPathFactory, data: Any) -> None:
    lines = list(lines_of(chain_named("plain")))
    file = tmp_path_factory.getbasetemp() / "changed.jsonl"
    at = data.draw(st.integers(0, len(lines) - 1))
    match data.draw(st.sampled_from(("left out", "cut", "twice", "other"))):
        case "left out" if b'"row"' not in lines[at][:16]:  # a row follows from the blocks
            del lines[at]
        case "cut":
            lines[at] = lines[at][: len(lines[at]) // 2]
        case "twice" if b'"row"' not in lines[at][:16] and at < len(lines) - 1:
            lines.insert(at, lines[at])
        case "other":
            canonical = re.search(rb'"canonical":"(.{9})', lines[at])
            if canonical is None:
                return
            lines[at] = lines[at].replace(canonical[1], canonical[1][::-1] + b"A", 1)
        case _:
            return
    file.write_bytes(b"".join(lines))
    with pytest.raises(FarflungError):
        chain_of(file)


# Rates and metrics


@given(st.lists(st.tuples(st.floats(0, 5), st.integers(1, 8)), max_size=200))
def test_an_address_is_given_no_more_than_its_rate_and_what_it_saved(asked: list[tuple[float, int]]) -> None:
    rates, now, spent = AddressRateLimiter(rate=10, burst=20, most=4), 0.0, 0
    for pause, cost in asked:
        now += pause
        wait = rates.take("192.0.2.1", cost, now)
        spent += 0 if wait else cost
        assert spent <= 20 + 10 * now + 1e-6
        if wait:
            assert rates.take("192.0.2.1", cost, now + wait) == 0, "it was told to wait too short"
            return


def test_the_table_of_rates_is_bounded_and_a_customers_addresses_are_one() -> None:
    rates = AddressRateLimiter(rate=1, burst=2, most=8)
    assert [rates.take("192.0.2.1", 2, now) for now in (0.0, 1000.0, 1000.0)] == [0, 0, 2], "saved too much"
    for number in range(100):
        rates.take(f"192.0.2.{number}", 1, 0.0)
    assert len(rates) == 8
    assert block_of("2001:db8::1") == block_of("2001:db8::ffff") != block_of("2001:db8:0:1::1")
    assert block_of("::ffff:192.0.2.7") == "192.0.2.7"


def test_metrics_are_lines_that_prometheus_reads_and_their_labels_are_bounded() -> None:
    gauges = LedgerMetrics(height=7, mempool=3, peer_lag={f"{n:064x}"[::-1]: n for n in range(500)})
    assert LedgerMetrics(peer_lag={'0"} 1\n': 1}).page().count("{peer=") == 0
    assert 'quantile="0.5"} NaN' in gauges.page()
    for number in range(2000):
        gauges.took(number / 1000)
    page = gauges.page()
    line = re.compile(r'# (HELP|TYPE) farflung_ledger_\w+ .+|farflung_ledger_\w+(\{\w+="[\w.]+"\})? (NaN|[0-9.]+)')
    assert [text for text in page.splitlines() if not line.fullmatch(text)] == []
    assert page.count("peer_lag_blocks{") == 128
    assert "farflung_ledger_finality_seconds_count 2000" in page
    assert re.search(r'quantile="0.99"} 1\.9', page)


# The verbs


def told(*words: str) -> str:
    ended = CliRunner().invoke(cli, ["ledger", *words], catch_exceptions=False)
    assert ended.exit_code == 0, ended.output
    return ended.stdout


def test_verbs_read_an_export_as_people_and_as_programs_want_it(tmp_path: Path) -> None:
    chain, file = chain_named("audited"), tmp_path / "ledger.jsonl"
    file.write_bytes(b"".join(lines_of(chain)))
    place = ("--from", str(file))
    genesis = ("--genesis", chain.id.hex())
    assert "settled" in told("show", JOB.hex()[:8], *place, *genesis)
    assert "own word" in told("show", "head", *place)
    assert "own word" not in told("show", "head", *place, *genesis)
    assert json.loads(told("show", "head", "--json", *place))["what"] == "head"
    books = json.loads(told("statement", REQUESTER.public.hex(), "--json", *place))
    assert books["entries"][-1]["balance"] == balance(chain, REQUESTER.public)
    out = tmp_path / "books.csv"
    assert told("statement", REQUESTER.public.hex()[:9], "--csv", "-o", str(out), *place) == ""
    assert out.read_text().startswith("time,")
    words = told("statement", NODES[1].public.hex(), *place)
    assert "stake slashed" in words
    assert max(map(len, words.splitlines())) <= 80
    assert told("export", *place).encode() == file.read_bytes()
    none = told("statement", REQUESTER.public.hex(), "--since", "2030-01-01", "--json", *place)
    assert json.loads(none)["entries"] == []


def balance(chain: Chain, owner: PeerId) -> int:
    row = chain.state.find(AccountRow, owner)
    return row.balance if row else 0


def test_every_kind_of_place_has_a_screen_and_a_path() -> None:
    checker = ProofChecker(source_of("audited"), None)
    for kind, name in places():
        assert facts(checker, LookupTarget(kind, name))["what"] == kind
    assert {kind for kind, _ in places()} == set(PATHS)


_LEAF = st.none() | st.booleans() | st.integers() | st.text()
_JSON = st.recursive(_LEAF, lambda part: st.lists(part) | st.dictionaries(st.text(), part))


@pytest.mark.slow
@given(st.dictionaries(st.sampled_from(["genesis", "head", "job", "next"]), _JSON))
def test_an_answer_of_another_form_is_refused_before_anybody_looks_into_it(said: dict[str, Any]) -> None:
    source = HttpLedgerSource("http://127.0.0.1:1")
    with mock.patch.object(source, "_ask", return_value=(200, 1, json.dumps(said).encode())):
        for path in ("/v1/head", "/v1/genesis", "/v1/steps?from=0", f"/v1/jobs/{JOB.hex()}", "/v1/blocks/1"):
            with pytest.raises(NetworkError, match="FF-APP-337"):
                source.get(path)
