"""A frozen hash over thousands of seeded encodings of each wire form: a change of format is a line here."""

import random

from farflung.core.codec import encode as to_wire
from farflung.core.crypto import digest, local_key
from farflung.core.ids import Hash, PeerId, Signature
from farflung.core.relay_passes import RelayPass, RelayReceipt, SignedRelayPass, SignedRelayReceipt
from farflung.net import messages
from farflung.net.certificates import Credential, certify
from farflung.net.endpoint_records import EndpointAddress, EndpointRecord, SignedEndpointRecord
from farflung.net.frames import SIGNALS, Frame, FrameType, encode
from farflung.net.messages import ErrorBody, MessageKind
from farflung.net.relay_tickets import CallbackRequest, Ticket, TicketPurpose, TicketStatus, answer, sign_ticket
from farflung.net.tls import hello
from farflung.net.tls_identity import certificate

COUNT = 2000


def frozen(make) -> str:  # type: ignore[no-untyped-def]
    rng = random.Random(7)
    return digest("test", *(make(rng) for _ in range(COUNT))).hex()[:16]


def record(rng: random.Random) -> EndpointRecord:
    def place() -> EndpointAddress:
        host = "".join(rng.choices("abc.123", k=rng.randrange(1, 20)))
        relay = PeerId(rng.randbytes(32) if rng.random() < 0.5 else bytes(32))
        return EndpointAddress(host, rng.randrange(1, 65536), relay)

    peer, places = PeerId(rng.randbytes(32)), tuple(place() for _ in range(rng.randrange(1, 9)))
    return EndpointRecord(peer, places, rng.randrange(1 << 62), rng.randrange(1 << 62))


def ticket(rng: random.Random) -> Ticket:
    keys = (PeerId(rng.randbytes(32)) for _ in range(3))
    paid = toll(rng) if rng.random() < 0.5 else None
    numbers = (rng.randrange(1 << 63), rng.randbytes(16), rng.randrange(1 << 63))
    return Ticket(rng.choice(list(TicketPurpose)), *keys, *numbers, paid)


def toll(rng: random.Random) -> SignedRelayPass:
    payer, relay, *holders = (PeerId(rng.randbytes(32)) for _ in range(rng.randrange(4, 9)))
    numbers = [rng.randrange(1 << 63) for _ in range(7)]
    what = RelayPass(Hash(rng.randbytes(32)), payer, relay, *numbers[:2], tuple(holders), *numbers[2:])
    return SignedRelayPass(what, Signature(rng.randbytes(64)))


def receipt(rng: random.Random) -> SignedRelayReceipt:
    payer, relay, party = (PeerId(rng.randbytes(32)) for _ in range(3))
    opening, serial, sent, received = (rng.randrange(1 << 63) for _ in range(4))
    what = RelayReceipt(Hash(rng.randbytes(32)), payer, relay, opening, serial, party, sent, received)
    return SignedRelayReceipt(what, PeerId(rng.randbytes(32)), Signature(rng.randbytes(64)))


def credential(rng: random.Random) -> Credential:
    account, node = (local_key(rng.randrange(1 << 60), name) for name in "an")
    begins = rng.randrange(1 << 33)
    expires = begins + rng.randrange(1, 1 << 33)
    epoch = rng.randrange(1, 1 << 32)
    return Credential(node, certify(account, node.public, epoch, begins=begins, expires=expires))


def frame(rng: random.Random) -> Frame:
    type_ = rng.choice(list(FrameType))
    if type_ in SIGNALS:
        return Frame(type_, 0)
    return Frame(type_, rng.randrange(1, 1 << 32), rng.randbytes(rng.randrange(1, 40)), rng.random() < 0.5)


def text(rng: random.Random) -> str:
    return "".join(rng.choices("aä€ \n", k=rng.randrange(20)))


def test_endpoint_records_are_frozen() -> None:
    assert frozen(lambda rng: to_wire(record(rng))) == "44da59c55e2962c5"
    assert (
        frozen(lambda rng: to_wire(SignedEndpointRecord(record(rng), Signature(rng.randbytes(64)))))
        == "5a84d2f772b96d65"
    )


def test_tickets_answers_and_summons_are_frozen() -> None:
    assert frozen(lambda rng: sign_ticket(local_key(1, "x"), ticket(rng))) == "432416c834cd85ce"
    assert frozen(lambda rng: sign_ticket(credential(rng), ticket(rng))) == "e02812a61bc49c30"
    assert frozen(lambda rng: answer(rng.choice(list(TicketStatus)))) == "69810025b70ff732"
    summons = frozen(
        lambda rng: to_wire(CallbackRequest(rng.randrange(1, 1 << 63), PeerId(rng.randbytes(32)), toll(rng)))
    )
    assert summons == "a85758eb9d6fcda2"


def test_receipts_are_frozen() -> None:
    assert frozen(lambda rng: to_wire(receipt(rng))) == "3a56b25199ffc9e1"


def test_frames_are_frozen() -> None:
    assert frozen(lambda rng: encode(frame(rng))) == "7da05b2206da8559"


def test_message_heads_and_errors_are_frozen() -> None:
    def ask(rng: random.Random) -> bytes:
        method = "".join(rng.choices("abc_.9", k=rng.randrange(20)))
        return messages.ask_head("m" + method, rng.choice(list(MessageKind)), rng.randrange(2 << 20))

    assert frozen(ask) == "e8dbd7aefaa8c321"
    assert frozen(lambda rng: messages.answer_head(rng.randrange(1 << 32))) == "0155778f117ce572"
    assert (
        frozen(lambda rng: to_wire(ErrorBody(f"FF-NET-{rng.randrange(100, 1000)}", *(text(rng) for _ in range(4)))))
        == "ade334053b2c8568"
    )


def test_certificates_and_hellos_are_frozen() -> None:
    assert (
        frozen(lambda rng: hello(certificate(Credential(local_key(rng.randrange(1 << 60), "x"))))) == "00b76eb732504966"
    )
    assert frozen(lambda rng: hello(certificate(credential(rng)))) == "e5e7046ef2acc5bd"
