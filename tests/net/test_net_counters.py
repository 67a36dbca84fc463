"""What each byte was for."""

from farflung.net.counters import ByteCounter, ConnectionMeter
from farflung.net.messages import MessageKind
from farflung.net.tls import RECORD_BYTES, RECORD_OVERHEAD, wire_size


def test_ciphertext_size_counts_every_record() -> None:
    assert wire_size(1) == 1 + RECORD_OVERHEAD
    assert wire_size(RECORD_BYTES) == RECORD_BYTES + RECORD_OVERHEAD
    assert wire_size(RECORD_BYTES + 1) == RECORD_BYTES + 1 + 2 * RECORD_OVERHEAD


def test_received_bytes_are_control_until_a_frame_claims_them() -> None:
    counter = ByteCounter()
    meter = ConnectionMeter(counter)
    meter.received(700)
    meter.settle()
    meter.received(1000)
    assert counter.received[MessageKind.CONTROL] == 1700
    meter.frame(MessageKind.SYNC, 1000 - RECORD_OVERHEAD)
    assert (counter.received[MessageKind.CONTROL], counter.received[MessageKind.SYNC]) == (700, 1000)
    assert counter.total_received == 1700


def test_a_frame_claims_no_more_than_what_came() -> None:
    counter = ByteCounter()
    meter = ConnectionMeter(counter)
    meter.received(100)
    meter.frame(MessageKind.SYNC, 100)
    meter.frame(MessageKind.SYNC, 100)
    assert counter.received[MessageKind.SYNC] == counter.total_received == 100
    assert counter.received[MessageKind.CONTROL] == 0


def test_sent_bytes_add_up_over_connections() -> None:
    counter = ByteCounter()
    first, second = ConnectionMeter(counter), ConnectionMeter(counter)
    first.sent(MessageKind.JOIN, 3)
    second.sent(MessageKind.JOIN, 4)
    second.received(5)
    assert counter.sent[MessageKind.JOIN] == counter.total_sent == 7
    assert (first.total, second.total) == (3, 9)
