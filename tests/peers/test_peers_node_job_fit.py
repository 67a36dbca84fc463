"""Jobs that look for nodes: whose notice stands, what a job pays an hour here, and why it cannot be taken."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from farflung.core.crypto import SigningKey
from farflung.core.errors import FarflungError
from farflung.core.ids import PeerId
from farflung.ledger.transactions import LeaseRole
from farflung.peers.node.job_fit import ClassPrices, JobPay, NodeTerms, obstacle, pay
from farflung.peers.protocol import job_notices as board
from farflung.peers.protocol.job_notices import JobNotice, NoticeBoard

RICH, POOR = (SigningKey(bytes([i]) * 32).public for i in (1, 2))
JOB = JobNotice(6 * 10**8, 10**6, 10, 10_000, 1 << 30, False, 2, 1)
NODE = NodeTerms(LeaseRole.TRAIN, 10**11, 4 << 30, 9 << 30, 2 << 30, 4, allow_modules=False)


@pytest.mark.parametrize(
    ("job", "node", "said"),
    [
        (JOB, NODE, JobPay(4 * 360_000, 10 * 360_000, 10**6 / 360_000)),
        (JOB, NODE._replace(unit_price=99), JobPay(10 * 360_000, 10 * 360_000, 10**6 / 360_000)),
        (
            replace(JOB, is_outcome=True),
            NODE._replace(prices=ClassPrices(outcome=7)),
            JobPay(7 * 360_000, 10 * 360_000, 10**6 / 360_000),
        ),
        (replace(JOB, token_flop=0), NODE, None),
        (JOB, NODE._replace(role=LeaseRole.AUDIT), None),
        (JOB, NODE._replace(flops=0), None),
    ],
)
def test_pay_an_hour_is_of_this_machines_speed(job: JobNotice, node: NodeTerms, said: JobPay | None) -> None:
    found = pay(job, node)
    assert (found is None) == (said is None)
    assert found is None or said is None or found == pytest.approx(said)


@pytest.mark.parametrize(
    ("job", "node", "why"),
    [
        (JOB, NODE, ""),
        (replace(JOB, providers=0), NODE, "no providers"),
        (replace(JOB, verifiers=0), NODE._replace(role=LeaseRole.AUDIT), "no verifiers"),
        (JOB, NODE._replace(busy="this node is paused"), "paused"),
        (JOB, NODE._replace(unit_price=11), "a token at most, this node asks"),
        (replace(JOB, is_module=True), NODE, "--allow-modules"),
        (replace(JOB, is_module=True), NODE._replace(allow_modules=True), ""),
        (replace(JOB, is_outcome=True), NODE._replace(prices=ClassPrices(outcome=11)), "this node asks"),
        (JOB, NODE._replace(prices=ClassPrices(outcome=11, module=11)), ""),  # a proven job
        (replace(JOB, is_outcome=True), NODE._replace(prices=ClassPrices(outcome=10)), ""),
        (replace(JOB, worker_bytes=5 << 30), NODE, "of memory"),
        (replace(JOB, is_named=True), NODE, ""),
        (replace(JOB, is_named=True), NODE._replace(drawn_only=True), "--drawn-only"),
        (replace(JOB, is_named=True), NODE._replace(role=LeaseRole.AUDIT), "named its verifiers"),
        (JOB, NODE._replace(disk_bytes=1 << 30), "of disk"),
    ],
)
def test_a_job_that_cannot_be_taken_says_why(job: JobNotice, node: NodeTerms, why: str) -> None:
    said = obstacle(job, node)
    assert why in said if why else said == ""


def key(number: int) -> PeerId:
    return PeerId(number.to_bytes(32, "big"))


def refused(seat: NoticeBoard, who: PeerId, job: JobNotice) -> str:
    try:
        seat.post(who, job)
    except FarflungError as error:
        return error.code
    return ""


def test_a_notice_stands_for_a_while_and_only_for_who_holds_the_escrow(monkeypatch: pytest.MonkeyPatch) -> None:
    now, held = [0.0], {RICH: JOB.escrow}
    seat = NoticeBoard(lambda who: held.get(who, 0), lambda: now[0])
    assert refused(seat, POOR, JOB) == "FF-APP-621"  # keys are free
    for name in set(JOB.__struct_fields__) - {"is_module", "is_named", "is_outcome"}:
        assert refused(seat, RICH, replace(JOB, **{name: -1})) == "FF-APP-620"
    assert refused(seat, POOR, replace(JOB, escrow=0)) == "FF-APP-620"
    assert refused(seat, RICH, JOB) == refused(seat, RICH, replace(JOB, tokens=5)) == ""
    assert [each.notice.tokens for each in seat.listing().posted] == [5]  # one an account
    monkeypatch.setattr(board, "NOTICES", 2)
    held |= {key(1): JOB.escrow, key(2): JOB.escrow}
    assert [refused(seat, key(number), JOB) for number in (1, 2)] == ["", "FF-APP-622"]
    held[key(3)] = 2 * JOB.escrow  # accounts of next to nothing keep nobody off the board
    assert (
        refused(seat, RICH, replace(JOB, escrow=1)) == refused(seat, key(3), replace(JOB, escrow=2 * JOB.escrow)) == ""
    )
    assert [each.requester for each in seat.listing().posted] == [key(1), key(3)]
    now[0] = board.NOTICE_SECONDS
    assert seat.listing().posted == ()
    assert refused(seat, key(2), JOB) == ""
