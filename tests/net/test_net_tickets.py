"""Who may open a way through a relay: the ticket alone, without a socket."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.core import limits
from farflung.core.codec import encode
from farflung.core.crypto import NS_ENDPOINT, NS_TICKET, local_key
from farflung.core.ids import Hash, PeerId, Signature
from farflung.core.tolls import Pass, sign_pass
from farflung.net import tickets
from farflung.net.certificates import bare
from farflung.net.tickets import Presented, Purpose, SignedTicket, Spent, Status, Ticket, judge, sign_ticket

A, B, R = (local_key(6, name) for name in ("a", "b", "relay"))
NOW = 1_800_000_000
DIAL = Ticket(Purpose.DIAL, R.public, A.public, B.public, 0, bytes(16), NOW + 60)

MOST = (1 << 63) - 1
HOLDERS = tuple(sorted(local_key(6, "holder", i).public for i in range(limits.PASS_HOLDERS)))
PAID = sign_pass(B, Pass(Hash(bytes(32)), B.public, R.public, MOST, MOST, HOLDERS, MOST, MOST, MOST, MOST))


def signed(ticket: Ticket) -> bytes:
    return sign_ticket(A, ticket)[tickets.HEAD_BYTES :]


def changed(**fields: object) -> Ticket:
    return msgspec.structs.replace(DIAL, **fields)


def test_a_ticket_comes_back_and_its_head_says_how_long_it_is() -> None:
    data = sign_ticket(A, DIAL)
    assert (
        tickets.read_head(data[: tickets.HEAD_BYTES]) == len(data) - tickets.HEAD_BYTES <= limits.TICKET_BYTES
    )
    assert judge(data[tickets.HEAD_BYTES :], R.public, NOW) == Presented(DIAL, bare(A.public))


def test_the_largest_ticket_fits() -> None:
    most = changed(purpose=Purpose.ACCEPT, circuit=(1 << 63) - 1, expires=(1 << 63) - 1)
    assert len(signed(most)) <= limits.TICKET_BYTES
    assert len(signed(changed(toll=PAID, expires=(1 << 63) - 1))) <= limits.TICKET_BYTES


def test_only_who_dials_shows_a_pass() -> None:
    assert judge(signed(changed(toll=PAID)), R.public, NOW) == Presented(changed(toll=PAID), bare(A.public))
    accept = changed(purpose=Purpose.ACCEPT, circuit=1, toll=PAID)
    assert judge(signed(accept), R.public, NOW) is Status.MALFORMED


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"FFR1\x00",
        b"FFN1\x00\x10",
        b"FFR1\x00\x00",
        b"FFR1\xff\xff",
        b"FFR1" + (limits.TICKET_BYTES + 1).to_bytes(2, "big"),
        b"FFR1\x00\x10\x00",
    ],
)
def test_a_head_of_another_form_or_over_the_limit_announces_nothing(head: bytes) -> None:
    assert tickets.read_head(head) is None


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"relay": local_key(6, "other").public}, Status.ELSEWHERE),
        ({"expires": NOW}, Status.STALE),
        ({"expires": NOW - 1}, Status.STALE),
        ({"expires": NOW + limits.TICKET_SECONDS + 1}, Status.STALE),
        ({"presenter": local_key(6, "other").public}, Status.FORGED),
        ({"nonce": bytes(15)}, Status.MALFORMED),
        ({"nonce": bytes(200)}, Status.MALFORMED),
        ({"peer": PeerId(bytes(31))}, Status.MALFORMED),
        ({"relay": PeerId(b"")}, Status.MALFORMED),
        ({"peer": A.public}, Status.MALFORMED),
        ({"peer": R.public}, Status.MALFORMED),
        ({"circuit": 1}, Status.MALFORMED),
        ({"purpose": Purpose.ACCEPT}, Status.MALFORMED),
        ({"purpose": Purpose.ACCEPT, "circuit": -1}, Status.MALFORMED),
        ({"expires": -1}, Status.MALFORMED),
        ({"expires": 1 << 63}, Status.MALFORMED),
    ],
)
def test_a_ticket_that_breaks_a_rule_is_refused_for_it(fields: dict[str, object], status: Status) -> None:
    assert judge(signed(changed(**fields)), R.public, NOW) is status


def test_a_ticket_lasts_to_its_last_second() -> None:
    assert judge(signed(DIAL), R.public, NOW + 59) == Presented(DIAL, bare(A.public))
    assert judge(signed(DIAL), R.public, NOW + 60) is Status.STALE
    assert judge(signed(DIAL), R.public, NOW + 60 - limits.TICKET_SECONDS) == Presented(DIAL, bare(A.public))
    assert judge(signed(DIAL), R.public, NOW + 59 - limits.TICKET_SECONDS) is Status.STALE


def test_only_the_presenter_signs_and_only_as_a_ticket() -> None:
    for signature in (B.sign(NS_TICKET, encode(DIAL)), A.sign(NS_ENDPOINT, encode(DIAL)), Signature(b"")):
        assert judge(encode(SignedTicket(DIAL, signature)), R.public, NOW) is Status.FORGED


def test_no_byte_of_a_ticket_can_change() -> None:
    data = signed(DIAL)
    for at in range(len(data)):
        spoiled = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        assert isinstance(judge(spoiled, R.public, NOW), Status), at


@given(st.binary(max_size=2 * limits.TICKET_BYTES))
@settings(max_examples=300, derandomize=True)
def test_noise_is_malformed(noise: bytes) -> None:
    assert judge(noise, R.public, NOW) is Status.MALFORMED
    assert tickets.read_answer(noise) is None


def test_answers_come_back() -> None:
    for status in Status:
        data = tickets.answer(status)
        assert len(data) == tickets.ANSWER_BYTES
        assert tickets.read_answer(data) is status
        assert tickets.read_answer(data[:-1]) is None
    assert tickets.read_answer(tickets.MAGIC + b"\xff") is None


def test_a_ticket_is_used_once_and_forgotten_when_it_could_not_be_used_anyway() -> None:
    spent = Spent()
    assert spent.spend(DIAL, NOW) is None
    assert spent.spend(DIAL, NOW + 59) is Status.REPLAYED
    assert spent.spend(changed(nonce=b"1" * 16), NOW) is None
    assert spent.spend(changed(nonce=b"2" * 16, expires=NOW + 100), NOW + 60) is None
    assert len(spent) == 1
    assert set(spent._by_key.values()) == {1}


def test_the_same_nonce_of_two_keys_is_two_tickets() -> None:
    spent = Spent()
    assert spent.spend(DIAL, NOW) is None
    assert spent.spend(changed(presenter=B.public), NOW) is None


def test_what_is_remembered_is_bounded_for_each_key_and_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TICKETS_PER_KEY", 3)
    monkeypatch.setattr(limits, "TICKETS", 5)
    spent = Spent()

    def show(key: bytes, i: int) -> Status | None:
        return spent.spend(changed(presenter=PeerId(key * 32), nonce=bytes([i]) * 16), NOW)

    assert [show(b"a", i) for i in range(4)] == [None, None, None, Status.FULL]
    assert [show(b"b", i) for i in range(3)] == [None, None, Status.FULL]
    assert len(spent) == 5
    assert show(b"a", 0) is Status.REPLAYED  # a full memory forgets nothing
    assert spent.spend(changed(nonce=b"x" * 16, expires=NOW + 61), NOW + 60) is None
    assert len(spent) == 1
