"""What a relay that is paid keeps on its disk: enough to claim after it was killed, and nothing for ever."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace
from net_relays import A, B, C, R, relay, run, until
from net_tolls import CHAIN, NOW, PAYER, PRICE, Ledger, hidden, toll

from farflung.core import limits, relay_passes
from farflung.core.crypto import SigningKey
from farflung.core.errors import NetworkError
from farflung.core.file_header import HEAD_BYTES, file_of, value_of
from farflung.core.ids import Hash
from farflung.core.relay_passes import RelayReceipt, SignedRelayReceipt
from farflung.net.io import relay_dialer, relay_metering_gate
from farflung.net.io.admission import Admission
from farflung.net.io.relay_metering_gate import SETTLE, CreditLimits, RelayMeteringGate
from farflung.net.io.relay_receipt_store import FORM, ReceiptStore, StoredPass
from farflung.net.relay_meter import PassMeter, PassStatus

BULK = bytes(range(256)) * 1024


@pytest.fixture(autouse=True)
def _standing_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_dialer, "time", SimpleNamespace(time=lambda: NOW))


def said(key: SigningKey, sent: int, received: int) -> SignedRelayReceipt:
    t = toll().toll
    return relay_passes.sign_receipt(
        key, RelayReceipt(t.chain, t.payer, t.relay, t.opening, t.serial, key.public, sent, received)
    )


def kept(folder: Path) -> list[StoredPass]:
    return list(ReceiptStore(folder).load(R.public, CHAIN))


def written(folder: Path) -> list[tuple[int, int]]:
    """Receipts with each pass, and what was carried; touches nothing, since somebody else may be writing."""
    found = [value_of(FORM, path.read_bytes(), StoredPass, limits.TILL_BYTES) for path in folder.glob("*.pass")]
    return [(len(each.receipts), each.carried) for each in found]


def billed(folder: Path) -> int:
    """By the last receipts of the one pass; the relay writes each a moment after it came."""
    (each,) = (value_of(FORM, path.read_bytes(), StoredPass, limits.TILL_BYTES) for path in folder.glob("*.pass"))
    said = {r.receipt.party: (r.receipt.sent, r.receipt.received) for r in each.receipts}
    return relay_passes.billed(1 << 40, said)


def test_what_is_kept_comes_back_and_what_is_dropped_does_not(tmp_path: Path) -> None:
    async def test() -> None:
        till, last = ReceiptStore(tmp_path / "new" / "till"), (said(A, 5, 6), said(B, 6, 5))
        await till.open(toll())
        assert kept(tmp_path / "new" / "till") == [StoredPass(toll(), ())]
        till.keep(toll(), last[:1], 9)
        till.keep(toll(), last, 12)
        await till.write()
        assert kept(tmp_path / "new" / "till") == [StoredPass(toll(), last, 12)]
        await till.drop(toll().toll)
        assert list((tmp_path / "new" / "till").iterdir()) == []

    run(test)


@pytest.mark.parametrize(
    ("relay", "chain", "body"),
    [
        (C.public, CHAIN, file_of(FORM, (toll(), (), 0))),
        (R.public, Hash(bytes(32)), file_of(FORM, (toll(), (), 0))),
        (R.public, CHAIN, file_of(FORM, (toll(key=C), (), 0))),
        (R.public, CHAIN, file_of(FORM, (toll(), (said(A, 1, 1), said(A, 2, 2)), 0))),
        (R.public, CHAIN, file_of(FORM, (toll(), (said(C, 1, 1),), 0))),
        (R.public, CHAIN, file_of(FORM, (toll(), (replace(said(A, 1, 1), signature=bytes(64)),), 0))),
        (R.public, CHAIN, file_of(FORM, (toll(), (said(A, 1, 1),), 0))[:-1]),
        (R.public, CHAIN, b""),
        (R.public, CHAIN, bytes(limits.TILL_BYTES + HEAD_BYTES + 1)),
    ],
)
def test_a_file_that_says_something_else_is_passed_over(tmp_path: Path, relay: bytes, chain: Hash, body: bytes) -> None:
    (tmp_path / "x.pass").write_bytes(body)
    (tmp_path / "y.pass.tmp").write_bytes(b"torn")
    assert list(ReceiptStore(tmp_path).load(relay, chain)) == []  # type: ignore[arg-type]
    assert [path.name for path in tmp_path.iterdir()] == ["x.pass"]


def test_the_largest_pass_fits(tmp_path: Path) -> None:
    async def test() -> None:
        keys = [SigningKey(bytes([n]) * 32) for n in range(limits.PASS_HOLDERS)]
        most = (1 << 63) - 1
        many = toll(*keys, quota=limits.PASS_BYTES, rate=most)
        t, size = many.toll, limits.PASS_BYTES
        names = t.chain, t.payer, t.relay, t.opening, t.serial
        receipts = tuple(
            relay_passes.sign_receipt(key, RelayReceipt(*names, key.public, size, size))
            for key in sorted(keys, key=lambda key: key.public)
        )
        till = ReceiptStore(tmp_path)
        till.keep(many, receipts, size)
        await till.write()
        assert kept(tmp_path) == [StoredPass(many, receipts, size)]

    run(test)


@asynccontextmanager
async def process(folder: Path, port: int) -> AsyncIterator[tuple[asyncio.subprocess.Process, int]]:
    script = str(Path(__file__).with_name("net_killed_relay.py"))
    pipe = asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_exec(sys.executable, script, str(folder), str(port), stdout=pipe)
    assert child.stdout is not None
    try:
        yield child, int(await child.stdout.readline())
    finally:
        if child.returncode is None:
            child.kill()
        await child.wait()


def test_a_relay_that_was_killed_claims_what_had_been_signed_and_goes_on(tmp_path: Path) -> None:
    async def test() -> None:
        async with hidden(A, None) as a, hidden(B, None) as b:
            a.payer.put(toll())
            async with process(tmp_path, 0) as (child, port):
                b.attach(R.public, "127.0.0.1", port)
                await b.attached()
                connection = await a.dial(B.public, "127.0.0.1", port, relay=R.public)
                for _ in range(4):
                    assert await connection.call("x", BULK) == BULK
                for each in (a, b):
                    await each.payer.sign(R.public)
                await until(lambda: billed(tmp_path) >= 8 * len(BULK))
                before = billed(tmp_path)
                child.send_signal(signal.SIGKILL)
                await child.wait()
            await connection.closed()
            async with process(tmp_path, port) as (child, port), hidden(PAYER, None) as payer:
                await b.attached()
                connection = await again(lambda: a.dial(B.public, "127.0.0.1", port, relay=R.public))
                assert await connection.call("x", BULK) == BULK
                await (await payer.dial(R.public, "127.0.0.1", port)).call(SETTLE, b"")
                assert child.stdout is not None
                assert int(await child.stdout.readline()) >= before + 2 * len(BULK)
            assert kept(tmp_path) == []

    run(test)


async def again(dial):  # type: ignore[no-untyped-def]
    """Until the peer is attached to the new process as well."""
    while True:
        try:
            return await dial()
        except NetworkError:
            await asyncio.sleep(0.1)


def test_what_cannot_be_remembered_is_not_begun(tmp_path: Path) -> None:
    async def test() -> None:
        till, ledger = ReceiptStore(tmp_path / "till"), Ledger()
        gate = RelayMeteringGate(ledger.asked(), PRICE, store=till)
        async with relay(gate=gate, admission=Admission(clock=lambda: NOW)) as server:
            async with hidden(A, None) as a, hidden(B, server.address):
                a.payer.put(toll())
                (tmp_path / "till").rmdir()
                with pytest.raises(NetworkError) as refused:
                    await a.dial(B.public, *server.address, relay=R.public)
                assert "no place" in refused.value.cause
                (tmp_path / "till").mkdir()
                await a.dial(B.public, *server.address, relay=R.public)

    run(test)


def test_a_pass_that_ended_without_a_byte_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_metering_gate, "LOOK_SECONDS", 0.02)

    async def test() -> None:
        now, ledger = [NOW], Ledger()
        gate = RelayMeteringGate(ledger.asked(), PRICE, store=ReceiptStore(tmp_path))
        async with relay(gate=gate, admission=Admission(clock=lambda: now[0])) as server, hidden(A, None) as a:
            a.payer.put(toll())
            with pytest.raises(NetworkError):
                await a.dial(B.public, *server.address, relay=R.public)
            assert len(kept(tmp_path)) == 1
            now[0] += limits.PASS_SECONDS
            await until(lambda: not kept(tmp_path))

    run(test)


@pytest.mark.parametrize("settles", [True, False])
def test_a_relay_that_is_started_anew_gives_who_owes_no_new_window(tmp_path: Path, settles: bool) -> None:
    window, owed = 1 << 22, 3 << 20

    def gate() -> RelayMeteringGate:
        ledger = Ledger()
        most = window + limits.RECEIPT_STEP
        return RelayMeteringGate(ledger.asked(), PRICE, store=ReceiptStore(tmp_path), credit=CreditLimits(most))

    async def test() -> None:
        before = gate()
        async with relay(gate=before, admission=Admission(clock=lambda: NOW)):
            books = await before.admit(toll(), A.public, B.public)
            assert isinstance(books, PassMeter)
            books.moved(A.public, B.public, owed)
            if settles:
                await before.settle(PAYER.public)
                assert kept(tmp_path) == []
            else:
                await until(lambda: written(tmp_path) == [(0, owed)])
        after = gate()
        async with relay(gate=after, admission=Admission(clock=lambda: NOW)):
            for serial in (2, 3):
                books = await after.admit(toll(serial=serial), A.public, B.public)
                assert isinstance(books, PassMeter)
                assert books.account.room == window - owed
            assert books.moved(A.public, B.public, window - owed) is PassStatus.HELD

    run(test)


def test_a_debt_that_was_paid_is_kept_as_none_and_a_file_that_says_no_number_is_none(tmp_path: Path) -> None:
    async def test() -> None:
        till = ReceiptStore(tmp_path)
        till.owe(PAYER.public, 0)
        await till.write()
        assert list(ReceiptStore(tmp_path).debts()) == []
        for size in (7, 0):
            till.owe(PAYER.public, size)
            await till.write()
            assert list(ReceiptStore(tmp_path).debts()) == [(PAYER.public, size)]
        for name, body in (("xyz", b"\x01"), ("00" * 32, b"\xff"), ("01" * 32, bytes(99)), ("02" * 32, b"")):
            (tmp_path / f"{name}.owed").write_bytes(body)
        assert [name for name, size in ReceiptStore(tmp_path).debts() if size > 0] == []

    run(test)
