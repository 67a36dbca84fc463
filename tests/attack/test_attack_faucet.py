"""Fresh keys against a network's faucet: its bounds hold, and no grant is paid twice, whatever dies in between."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from farflung.core.crypto import NS_LOCAL_KEY, digest, local_key
from farflung.core.errors import FarflungError, NetworkError
from farflung.core.ids import PeerId
from farflung.ledger.block import Genesis
from farflung.ledger.io.ledger_store import LedgerStore
from farflung.ledger.params import LedgerParams
from farflung.ledger.table_rows import AccountRow
from farflung.ledger.transactions import SignedTx
from farflung.ledger.tx_results import Result
from farflung.peers.network.card import FaucetConfig
from farflung.peers.network.faucet import DAY_SECONDS, Faucet, address_block, new_token
from farflung.peers.network.grant import GrantReply, GrantRequest
from farflung.peers.validator.requests import LedgerRequestHandler

SEAT, PAYER = local_key(33, "seat"), local_key(33, "faucet")
GRANT, BLOCK_DAY, DAY = 100, 1000, 2500  # ten accounts a block, 25 in all
FUNDS, FEE = 1_000_000, 1


class World:
    """A ledger of one validator, a faucet with a log, a clock, and a fault in the next submission if one is set."""

    def __init__(self, folder: Path, funds: int = FUNDS) -> None:
        genesis = Genesis("faucet", 0, ((PAYER.public, funds),), (SEAT.public,), LedgerParams(fee_min=FEE))
        self.store = LedgerStore.open(folder / "chain.db", genesis)
        self.served = LedgerRequestHandler(self.store.load(SEAT), self.store, is_local=True)
        self.chain, self.log, self.now = genesis.chain, folder / "faucet.log", 1_000_000.0
        self.fault = ""
        self.start()

    def start(self) -> None:
        """As after a restart of the seat."""
        config = FaucetConfig(key=PAYER, grant=GRANT, block_day=BLOCK_DAY, day=DAY)
        self.faucet = Faucet(config, self.log, lambda: self.now)

    @property
    def state(self):  # type: ignore[no-untyped-def]
        return self.served.state

    async def submit(self, signed: SignedTx) -> Result:
        fault, self.fault = self.fault, ""
        if fault == "before":
            raise NetworkError("FF-APP-295", "the seat died before the block")
        said = await self.served.submit(signed)
        if fault == "after":
            raise NetworkError("FF-APP-295", "the seat died behind the block")
        return said

    def ask(self, key: PeerId, address: str = "10.0.0.1", token: bytes = b"") -> GrantReply:
        return asyncio.run(self.faucet.grant(address, GrantRequest(key, token), self))

    def code(self, key: PeerId, address: str = "10.0.0.1", token: bytes = b"") -> str:
        """Of the refusal; empty where it paid."""
        try:
            self.ask(key, address, token)
        except FarflungError as error:
            return error.code
        return ""

    def balance(self, key: PeerId) -> int:
        row = self.state.find(AccountRow, key)
        return 0 if row is None else row.balance

    @property
    def given(self) -> int:
        """What left the faucet's account, fees apart."""
        row = self.state.find(AccountRow, PAYER.public)
        return FUNDS - row.balance - row.nonce * FEE


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    found = World(tmp_path)
    yield found
    found.faucet.close()
    found.store.close()


def fresh(number: int) -> PeerId:
    return PeerId(bytes(digest(NS_LOCAL_KEY, b"fresh", number.to_bytes(8, "little"))))


