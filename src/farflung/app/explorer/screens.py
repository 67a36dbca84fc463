"""Builds the screens of `farflung ledger show`: rows for a terminal or a pipe, from proven data only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from farflung.app.explorer.job_class import work
from farflung.app.explorer.lookup import LookupTarget
from farflung.app.explorer.operation_text import moment, short, told
from farflung.app.explorer.proofs import ProofChecker
from farflung.app.explorer.sources import pages
from farflung.core.attestations import NOT_A_PROOF
from farflung.core.ids import ZERO_HASH
from farflung.core.money import format_credits
from farflung.job.proof_class import UNPROVEN
from farflung.ledger.block import BlockHeader
from farflung.ledger.inclusion_proof import InclusionProof
from farflung.ledger.motions import ParamsRow
from farflung.ledger.search_queries import job_of
from farflung.ledger.table_rows import AccountRow, JobRow, JobState, LeaseRow, NodeRow, NodeState
from farflung.ledger.transactions import LeaseRole, SignedTx, tx_id
from farflung.ledger.validators import CommitteeRow, ValidatorRow, ValidatorState
from farflung.ledger.votes import QuorumCertificate, VoteKind, seats_of
from farflung.watch.phrases import credits_of, many
from farflung.watch.row_layout import ScreenRow, SpanStyle, TextSpan, block, plain

MOST: Final = 200  # lines of a list on one screen
_PROVED: Final = TextSpan("the row's proof leads to the genesis", SpanStyle.GOOD)


def screen(checker: ProofChecker, place: LookupTarget, columns: int) -> list[ScreenRow]:
    """What is known of a place, proved. Raises what checking raises."""
    shown = _SCREENS[place.kind](checker, place.name, columns)
    return [*shown, *_proof(checker, columns)]


def _proof(checker: ProofChecker, columns: int) -> list[ScreenRow]:
    genesis = checker.genesis
    said = "" if checker.is_known else "by the source's own word: give --genesis HASH if you know it"
    parts = [plain(f"{genesis.chain.hex()[:32]}... ({genesis.name[:40]!r})"), TextSpan(said, SpanStyle.CARE)]
    return block("Genesis", parts, columns)


def _at(header: BlockHeader) -> TextSpan:
    return plain(f"block {header.height}, {moment(header.time)}")


def _head(checker: ProofChecker, _: str, columns: int) -> list[ScreenRow]:
    header, certificate = checker.header(checker.source.get("/v1/head")["head"])
    return _header_rows(checker, header, certificate, columns)


def _header_rows(
    checker: ProofChecker, header: BlockHeader, certificate: QuorumCertificate, columns: int
) -> list[ScreenRow]:
    return [
        *block("Block", [_at(header), plain(header.id.hex())], columns),
        *block("Parent", [plain(header.parent.hex())], columns),
        *block("State", [plain(header.state.hex())], columns),
        *block("Signed", _signers(checker, header, certificate), columns),
    ]


def _signers(checker: ProofChecker, header: BlockHeader, certificate: QuorumCertificate) -> list[TextSpan]:
    if not header.height:
        return [plain("by nobody: it follows from the genesis")]
    keys, seats = checker.trust(header.epoch).committee, seats_of(certificate)
    is_final = certificate.kind == VoteKind.FINALIZE
    said = f"by {len(seats)} of {many(len(keys), 'seat')} of epoch {header.epoch}, in view {certificate.view}"
    later = "notarized: a later block of the epoch makes it final"
    return [
        TextSpan(said, SpanStyle.GOOD if is_final else SpanStyle.CARE),
        plain("final" if is_final else later),
        *(plain(f"{seat}: {short(keys[seat])}") for seat in seats),
    ]


def _block(checker: ProofChecker, height: str, columns: int) -> list[ScreenRow]:
    if height == "0":
        return block("Block", [plain("0: it follows from the genesis, and nobody signed it")], columns)
    held = checker.block(checker.source.get(f"/v1/blocks/{height}"), int(height))
    rows = _header_rows(checker, held.header, held.certificate, columns)
    if not held.txs:
        return [*rows, *block("Txs", [plain("none: it moves the clock")], columns)]
    for number, signed in enumerate(held.txs[:MOST]):
        words = [plain(f"{short(tx_id(signed))} by {short(signed.tx.sender)}: {told(signed.tx.ops[0])}")]
        more = len(signed.tx.ops) - 1
        rows += block("" if number else "Txs", [*words, plain(f"and {more} more" if more else "")], columns)
    return rows


def _tx(checker: ProofChecker, name: str, columns: int) -> list[ScreenRow]:
    form = checker.source.get(f"/v1/tx/{name}")
    signed, proof = checker.tx(form, name)
    tx = signed.tx
    rows = [
        *block("Tx", [plain(name)], columns),
        *block("By", [plain(tx.sender.hex()), plain(f"its number {tx.nonce}")], columns),
        *block("In", [_at(proof.header), plain(f"place {proof.index + 1} of {proof.count}")], columns),
        *block("Fee", [plain(credits_of(tx.fee))], columns),
    ]
    for number, op in enumerate(tx.ops):
        rows += block("" if number else "Asks", [plain(told(op))], columns)
    return [*rows, *block("Became", [_outcome(form["failed"])], columns)]


def _outcome(code: str) -> TextSpan:
    if code:
        return TextSpan(
            f"refused with {code[:20]}: fee and number are spent, nothing else (the source's word)", SpanStyle.BAD
        )
    return TextSpan("done, by the source's word; that it is in the block is proved", SpanStyle.GOOD)


def _account(checker: ProofChecker, name: str, columns: int) -> list[ScreenRow]:
    form = checker.source.get(f"/v1/accounts/{name}")["account"]
    row = checker.row(form, AccountRow, bytes.fromhex(name))
    return [
        *block("Account", [plain(name)], columns),
        *block("Balance", [plain(credits_of(row.balance)), plain(f"next number {row.nonce}")], columns),
        *block("Proof", [_PROVED, plain(f"as of block {form['height']}")], columns),
    ]


def _node(checker: ProofChecker, name: str, columns: int) -> list[ScreenRow]:
    form = checker.source.get(f"/v1/nodes/{name}")["node"]
    row = checker.row(form, NodeRow, bytes.fromhex(name))
    state = "lends" if row.state == NodeState.ACTIVE else "has left"
    rows = [
        *block("Node", [plain(name)], columns),
        *block(
            "State",
            [
                TextSpan(state, SpanStyle.GOOD if row.state == NodeState.ACTIVE else SpanStyle.QUIET),
                plain(f"asks {credits_of(row.unit_price)} a unit"),
                plain(many(row.leases, "open lease")),
                plain(f"registered until {moment(row.expires)}"),
            ],
            columns,
        ),
        *block("Stake", _stakes(row), columns),
    ]
    leases = [
        lease
        for lease in (
            checker.row(each, LeaseRow) for each in pages(checker.source, f"/v1/nodes/{name}/leases", "leases")
        )
        if lease.node.hex() == name
    ]
    earned = sum(lease.paid for lease in leases)
    rows += block("Earned", [plain(credits_of(earned)), plain(f"by {many(len(leases), 'lease')}")], columns)
    for lease in leases[:MOST]:
        rows += block("", _lease(lease, f"job {short(lease.job)}"), columns)
    return [*rows, *_account(checker, name, columns)[1:]]


def _stakes(row: NodeRow) -> list[TextSpan]:
    burnt = TextSpan(f"{format_credits(row.burnt)} burnt for ever" if row.burnt else "", SpanStyle.BAD)
    return [plain(f"{format_credits(row.free)} free"), plain(f"{format_credits(row.locked)} locked"), burnt]


def _lease(lease: LeaseRow, of: str) -> list[TextSpan]:
    does = "trains" if lease.role == LeaseRole.TRAIN else "audits"
    lost = TextSpan(f"slashed {format_credits(lease.slashed)}" if lease.slashed else "", SpanStyle.BAD)
    state = "open" if lease.is_open else f"paid {format_credits(lease.paid)}"
    units = f"{lease.units} of {lease.units_max} units at {format_credits(lease.unit_price)}"
    said = f"attests {short(lease.attests)} ({NOT_A_PROOF})" if lease.attests != ZERO_HASH else ""
    return [plain(f"{of} {does}"), plain(units), plain(state), lost, plain(said)]


def _job(checker: ProofChecker, name: str, columns: int) -> list[ScreenRow]:
    form = checker.source.get(f"/v1/jobs/{name}")
    job = checker.row(form["job"], JobRow, bytes.fromhex(name))
    rows = [
        *block("Job", [plain(name)], columns),
        *block("State", [_state(job), plain(f"{job.round} of {many(job.rounds, 'round')}")], columns),
        *block("Asked", [plain(f"by {job.requester.hex()}")], columns),
        *block("Money", _money(job), columns),
        *block("Work", [_work(checker, job)], columns),
    ]
    if job.output != ZERO_HASH:
        rows += block("Output", [plain(job.output.hex())], columns)
    for number, lease in enumerate(_leases(checker, name, job)):
        rows += block("" if number else "Leases", _lease(lease, short(lease.node)), columns)
    rows += _life(checker, name, columns)
    if job.state == JobState.EXPIRED:
        rows += block("Ended", [plain(f"by the clock, past its deadline {moment(job.deadline)}")], columns)
    return [*rows, *block("Proof", [_PROVED, plain(f"as of block {form['job']['height']}")], columns)]


def _work(checker: ProofChecker, job: JobRow) -> TextSpan:
    """The job's class, which its terms say and no row."""
    words = work(job.job, checker.source.terms)
    return TextSpan(words, SpanStyle.CARE) if words.startswith(UNPROVEN) else plain(words)


