"""Who may open a way through a relay: the ticket alone, without a socket."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.core import limits
from farflung.core.codec import encode
from farflung.core.crypto import NS_ENDPOINT, NS_TICKET, local_key
from farflung.core.ids import Hash, PeerId, Signature
from farflung.core.relay_passes import RelayPass, sign_pass
from farflung.net import relay_tickets
from farflung.net.certificates import bare
from farflung.net.relay_tickets import (
    AdmittedTicket,
    SignedTicket,
    Ticket,
    TicketPurpose,
    TicketReplayCache,
    TicketStatus,
    judge,
    sign_ticket,
)

A, B, R = (local_key(6, name) for name in ("a", "b", "relay"))
NOW = 1_800_000_000
DIAL = Ticket(TicketPurpose.DIAL, R.public, A.public, B.public, 0, bytes(16), NOW + 60)

MOST = (1 << 63) - 1
HOLDERS = tuple(sorted(local_key(6, "holder", i).public for i in range(limits.PASS_HOLDERS)))
PAID = sign_pass(B, RelayPass(Hash(bytes(32)), B.public, R.public, MOST, MOST, HOLDERS, MOST, MOST, MOST, MOST))


def signed(ticket: Ticket) -> bytes:
    return sign_ticket(A, ticket)[relay_tickets.HEAD_BYTES :]


def changed(**fields: object) -> Ticket:
    return msgspec.structs.replace(DIAL, **fields)


def test_a_ticket_comes_back_and_its_head_says_how_long_it_is() -> None:
    data = sign_ticket(A, DIAL)
    assert (
        relay_tickets.read_head(data[: relay_tickets.HEAD_BYTES])
        == len(data) - relay_tickets.HEAD_BYTES
        <= limits.TICKET_BYTES
    )
    assert judge(data[relay_tickets.HEAD_BYTES :], R.public, NOW) == AdmittedTicket(DIAL, bare(A.public))


def test_the_largest_ticket_fits() -> None:
    most = changed(purpose=TicketPurpose.ACCEPT, circuit=(1 << 63) - 1, expires=(1 << 63) - 1)
    assert len(signed(most)) <= limits.TICKET_BYTES
    assert len(signed(changed(toll=PAID, expires=(1 << 63) - 1))) <= limits.TICKET_BYTES


def test_only_who_dials_shows_a_pass() -> None:
    assert judge(signed(changed(toll=PAID)), R.public, NOW) == AdmittedTicket(changed(toll=PAID), bare(A.public))
    accept = changed(purpose=TicketPurpose.ACCEPT, circuit=1, toll=PAID)
    assert judge(signed(accept), R.public, NOW) is TicketStatus.MALFORMED


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
    assert relay_tickets.read_head(head) is None


def test_a_ticket_that_breaks_a_rule_is_refused_for_it(subtests: pytest.Subtests) -> None:
    for fields, status in [
        ({"relay": local_key(6, "other").public}, TicketStatus.ELSEWHERE),
        ({"expires": NOW}, TicketStatus.STALE),
        ({"expires": NOW - 1}, TicketStatus.STALE),
        ({"expires": NOW + limits.TICKET_SECONDS + 1}, TicketStatus.STALE),
        ({"presenter": local_key(6, "other").public}, TicketStatus.FORGED),
        ({"nonce": bytes(15)}, TicketStatus.MALFORMED),
        ({"nonce": bytes(200)}, TicketStatus.MALFORMED),
        ({"peer": PeerId(bytes(31))}, TicketStatus.MALFORMED),
        ({"relay": PeerId(b"")}, TicketStatus.MALFORMED),
        ({"peer": A.public}, TicketStatus.MALFORMED),
        ({"peer": R.public}, TicketStatus.MALFORMED),
        ({"circuit": 1}, TicketStatus.MALFORMED),
        ({"purpose": TicketPurpose.ACCEPT}, TicketStatus.MALFORMED),
        ({"purpose": TicketPurpose.ACCEPT, "circuit": -1}, TicketStatus.MALFORMED),
        ({"expires": -1}, TicketStatus.MALFORMED),
        ({"expires": 1 << 63}, TicketStatus.MALFORMED),
    ]:
        with subtests.test(fields=fields, status=status):
            assert judge(signed(changed(**fields)), R.public, NOW) is status


def test_a_ticket_lasts_to_its_last_second() -> None:
    assert judge(signed(DIAL), R.public, NOW + 59) == AdmittedTicket(DIAL, bare(A.public))
    assert judge(signed(DIAL), R.public, NOW + 60) is TicketStatus.STALE
    assert judge(signed(DIAL), R.public, NOW + 60 - limits.TICKET_SECONDS) == AdmittedTicket(DIAL, bare(A.public))
    assert judge(signed(DIAL), R.public, NOW + 59 - limits.TICKET_SECONDS) is TicketStatus.STALE


def test_only_the_presenter_signs_and_only_as_a_ticket() -> None:
    for signature in (B.sign(NS_TICKET, encode(DIAL)), A.sign(NS_ENDPOINT, encode(DIAL)), Signature(b"")):
        assert judge(encode(SignedTicket(DIAL, signature)), R.public, NOW) is TicketStatus.FORGED


def test_no_byte_of_a_ticket_can_change() -> None:
    data = signed(DIAL)
    for at in range(len(data)):
        spoiled = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        assert isinstance(judge(spoiled, R.public, NOW), TicketStatus), at


@given(st.binary(max_size=2 * limits.TICKET_BYTES))
@settings(max_examples=300, derandomize=True)
def test_noise_is_malformed(noise: bytes) -> None:
    assert judge(noise, R.public, NOW) is TicketStatus.MALFORMED
    assert relay_tickets.read_answer(noise) is None


def test_answers_come_back() -> None:
    for status in TicketStatus:
        data = relay_tickets.answer(status)
        assert len(data) == relay_tickets.ANSWER_BYTES
        assert relay_tickets.read_answer(data) is status
        assert relay_tickets.read_answer(data[:-1]) is None
    assert relay_tickets.read_answer(relay_tickets.MAGIC + b"\xff") is None


def test_a_ticket_is_used_once_and_forgotten_when_it_could_not_be_used_anyway() -> None:
    spent = TicketReplayCache()
    assert spent.spend(DIAL, NOW) is None
    assert spent.spend(DIAL, NOW + 59) is TicketStatus.REPLAYED
    assert spent.spend(changed(nonce=b"1" * 16), NOW) is None
    assert spent.spend(changed(nonce=b"2" * 16, expires=NOW + 100), NOW + 60) is None
    assert len(spent) == 1
    assert set(spent._by_key.values()) == {1}


def test_the_same_nonce_of_two_keys_is_two_tickets() -> None:
    spent = TicketReplayCache()
    assert spent.spend(DIAL, NOW) is None
    assert spent.spend(changed(presenter=B.public), NOW) is None


def test_what_is_remembered_is_bounded_for_each_key_and_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TICKETS_PER_KEY", 3)
    monkeypatch.setattr(limits, "TICKETS", 5)
    spent = TicketReplayCache()

    def show(key: bytes, i: int) -> TicketStatus | None:
        return spent.spend(changed(presenter=PeerId(key * 32), nonce=bytes([i]) * 16), NOW)

    assert [show(b"a", i) for i in range(4)] == [None, None, None, TicketStatus.FULL]
    assert [show(b"b", i) for i in range(3)] == [None, None, TicketStatus.FULL]
    assert len(spent) == 5
    assert show(b"a", 0) is TicketStatus.REPLAYED  # a full memory forgets nothing
    assert spent.spend(changed(nonce=b"x" * 16, expires=NOW + 61), NOW + 60) is None
    assert len(spent) == 1
