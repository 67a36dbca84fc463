"""How a network is named, found and remembered: invitation, network file, card, joining over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from farflung.core.codec import encode
from farflung.core.crypto import SigningKey, local_key
from farflung.core.errors import FarflungError
from farflung.core.ids import Hash, PeerId
from farflung.ledger.block import Genesis
from farflung.ledger.params import LedgerParams
from farflung.ledger.transactions import Transfer
from farflung.net.counters import ByteCounter
from farflung.net.io.endpoint import Endpoint
from farflung.peers.ledger_client.client import LedgerClient, serve_nothing
from farflung.peers.ledger_client.connect import reaches_of
from farflung.peers.network import card, invitation, network_file
from farflung.peers.network.account import own_account
from farflung.peers.network.grant import request_grant
from farflung.peers.network.invitation import Invitation, Seat
from farflung.peers.network.join import KnownNetwork, join
from farflung.peers.network.network_file import NetworkFile
from farflung.peers.process.config import HexId, ListenerConfig
from farflung.peers.validator.service import ValidatorConfig, ValidatorService

SEAT, OTHER, TREASURY = (local_key(33, name) for name in ("seat", "other", "treasury"))
CHAIN = Hash(bytes(range(32)))
INVITATION = Invitation(1, "commons", CHAIN, (Seat(SEAT.public, "net.example", 4520),))
GENESIS = Genesis("commons", 1, ((TREASURY.public, 10**9),), (SEAT.public,), LedgerParams(fee_min=10))


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def changed(**values: object) -> Invitation:
    return msgspec.structs.replace(INVITATION, **values)


# The invitation.


def test_an_invitation_is_read_as_it_was_written_however_it_was_pasted() -> None:
    full = changed(seats=INVITATION.seats * 3, token=b"t" * 16, expires=2_000_000_000)
    assert len(invitation.write(INVITATION)) < 200
    for each in (INVITATION, full):
        text = invitation.write(each)
        assert invitation.read(text, 1.0) == each
        pasted = f"  \ufeff{text[:20]}\r\n  {text[20:70]}\n\t{text[70:]} \u200b\n"
        assert invitation.read(pasted, 1.0) == each
        assert invitation.is_invitation(pasted)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "FF-APP-520"),
        ("commons", "FF-APP-520"),
        ("https://net.example/join", "FF-APP-520"),
        ("farflung1" + "A" * 5000, "FF-APP-520"),
        ("farflung2" + invitation.write(INVITATION)[9:], "FF-APP-521"),
        ("farflung1", "FF-APP-522"),
        (invitation.write(INVITATION)[:-1], "FF-APP-522"),
        (invitation.write(INVITATION)[:60], "FF-APP-522"),
        (invitation.write(INVITATION) + "AAAA", "FF-APP-523"),
        (invitation.write(INVITATION).replace("net", "net"[::-1]) + "!", "FF-APP-523"),
    ],
)
def test_a_text_that_is_no_invitation_says_what_is_wrong(text: str, code: str) -> None:
    with pytest.raises(FarflungError) as found:
        invitation.read(text)
    assert (found.value.code, bool(found.value.cause), bool(found.value.hint)) == (code, True, True)


def test_each_changed_character_and_each_cut_is_noticed() -> None:
    text = invitation.write(INVITATION)
    for place in range(9, len(text)):
        other = text[:place] + ("A" if text[place] != "A" else "B") + text[place + 1 :]
        with pytest.raises(FarflungError, match=r"FF-APP-52[23]"):
            invitation.read(other)
        with pytest.raises(FarflungError, match="FF-APP-522"):
            invitation.read(text[:place])


def test_an_invitation_ends_when_it_says() -> None:
    text = invitation.write(changed(expires=1000))
    assert invitation.read(text, 999.0).expires == 1000
    with pytest.raises(FarflungError, match="FF-APP-524"):
        invitation.read(text, 1000.0)


@pytest.mark.parametrize(
    "wrong",
    [
        changed(seats=()),
        changed(seats=INVITATION.seats * 4),
        changed(name="../x"),
        changed(name="farflung1"),
        changed(chain=Hash(b"short")),
        changed(seats=(Seat(SEAT.public, "bad host\n", 1),)),
        changed(seats=(Seat(SEAT.public, 'x"y', 1),)),
        changed(seats=(Seat(SEAT.public, "net.example", 0),)),
        changed(token=b"t" * 65),
    ],
)
def test_an_invitation_that_leads_nowhere_is_neither_written_nor_read(wrong: Invitation) -> None:
    with pytest.raises(FarflungError, match="FF-APP-525"):
        invitation.write(wrong)
    body = encode(wrong)
    data = len(body).to_bytes(2, "little") + invitation._checksum(body) + body
    text = "farflung1" + invitation.base64.urlsafe_b64encode(data).decode().rstrip("=")
    with pytest.raises(FarflungError, match="FF-APP-525"):
        invitation.read(text)


# The network file.


def place(key: SigningKey = SEAT, host: str = "net.example", port: int = 4520) -> ListenerConfig:
    return ListenerConfig(HexId(key.public), host, port)


def test_a_network_file_is_read_as_it_was_written() -> None:
    file = NetworkFile("commons", GENESIS.chain, (place(), place(OTHER)), (place(OTHER, "::1", 7),), 12)
    network_file.save(file, GENESIS)
    assert network_file.remembered() == ("commons",)
    assert network_file.load("commons") == file
    assert network_file.genesis_of(file) == GENESIS


def test_another_network_of_the_same_name_gets_a_name_of_its_own() -> None:
    network_file.save(NetworkFile("commons", GENESIS.chain, (place(),)), GENESIS)
    assert network_file.name_for("commons", GENESIS.chain) == "commons"
    assert network_file.name_for("commons", CHAIN) == "commons-2"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (None, "FF-APP-528"),
        ("", "FF-APP-529"),
        ("[[[[", "FF-APP-529"),
        ('chain = "00"\nseats = []', "FF-APP-529"),
        (f'chain = "{"00" * 32}"\nseats = []', "FF-APP-529"),
        (f'chain = "{"00" * 32}"\n[[seats]]\npeer = "{"11" * 32}"\nhost = "a b"\nport = 1', "FF-APP-529"),
        (f'chain = "{"00" * 32}"\nx = 1\n[[seats]]\npeer = "{"11" * 32}"\nhost = "a"\nport = 1', "FF-APP-529"),
        ("a." * 30_000, "FF-APP-529"),
    ],
)
def test_a_network_file_that_is_damaged_says_so(text: str | None, code: str) -> None:
    folder = network_file.networks_folder()
    folder.mkdir(parents=True)
    if text is not None:
        (folder / "commons.toml").write_text(text)
    with pytest.raises(FarflungError) as found:
        network_file.load("commons")
    assert (found.value.code, bool(found.value.cause), bool(found.value.hint)) == (code, True, True)


def test_a_genesis_of_another_chain_beside_the_file_is_refused() -> None:
    file = NetworkFile("commons", CHAIN, (place(),))
    network_file.save(file, GENESIS)
    with pytest.raises(FarflungError, match="FF-APP-529"):
        network_file.genesis_of(file)


# The person's account.


def test_the_account_is_made_once_and_nobody_else_may_read_it(tmp_path: Path) -> None:
    first = own_account()
    file = tmp_path / "state" / "farflung" / "account.key"
    assert own_account() == first or own_account().public == first.public
    assert file.stat().st_mode & 0o777 == 0o600
    assert [each.name for each in file.parent.iterdir()] == ["account.key"]
    assert own_account(tmp_path / "b.key").public != first.public


# Joining, over real sockets.


@dataclass
class Net:
    """A validator that runs in this process."""

    service: ValidatorService
    port: int

    @property
    def text(self) -> str:
        return invitation.write(Invitation(1, "commons", GENESIS.chain, (Seat(SEAT.public, "127.0.0.1", self.port),)))

    async def pay(self) -> None:
        endpoint = Endpoint(local_key(33, "client"), serve_nothing, ByteCounter())
        try:
            ways = reaches_of([(SEAT.public, "127.0.0.1", self.port)], endpoint)
            await LedgerClient(ways, TREASURY, GENESIS).submit(Transfer(OTHER.public, 5))
        finally:
            await endpoint.close()


@contextlib.asynccontextmanager
async def network(
    folder: Path, genesis: Genesis = GENESIS, key: SigningKey = SEAT, **facts: object
) -> AsyncIterator[Net]:
    os.makedirs(folder, exist_ok=True)
    relay = card.NetworkRelayConfig(HexId(OTHER.public), "127.0.0.1", 4521, 7)
    config = card.NetworkConfig(relays=(relay,), **facts)  # type: ignore[arg-type]
    service = ValidatorService(ValidatorConfig(key, genesis, folder, network=config), ByteCounter(), lambda: None)
    try:
        _, port = await service.open({})
        yield Net(service, port)
    finally:
        await service.close()


def test_an_invitation_leads_to_its_network_which_is_remembered(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with network(tmp_path / "seat", message="hello") as net:
            found = await join(net.text)
            assert (found.name, found.genesis, found.notes) == ("commons", GENESIS, ())
            assert [(each.host, each.port) for each in found.relays] == [("127.0.0.1", 4521)]
            assert (found.card.message, found.card.relays[0].price) == ("hello", 7)
            assert found.ledger.port == net.port
            assert found.ledger.others == ()
            await net.pay()
            again = await join("commons")
            assert (again.chain, again.seats) == (GENESIS.chain, found.seats)
            assert network_file.load("commons").seen == 1
            assert (await join(net.text)).name == "commons"

    asyncio.run(scenario())


def test_a_network_that_is_not_who_it_says_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        other = msgspec.structs.replace(GENESIS, name="another")
        async with network(tmp_path / "seat", other) as net:
            with pytest.raises(FarflungError, match="FF-APP-527"):
                await join(net.text)
        assert network_file.remembered() == ()

    asyncio.run(scenario())


def test_a_seat_that_shows_the_past_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with network(tmp_path / "seat") as net:
            await net.pay()
            await join(net.text)
        async with network(tmp_path / "old") as net:  # an old backup: block 1 is not there yet
            with pytest.raises(FarflungError, match="FF-APP-533"):
                await join(net.text)

    asyncio.run(scenario())


def test_a_name_whose_seats_do_not_answer_says_what_was_tried(tmp_path: Path) -> None:
    network_file.save(NetworkFile("commons", GENESIS.chain, (place(host="127.0.0.1", port=1),)), GENESIS)
    with pytest.raises(FarflungError) as found:
        asyncio.run(join("commons"))
    assert found.value.code == "FF-APP-532"
    assert "127.0.0.1:1" in found.value.cause


def test_one_seat_that_answers_is_enough(tmp_path: Path) -> None:
    async def scenario() -> KnownNetwork:
        async with network(tmp_path / "seat") as net:
            seats = (Seat(OTHER.public, "127.0.0.1", 1), Seat(SEAT.public, "127.0.0.1", net.port))
            return await join(invitation.write(Invitation(1, "commons", GENESIS.chain, seats)))

    found = asyncio.run(scenario())
    assert bytes(found.seats[0].peer) == SEAT.public
    assert len(found.notes) == 1
    assert "127.0.0.1:1" in found.notes[0]


def test_an_older_program_is_told_what_the_network_needs(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with network(tmp_path / "seat", least="999.0.0") as net:
            with pytest.raises(FarflungError, match="FF-APP-534"):
                await join(net.text)

    asyncio.run(scenario())


def test_the_faucet_of_a_network_is_asked_over_its_seats(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with network(tmp_path / "dry") as net:
            with pytest.raises(FarflungError, match="FF-APP-542"):
                await request_grant(await join(net.text), OTHER)
        faucet = card.FaucetConfig(key=TREASURY, grant=100, block_day=100, day=100)
        async with network(tmp_path / "seat", faucet=faucet) as net:
            found = await join(net.text)
            assert found.card.faucet == card.FaucetTerms(100, 100, 100)
            said = [await request_grant(found, OTHER) for _ in range(2)]
            assert [(each.amount, each.is_new) for each in said] == [(100, True), (100, False)]
            with pytest.raises(FarflungError, match="FF-APP-536") as refused:
                await request_grant(found, SEAT)
            assert refused.value.exit_code == 4
            with pytest.raises(FarflungError, match="FF-APP-539"):
                await request_grant(found, SEAT, b"token")

    asyncio.run(scenario())


# The card.


def _card(**values: object) -> card.NetworkCard:
    terms = card.FaucetTerms()
    own = (Seat(SEAT.public, "net.example", 4520),)
    plain = card.NetworkCard(2, "0.1.0", "0.1.0", (2,), "commons", CHAIN, SEAT.public, 1_000, own, (), terms, False, "")
    return msgspec.structs.replace(plain, **values)


@pytest.mark.parametrize(
    ("said", "signer", "code"),
    [
        (_card(), OTHER, "FF-APP-526"),
        (_card(chain=Hash(bytes(32))), SEAT, "FF-APP-526"),
        (_card(seat=OTHER.public), OTHER, "FF-APP-526"),
        (_card(format=3), SEAT, "FF-APP-602"),
        (_card(name="../x"), SEAT, "FF-APP-530"),
        (_card(message="x" * 401), SEAT, "FF-APP-530"),
        (_card(message="\x1b[2Jhello"), SEAT, "FF-APP-530"),
        (_card(seats=(Seat(PeerId(b"x"), "h", 1),)), SEAT, "FF-APP-530"),
        (_card(relays=(card.NetworkRelay(OTHER.public, "h", 1, -1),)), SEAT, "FF-APP-530"),
        (_card(faucet=card.FaucetTerms(-1)), SEAT, "FF-APP-530"),
        (_card(least="new\x1b"), SEAT, "FF-APP-530"),
        (_card(seats=(Seat(SEAT.public, "h", 1),) * 17), SEAT, "FF-APP-530"),
    ],
)
def test_a_card_that_is_forged_or_out_of_bounds_is_refused(
    said: card.NetworkCard, signer: SigningKey, code: str
) -> None:
    assert card.read_card(encode(card.sign_card(SEAT, _card())), SEAT.public, CHAIN) == _card()
    with pytest.raises(FarflungError, match=code):
        card.read_card(encode(card.sign_card(signer, said)), SEAT.public, CHAIN)


def test_bytes_that_are_no_card_are_refused() -> None:
    for data in (b"", secrets.token_bytes(100), b"x" * 20_000):
        with pytest.raises(FarflungError, match="FF-CORE-02"):
            card.read_card(data, SEAT.public, CHAIN)