def _state(job: JobRow) -> TextSpan:
    is_good = job.state in (JobState.RUNNING, JobState.OUTPUT, JobState.SETTLED)
    return TextSpan(job.state.name.lower(), SpanStyle.GOOD if is_good else SpanStyle.CARE)


def _money(job: JobRow) -> list[TextSpan]:
    slashed = TextSpan(f"{format_credits(job.slashed)} slashed" if job.slashed else "", SpanStyle.BAD)
    return [
        plain(f"{format_credits(job.held)} in escrow"),
        plain(f"{format_credits(job.paid)} paid"),
        plain(f"{format_credits(job.refunded)} refunded"),
        TextSpan(f"{format_credits(job.burnt)} of pay burnt" if job.burnt else "", SpanStyle.BAD),
        slashed,
    ]


def _leases(checker: ProofChecker, name: str, job: JobRow) -> Iterator[LeaseRow]:
    start: int | None = 0
    while start is not None:
        form = checker.source.get(f"/v1/jobs/{name}?leases_from={start}&rounds_from={job.round}")
        for each in form["leases"]:
            yield checker.row(each, LeaseRow)
        start = form["next_lease"]


def _life(checker: ProofChecker, name: str, columns: int) -> list[ScreenRow]:
    """All transactions that name the job, in their order, with their blocks."""
    rows: list[ScreenRow] = []
    for signed, proof, code in _steps(checker, name):
        for op in signed.tx.ops:
            if (job_of(op) or b"").hex() != name:
                continue
            when = f"block {proof.header.height}  {told(op)}".replace(f" of job {name[:12]}", "")
            refused = TextSpan(f"refused: {code[:20]}" if code else "", SpanStyle.BAD)
            rows += block("" if rows else "Life", [plain(when), refused], columns)
    return rows