def test_ten_thousand_fresh_keys_of_three_blocks_take_the_stated_allowance(world: World) -> None:
    async def storm() -> Counter[str]:
        said: Counter[str] = Counter()
        for number in range(10_000):
            address = f"{('10.0.1', '10.0.2', '192.168.7')[number % 3]}.{number % 250}"
            try:
                await world.faucet.grant(address, GrantRequest(fresh(number), b""), world)
                said["paid"] += 1
            except FarflungError as error:
                said[error.code] += 1
        return said

    said = asyncio.run(storm())
    assert set(said) == {"paid", "FF-APP-537"}
    assert (said["paid"], world.given) == (DAY // GRANT, DAY)
    world.now += DAY_SECONDS  # the next day has an allowance of its own, and no more
    assert world.code(fresh(20_000)) == ""


def test_one_block_takes_no_more_than_its_own_allowance(world: World) -> None:
    codes = [world.code(fresh(number), f"10.0.0.{number}") for number in range(30)]
    assert codes == [""] * 10 + ["FF-APP-536"] * 20
    assert world.code(fresh(100), "10.0.1.1") == ""


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("fault", ["", "before", "after"])
def test_a_grant_is_paid_once_whatever_died_in_between(world: World, fault: str, restart: bool) -> None:
    world.fault = fault
    assert world.code(fresh(1)) == ("FF-APP-295" if fault else "")
    for _ in range(3):
        if restart:
            world.faucet.close()
            world.start()
        assert world.ask(fresh(1), "172.16.0.1").amount == GRANT
    assert world.balance(fresh(1)) == GRANT
    assert world.given == GRANT


def test_a_grant_that_never_entered_holds_up_nobody_and_is_paid_once(world: World) -> None:
    world.fault = "before"
    assert world.code(fresh(1)) == "FF-APP-295"
    assert world.code(fresh(2)) == ""  # it takes the nonce of the first
    assert world.code(fresh(1)) == ""  # so this one is signed anew
    assert [world.balance(fresh(number)) for number in (1, 2)] == [GRANT, GRANT]


def test_bounds_outlive_a_restart_and_a_clock_that_is_set_back(world: World) -> None:
    assert [world.code(fresh(number)) for number in range(10)] == [""] * 10
    world.faucet.close()
    world.start()
    assert world.code(fresh(10)) == "FF-APP-536"
    world.now += DAY_SECONDS
    assert world.code(fresh(11)) == ""
    world.now -= 2 * DAY_SECONDS
    assert [world.code(fresh(number)) for number in range(12, 22)] == [""] * 9 + ["FF-APP-536"]


def test_a_token_lifts_the_bound_of_a_block_as_often_as_it_says_and_no_other_bound(world: World) -> None:
    assert [world.code(fresh(number)) for number in range(10)] == [""] * 10
    token = new_token(PAYER, 3)
    assert [world.code(fresh(100 + number), token=token) for number in range(4)] == [""] * 3 + ["FF-APP-539"]
    world.faucet.close()
    world.start()
    assert world.code(fresh(200), token=token) == "FF-APP-539"
    many = new_token(PAYER, 1000)
    codes = [world.code(fresh(300 + number), token=many) for number in range(20)]
    assert codes == [""] * 12 + ["FF-APP-537"] * 8  # 25 a day in all


def test_tokens_of_others_of_the_past_and_forged_ones_give_nothing(world: World) -> None:
    good = new_token(PAYER, 3)
    forged = good[:8] + b"\xff\xff" + good[10:]
    for bad in (
        new_token(SEAT, 3),
        new_token(PAYER, 3, int(world.now)),
        new_token(PAYER, 0),
        forged,
        b"x",
        good + b"x",
    ):
        assert world.code(fresh(1), token=bad) == "FF-APP-539"
    assert world.given == 0


def test_a_faucet_never_gives_more_than_its_account_holds(tmp_path: Path) -> None:
    poor = World(tmp_path, 2 * GRANT + 2 * FEE)
    try:
        assert [poor.code(fresh(number)) for number in range(3)] == ["", "", "FF-APP-535"]
    finally:
        poor.faucet.close()
        poor.store.close()


def test_a_name_that_is_no_key_is_refused(world: World) -> None:
    assert world.code(PeerId(b"short")) == "FF-APP-538"


@pytest.mark.parametrize(
    ("address", "block"),
    [
        ("10.1.2.3", "10.1.2.0/24"),
        ("::ffff:10.1.2.3", "10.1.2.0/24"),
        ("2001:db8:1:2::3", "2001:db8:1::/48"),
        ("fe80::1%eth0", "fe80::/48"),
    ],
)
def test_an_address_belongs_to_its_block(address: str, block: str) -> None:
    assert address_block(address) == block
