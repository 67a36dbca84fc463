"""Programs of two versions meet: each says which two, and nobody else is kept from work.

The other version is emulated: structs of another format number, and another name of the program.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import astuple, replace

from farflung.core.codec import decode, encode
from farflung.core.crypto import NS_ADVERTISEMENT, SigningKey
from farflung.core.errors import FarflungError, PolicyError, ProtocolError
from farflung.core.ids import Hash
from farflung.core.money import Credits
from farflung.core.release import JOB_FORMAT, VERSION
from farflung.job.spec import JobSpec, NetworkSpec
from farflung.ledger.table_rows import NodeRow
from farflung.ledger.transactions import LeaseRole
from farflung.market.provider_offer import Capabilities, caps_hash, lasting
from farflung.net.endpoint_records import EndpointAddress, issue
from farflung.net.messages import read_error, write_error
from farflung.peers.network import card
from farflung.peers.node.agent import NodeAgent
from farflung.peers.node.provider import PROVIDER
from farflung.peers.protocol import directory, messages
from farflung.peers.requester.lease_negotiation import StandingAsks, read_asks
from farflung.peers.requester.market_survey import survey

NEWER = "0.2.0"
KEYS = [SigningKey(bytes([i]) * 32) for i in range(1, 6)]
SEAT = SigningKey(bytes([9]) * 32)
FACTS = Capabilities(2, 1 << 33, 1 << 33, 10**11, 1, "Linux", "x86_64", "2.13.0")


def advertised(key: SigningKey, version: str = VERSION, *formats: int, shape: int = directory.FORMAT) -> bytes:
    """An advertisement by a node that runs `version`; of another `shape` it has one field more."""
    record = issue(key.public, (EndpointAddress("127.0.0.1", 1),), time.time())
    plain = directory.Advertisement(shape, version, formats or (JOB_FORMAT,), record, FACTS, LeaseRole.TRAIN)
    said = replace(plain, signature=key.sign(NS_ADVERTISEMENT, plain.said))
    return encode(said) if shape == directory.FORMAT else encode((*astuple(said), "new"))


def read(*listed: bytes) -> StandingAsks:
    async def call(_method: str, _body: bytes) -> bytes:
        return encode(directory.DirectoryListing(listed))

    async def nodes() -> list[NodeRow]:
        return [NodeRow(key.public, caps_hash(lasting(FACTS)), 1, 1000) for key in KEYS]

    ledger: Any = SimpleNamespace(nodes=nodes)
    there: Any = SimpleNamespace(call=call)
    return asyncio.run(read_asks(ledger, there))


@pytest.mark.parametrize(
    ("others", "hired", "says"),
    [
        (list, 2, ""),
        (
            lambda: [advertised(KEYS[2], "0.0.9", JOB_FORMAT - 1)],
            2,
            "1 node runs farflung 0.0.9, and this job is of farflung ",
        ),
        (
            lambda: [advertised(key, NEWER, JOB_FORMAT + 1) for key in KEYS[2:]],
            2,
            f"3 nodes run farflung {NEWER}, and this job is of farflung {VERSION} (job format {JOB_FORMAT})",
        ),
        (lambda: [advertised(KEYS[2], NEWER, JOB_FORMAT, JOB_FORMAT + 1)], 3, ""),  # it takes this format, too
        (lambda: [advertised(KEYS[2], NEWER, shape=directory.FORMAT + 1)], 2, f"1 node runs farflung {NEWER}"),
        (lambda: [advertised(KEYS[2], "\x1b[2J", shape=directory.FORMAT + 1)], 2, "1 node runs farflung of no version"),
        (lambda: [b"", b"\xff" * 40, b"\x92\x07"], 2, ""),  # no advertisement at all
    ],
)
def test_nodes_of_another_job_format_are_left_out_by_name(
    others: Callable[[], list[bytes]], hired: int, says: str
) -> None:
    """What is advertised is made when the test runs: it would be old by then."""
    asks = read(advertised(KEYS[0]), *others(), advertised(KEYS[1]))
    found = {ask.peer for ask in asks.of[LeaseRole.TRAIN]}
    assert {KEYS[0].public, KEYS[1].public} <= found
    assert asks.versions_text.startswith(says) if says else asks.versions_text == ""
    assert len(found) == hired
    spec = JobSpec(network=NetworkSpec(providers=4, verifiers=0))
    assert survey(spec, asks, 0, Credits(10)).versions == asks.versions_text


def test_a_directory_refuses_an_advertisement_of_another_format_and_names_both_versions() -> None:
    with pytest.raises(ProtocolError, match="FF-APP-601") as raised:
        directory.read_advertisement(advertised(KEYS[0], NEWER, shape=directory.FORMAT + 1))
    assert NEWER in raised.value.message
    assert VERSION in raised.value.cause
    listing = directory.DirectoryListing((advertised(KEYS[0], NEWER, shape=7), advertised(KEYS[1])))
    kept = directory.sound(decode(encode(listing), directory.DirectoryListing, 10**4), time.time())
    assert [each.endpoint.peer for each in kept] == [KEYS[1].public]


def test_a_card_of_another_format_names_both_versions() -> None:
    chain = Hash(bytes([4]) * 32)
    signed = encode(([card.FORMAT + 1, "0.1.5", NEWER, "whatever", 9], bytes(64)))
    with pytest.raises(ProtocolError, match="FF-APP-602") as raised:
        card.read_card(signed, SEAT.public, chain)
    assert NEWER in raised.value.message
    assert VERSION in raised.value.cause


def asked(method: str, body: bytes) -> FarflungError:
    """What a provider answers to a stranger."""
    node: Any = object.__new__(NodeAgent)
    node._role, node.requester, node._lease, node._past, node._closed = PROVIDER, None, None, None, ""
    with pytest.raises(FarflungError) as raised:
        asyncio.run(node.handle(SimpleNamespace(peer=KEYS[0].public), method, body))
    return raised.value


def test_a_proposal_of_another_format_is_refused_before_it_is_read() -> None:
    error = asked(messages.PROPOSE, encode((JOB_FORMAT + 1, "a field", {"that": "nobody knows"})))
    assert isinstance(error, PolicyError)
    assert (error.code, error.message) == ("FF-APP-600", f"this node takes no jobs of format {JOB_FORMAT + 1}")
    assert f"farflung {VERSION}, which takes jobs of format {JOB_FORMAT}" in error.cause
    assert asked(messages.PROPOSE, encode((JOB_FORMAT, "not a proposal"))).code == "FF-CORE-021"


def test_a_request_of_an_unknown_name_is_answered_with_version_and_formats() -> None:
    error = asked("lease.from_the_future", b"")
    assert error.code == "FF-APP-043"
    assert error.cause == f"it runs farflung {VERSION}, which takes jobs of format {JOB_FORMAT}"


@pytest.mark.parametrize("cause", ["", "it does not fit"])
def test_an_error_from_another_version_names_both(cause: str, monkeypatch: pytest.MonkeyPatch) -> None:
    error = ProtocolError("FF-CORE-021", "message is not of the expected type", cause=cause)
    same = read_error(write_error(error))
    assert (same.cause, same.hint) == (cause, "")
    monkeypatch.setattr("farflung.net.messages.VERSION", NEWER)
    body = write_error(error)
    monkeypatch.undo()
    told = read_error(body)
    assert told.cause.startswith(cause)
    assert told.cause.endswith(f"it runs farflung {NEWER}, and this is farflung {VERSION}")
    assert "same version" in told.hint
    grown = encode((*decode(body, tuple[str, ...], 10**4), "a field that a later one adds"))
    assert read_error(grown).cause == told.cause
