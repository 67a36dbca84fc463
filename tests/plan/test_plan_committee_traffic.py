"""What a committee sends is planned from its messages' formats, and is what real replicas send each other."""

from __future__ import annotations

import pytest
from ledger_network import Committee
from msgspec.structs import replace

from farflung.core.codec import encode
from farflung.core.tensor_layout import TensorLayout
from farflung.core.units import format_bytes
from farflung.job.spec import JobSpec
from farflung.ledger.params import HOUR_MS
from farflung.ledger.sdbft.replica_messages import BlockProposal, PendingTxs, ReplicaStatus, read_message
from farflung.ledger.votes import faults, is_quorum
from farflung.plan.committee_traffic import CHANNELS, TOLD, committee_bytes, quorum_of, transactions, view_bytes
from farflung.plan.machine import MachineMeasurements
from farflung.plan.run_plan import advise
from farflung.watch import phrases
from farflung.watch.event_lines import lines
from farflung.watch.fold import RunTimeline

COUNT = 5


class Counting(Committee):
    """Its consensus, in bytes as sockets would carry them, but for transactions."""

    def __init__(self, seats: int) -> None:
        self.sent = self.pending = 0
        super().__init__(seats, idle_ms=HOUR_MS)

    def post(self, sender: int, to: int, body: bytes) -> None:
        match read_message(body):
            case ReplicaStatus():
                pass
            case PendingTxs():
                self.pending += 1
            case BlockProposal(_, txs, _):
                self.sent += len(body) + TOLD - (self.size if txs else 0)
            case _:
                self.sent += len(body) + TOLD
        super().post(sender, to, body)

    @property
    def size(self) -> int:
        return len(encode(self.pay(0)))


@pytest.mark.parametrize("seats", [2, 4, 7])
def test_real_replicas_send_what_the_formula_says(seats: int) -> None:
    committee = Counting(seats)
    for nonce in range(COUNT):
        for handed in range(faults(seats) + 1):
            committee.submit(handed, committee.pay(nonce))
        committee.run(1_000)
    assert committee.heights() == [2 * COUNT] * seats
    assert committee.pending == COUNT * (faults(seats) + 1) * (seats - 1)
    assert committee.sent == pytest.approx(2 * COUNT * view_bytes(seats), rel=0.02)


def test_one_validator_has_nobody_to_agree_with() -> None:
    assert committee_bytes(JobSpec(), 1) == 0
    grown = [committee_bytes(JobSpec(), seats) for seats in range(1, 17)]
    assert grown == sorted(set(grown))


def test_relays_that_are_paid_have_channels_on_the_ledger() -> None:
    direct = replace(JobSpec(), network=replace(JobSpec().network, hidden=0))
    assert transactions(JobSpec()) - transactions(direct) == CHANNELS
    assert transactions(direct) == 2 * (direct.network.providers + direct.verifiers) + 4 + direct.rounds


def test_the_least_quorum_is_one() -> None:
    for seats in range(1, 101):
        assert is_quorum(quorum_of(seats), seats)
        assert not is_quorum(quorum_of(seats) - 1, seats)


def test_the_plan_counts_and_tells_it() -> None:
    job, layout, machine = JobSpec(), TensorLayout.of({"a": (64, 64)}), MachineMeasurements(2, 1e11, 16 << 30)
    one, four = (advise(job, layout, 100_000, machine), advise(job, layout, 100_000, machine, validators=4))
    more = committee_bytes(job, 4)
    assert four.traffic.control == one.traffic.control + more
    assert more > 2 * transactions(job) * view_bytes(4)
    told = " ".join(" ".join(lines(four.event("r"), RunTimeline())).split())
    assert f"4 validators send {format_bytes(more)} more, and 1 may be down" in told
    assert "none may be down" in phrases.committee(advise(job, layout, 1, machine, validators=3).event("r"))
    assert "validators" not in " ".join(lines(one.event("r"), RunTimeline()))