def _steps(checker: ProofChecker, name: str) -> Iterator[tuple[SignedTx, InclusionProof, str]]:
    height, head = 0, 1
    while height < head:
        form = checker.source.get(f"/v1/jobs/{name}/life?from={height}")
        for each in form["transactions"]:
            yield (*checker.tx(each, each["id"]), str(each["failed"]))
        if form["height"] <= height:
            return
        height, head = form["height"], form["head"]


def _validators(checker: ProofChecker, _: str, columns: int) -> list[ScreenRow]:
    form = checker.source.get("/v1/validators")["committee"]
    held = checker.row(form, CommitteeRow)
    since = f"since block {held.first}, {moment(held.opened)}"
    rows = block(
        "Seats", [plain(many(len(held.members), "validator")), plain(f"epoch {held.epoch}"), plain(since)], columns
    )
    for seat, key in enumerate(held.members):
        rows += block("", [plain(f"{seat}  {key.hex()}")], columns)
    for number, each in enumerate(pages(checker.source, "/v1/validators", "validators")):
        rows += block("" if number else "Bonded", _bonded(checker.row(each, ValidatorRow)), columns)
    return [*rows, *block("Proof", [_PROVED, plain(f"as of block {form['height']}")], columns)]


def _bonded(row: ValidatorRow) -> list[TextSpan]:
    is_lost = row.state == ValidatorState.JAILED
    return [
        plain(f"{short(row.validator)} of {short(row.owner)}"),
        TextSpan(row.state.name.lower(), SpanStyle.BAD if is_lost else SpanStyle.PLAIN),
        plain(f"{format_credits(row.stake)} at stake"),
        TextSpan(f"{format_credits(row.burnt)} burnt for ever" if row.burnt else "", SpanStyle.BAD),
        plain(row.address[:60]),
    ]


def _params(checker: ProofChecker, _: str, columns: int) -> list[ScreenRow]:
    form = checker.source.get("/v1/params")["params"]
    held = checker.row(form, ParamsRow)
    rows = block("Params", [plain(f"version {held.version}, since epoch {held.epoch}")], columns)
    for name in held.params.__struct_fields__:
        rows += block("", [plain(f"{name:<20} {getattr(held.params, name)}")], columns)
    return [*rows, *block("Proof", [_PROVED, plain(f"as of block {form['height']}")], columns)]


PATHS: Final = {
    "head": "/v1/head",
    "validators": "/v1/validators",
    "params": "/v1/params",
    "block": "/v1/blocks/{}",
    "txs": "/v1/tx/{}",
    "jobs": "/v1/jobs/{}",
    "nodes": "/v1/nodes/{}",
    "accounts": "/v1/accounts/{}",
}
_SCREENS: Final[dict[str, Callable[[ProofChecker, str, int], list[ScreenRow]]]] = {
    "head": _head,
    "validators": _validators,
    "params": _params,
    "block": _block,
    "txs": _tx,
    "jobs": _job,
    "nodes": _node,
    "accounts": _account,
}


def facts(checker: ProofChecker, place: LookupTarget) -> dict[str, Any]:
    """The same for programs: the source's answer, once what is in it was proved as for a screen."""
    screen(checker, place, 80)
    is_genesis = place == LookupTarget("block", "0")
    form = checker.source.get("/v1/genesis" if is_genesis else PATHS[place.kind].format(place.name))
    return {
        "what": place.kind,
        "name": place.name,
        "genesis": checker.genesis.chain.hex(),
        "genesis_known": checker.is_known,
        "answer": form,
    }
