"""`farflung lend` against a network over real sockets: its first minute, its owner's orders, and what it refuses."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest

from farflung.app.cli import lend as lending
from farflung.app.cli import network_status
from farflung.app.cli.account import AccountNode, nodes_of
from farflung.app.cli.lend import LendOptions, _lend
from farflung.app.cli.lend_account import Holdings, NodeMoney, money_for
from farflung.app.cli.lend_jobs import show_jobs
from farflung.app.cli.lend_screen import WIDTH, LendChannel, StepLines
from farflung.app.cli.money_options import LeastPrice, LeastPriceParam
from farflung.app.cli.network_client import NamedNetwork
from farflung.core.crypto import local_key
from farflung.core.errors import FarflungError, RunError
from farflung.core.events import WarningEvent
from farflung.core.money import CREDIT, MICRO
from farflung.core.release import VERSION
from farflung.ledger.block import Genesis
from farflung.ledger.params import LedgerParams
from farflung.net.counters import ByteCounter
from farflung.net.io.endpoint import Endpoint
from farflung.peers.ledger_client.client import serve_nothing
from farflung.peers.ledger_client.connect import any_of, reaches_of, validators_in
from farflung.peers.network import card, invitation
from farflung.peers.network.account import own_account
from farflung.peers.network.invitation import Invitation, Seat
from farflung.peers.network.join import join
from farflung.peers.node import home as homes
from farflung.peers.node.control import ControlSocket, ask
from farflung.peers.node.earnings import surplus
from farflung.peers.node.job_fit import ClassPrices
from farflung.peers.process.channel import ChannelEmitter
from farflung.peers.protocol.job_notices import JobNotice, announce
from farflung.peers.validator.service import ValidatorConfig, ValidatorService

SEAT, TREASURY = local_key(33, "seat"), local_key(33, "treasury")
NOW = int(time.time() * 1000)
GENESIS = Genesis(
    "commons", NOW, ((TREASURY.public, 10**3 * CREDIT),), (SEAT.public,), LedgerParams(fee_min=10, stake_min=1000)
)
GRANT = CREDIT


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr("farflung.host.io.machine_probe.sgemm_flops", lambda *_: 1e9)
    monkeypatch.setattr("farflung.peers.node.agent.LINGER_SECONDS", 0.0)
    monkeypatch.setattr("farflung.peers.node.agent.WATCH_SECONDS", 0.01)


@contextlib.asynccontextmanager
async def network(folder: Path, *, grants: bool = True) -> AsyncIterator[str]:
    """A validator in this process, with a faucet; its invitation."""
    faucet = card.FaucetConfig(key=TREASURY, grant=GRANT) if grants else None
    config = card.NetworkConfig(faucet=faucet, message="hello")
    os.makedirs(folder, exist_ok=True)
    service = ValidatorService(ValidatorConfig(SEAT, GENESIS, folder, network=config), ByteCounter(), lambda: None)
    try:
        _, port = await service.open({})
        yield invitation.write(Invitation(1, "commons", GENESIS.chain, (Seat(SEAT.public, "127.0.0.1", port),)))
    finally:
        await service.close()


async def until(is_so: Callable[[], bool]) -> None:
    while not is_so():  # noqa: ASYNC110 - what is waited for has no event of its own
        await asyncio.sleep(0.01)


async def registered(home: Path) -> dict[str, Any]:
    """What the node in this home says when it has started."""
    await until((home / homes.SOCKET).exists)
    while True:
        said = await asyncio.to_thread(ask, home / homes.SOCKET, {"do": "status"})
        if said["state"] != "starting":
            return said
        await asyncio.sleep(0.01)


def told(out: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.splitlines()]


def test_one_command_takes_a_computer_to_waiting_for_work_and_leave_takes_the_stake_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = homes.home_of("commons", "lend")

    async def scenario() -> list[str]:
        async with network(tmp_path / "seat") as text:
            lent = asyncio.create_task(_lend(text, LendOptions(), StepLines(as_json=True)))
            order = lambda verb: asyncio.to_thread(ask, home / homes.SOCKET, {"do": verb})  # noqa: E731
            states = [(await registered(home))["state"]]
            with pytest.raises(FarflungError) as refused:  # a second one beside it
                await _lend("commons", LendOptions(), StepLines(as_json=True))
            assert (refused.value.code, str(os.getpid()) in refused.value.cause) == ("FF-APP-581", True)
            states += [(await order(verb))["state"] for verb in ("pause", "resume", "leave")]
            await lent
            return states

    assert asyncio.run(scenario()) == ["waiting", "paused", "waiting", "ending"]
    said = told(capsys.readouterr().out)
    kinds = [each["kind"] for each in said]
    assert kinds[:6] == ["network", "note", "machine", "account", "ledger", "ledger"]
    assert (said[3]["granted"], said[3]["key"]) == (GRANT, own_account().public.hex())
    assert kinds[-2:] == ["sent", "ledger"]  # the stake is back, and in the account
    half = (GRANT - 10) // 2  # of the account, whose first transaction, to read the newest rows, cost a fee
    assert homes.stake_in(home) == half - half // 10
    assert said[-2]["amount"] == half - 3 * 10  # it registered, left, and sent this
    kept = [json.loads(line)["kind"] for line in (home / "journal.jsonl").read_text().splitlines()]
    assert kept == ["sent", "left"]
    assert not (home / homes.SOCKET).exists()


def test_a_signal_ends_it_and_keeps_the_stake_and_the_next_start_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def once(text: str) -> None:
        lent = asyncio.create_task(_lend(text, LendOptions(audit=True), StepLines(as_json=False)))
        home = homes.home_of("commons", "audit")
        await registered(home)
        os.kill(os.getpid(), signal.SIGTERM)
        await lent

    async def scenario() -> None:
        async with network(tmp_path / "seat") as text:
            await once(text)
            await once("commons")

    asyncio.run(scenario())
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= WIDTH
    assert sum("(granted now)" in line for line in lines) == 1
    assert sum(line.startswith("waiting") for line in lines) == 2


def test_an_account_without_credits_says_who_can_help(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with network(tmp_path / "seat", grants=False) as text:
            await _lend(text, LendOptions(), StepLines(as_json=True))

    with pytest.raises(FarflungError) as refused:
        asyncio.run(scenario())
    key = own_account()
    assert (refused.value.code, key.public.hex() in refused.value.hint) == ("FF-APP-583", True)


def test_a_unit_names_the_network_and_the_owners_limits_and_no_token(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def joined(_: str) -> Any:
        return type("Known", (), {"name": "commons"})

    monkeypatch.setattr(lending, "join", joined)
    asks = LeastPrice(MICRO, ClassPrices(module=3 * MICRO))
    lending._write_service("farflung1SECRET", LendOptions(cores=3, memory_gb=4.0, least_price=asks, allow_modules=True))
    unit = (tmp_path / "config" / "systemd" / "user" / "farflung-lend-commons.service").read_text()
    assert "lend commons --cores 3 --memory 4.0 --least-price 0.000001,module=0.000003 --allow-modules\n" in unit
    assert "SECRET" not in unit
    shown = capsys.readouterr().out
    assert "systemctl --user" in shown
    assert "loginctl enable-linger" in shown


@pytest.mark.parametrize("depth", [1, 12])
def test_orders_reach_a_node_however_long_its_folders_name_is(tmp_path: Path, depth: int) -> None:
    folder = tmp_path.joinpath(*["folder-of-a-home"] * depth)
    folder.mkdir(parents=True)

    async def answer(order: dict[str, Any]) -> dict[str, Any]:
        return {"heard": order}

    async def scenario() -> dict[str, Any]:
        control = ControlSocket(folder / "control.sock", answer)
        await control.open()
        assert (folder / "control.sock").stat().st_mode & 0o777 == 0o600
        try:
            return await asyncio.to_thread(ask, folder / "control.sock", {"do": "status"})
        finally:
            await control.close()

    assert asyncio.run(scenario()) == {"heard": {"do": "status"}}
    with pytest.raises(RunError) as refused:
        ask(folder / "control.sock", {"do": "status"})
    assert refused.value.code == "FF-APP-582"


def test_jobs_rounds_and_pay_are_lines_of_a_screen_and_of_the_journal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    channel, job = LendChannel(tmp_path, StepLines(as_json=False)), "ab" * 32
    channel.report("lease", job=job, requester="cd" * 32, price=7 * MICRO, units=1000)
    channel.report("round", job=job, round=0)
    channel.report("pay", job=job, units=100, owed=700 * MICRO, paid=0)
    channel.report("lease_end", job=job, reason="the requester ended the lease")
    channel.report("pay", job=job, units=100, owed=700 * MICRO, paid=700 * MICRO)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["job", "round", "earned", "job", "waiting", "paid"]
    assert lines[-1] == "paid      0.000700 credits for job abababab"
    assert max(map(len, lines)) <= WIDTH
    kept = [json.loads(line)["kind"] for line in (tmp_path / "journal.jsonl").read_text().splitlines()]
    assert kept == ["lease", "pay", "lease_end", "pay"]


def test_a_job_that_is_left_is_a_line_whenever_what_is_waited_for_has_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    channel, job = LendChannel(tmp_path, StepLines(as_json=False)), "ab" * 32
    for recorded, seconds in [(4, -1), (4, -1), (5, -1), (6, 1500), (6, 1470)]:
        channel.report("leaving", job=job, last=5, recorded=recorded, seconds=seconds, is_recorded=recorded > 5)
    said = capsys.readouterr().out.splitlines()
    assert said[:2] == [
        f"leaving   job abababab: waits for round 5, {n} are recorded; Ctrl-C: ends now" for n in (4, 5)
    ]
    assert re.fullmatch(r"leaving   job abababab: stake free at \d\d:\d\d, in 25 min 00 s; Ctrl-C: ends now", said[2])
    assert len(said) == 3
    assert channel.state == "leaving"


def test_a_ledger_that_is_away_is_told_and_a_terminal_that_is_gone_ends_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    channel = LendChannel(tmp_path, StepLines(as_json=False))
    ChannelEmitter(channel).emit(WarningEvent(code="FF-APP-334", message="the ledger has made no block for 10 s"))
    assert "FF-APP-334 the ledger has made no block" in capsys.readouterr().out
    channel.report("warning", code="FF-APP-372", message="the code on the disk is not what the lease began with " * 4)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 2
    assert max(map(len, lines)) <= WIDTH

    def closed(_: str) -> int:
        raise BrokenPipeError

    monkeypatch.setattr("sys.stdout", SimpleNamespace(write=closed, isatty=lambda: False))
    channel.report("warning", code="FF-APP-578", message="the requester is silent")
    assert channel.warning == "FF-APP-578 the requester is silent"


def test_jobs_that_look_for_nodes_are_listed_with_pay_here_and_why_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = JobNotice(6 * 10**8, 10**6, 10, 10_000, 1 << 20, False, 2, 1)

    async def scenario() -> None:
        async with network(tmp_path / "seat") as text:
            known = await join(text)
            endpoint = Endpoint(TREASURY, serve_nothing, ByteCounter())
            try:
                reach = any_of(reaches_of(validators_in(known.ledger), endpoint))
                await announce(await reach(), job)
            finally:
                await endpoint.close()
            await asyncio.to_thread(show_jobs, "commons", audit=False, as_json=False)
            await asyncio.to_thread(show_jobs, text, audit=True, as_json=True)
            await asyncio.to_thread(show_jobs, text, audit=False, as_json=True, slot=3)

    asyncio.run(scenario())
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines[:3])) <= WIDTH
    assert lines[0].startswith(TREASURY.public.hex()[:8])
    assert "credits an hour here" in lines[0]
    assert "cannot take it: no node runs: farflung lend commons" in lines[2]
    assert lines[1].strip() == "wants 2 providers, 1 verifier; proven: you ask 0.000001 a token"
    assert not re.search(r"[.]\d{13}", lines[0])
    (facts,) = json.loads(lines[4])["jobs"]
    assert facts["obstacle"].endswith("farflung lend --slot 3 commons")
    assert facts["hour_least"] == facts["hour_most"]  # a node of defaults asks more than this job pays
    (facts,) = json.loads(lines[3])["jobs"]
    assert (facts["providers"], facts["obstacle"]) == (2, "no node runs: farflung lend --audit commons")


def test_a_node_that_lends_is_listed_with_where_it_is_what_it_is_and_its_rounds(tmp_path: Path) -> None:
    home = homes.home_of("commons", "lend")

    async def scenario() -> dict[str, Any]:
        async with network(tmp_path / "seat") as text:
            lent = asyncio.create_task(_lend(text, LendOptions(), StepLines(as_json=True)))
            await registered(home)
            known = await join(text)
            (found,) = await network_status._nodes(NamedNetwork("commons", known.genesis, known.ledger))
            await asyncio.to_thread(ask, home / homes.SOCKET, {"do": "leave"})
            await lent
            return found

    found = asyncio.run(scenario())
    assert (found["role"], found["version"], found["relayed"]) == ("trains", VERSION, False)
    assert [found[name] for name in ("jobs", "accepted", "missed", "convicted")] == [0, 0, 0, 0]
    assert (found["slots_online"], found["slots_counted"]) in [(1, 1), (2, 2)]  # a slot may end meanwhile
    lines = [network_status._line(found), *network_status._record_lines(found)]
    assert "127.0.0.1:" in lines[2]
    assert "0 rounds accepted, 0 missed" in lines[2]
    assert lines[3].strip().startswith("online 100 % of the last ")


def test_a_node_of_a_network_elsewhere_reads_where_its_owners_nodes_meet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lending, "_is_loopback", lambda _: False)
    read: list[Any] = []

    async def stay(config: Any, _: Any) -> None:
        read.append(config)

    monkeypatch.setattr(lending.provider, "main", stay)

    async def scenario() -> None:
        async with network(tmp_path / "seat") as text:
            await _lend(text, LendOptions(slot=2, host="192.0.2.1"), StepLines(as_json=True))

    asyncio.run(scenario())
    home = homes.home_of("commons", "lend", 2)
    assert read[0].claims.resolve() == (home.parent / homes.CLAIMS).resolve()
    assert (home / homes.SLOT_KEY).is_file()
    assert read[0].declared.account == own_account().public
    assert read[0].declared.is_of(read[0].key.public)


def test_several_slots_and_a_verifier_share_one_account_whose_file_brings_all_of_them_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    read: list[Any] = []

    async def stay(config: Any, _: Any) -> None:
        read.append(config)

    monkeypatch.setattr(lending.provider, "main", stay)
    monkeypatch.setattr(lending.verifier, "main", stay)
    drawn = homes.home_of("commons", "lend", 3) / homes.ACCOUNT  # of a version before

    async def scenario() -> list[list[AccountNode]]:
        async with network(tmp_path / "seat") as text:
            await _lend(text, LendOptions(slots=2, cores=7, memory_gb=6.0), StepLines(as_json=True))
            await _lend("commons", LendOptions(audit=True), StepLines(as_json=True))
            own_account(drawn)
            await _lend("commons", LendOptions(slot=3), StepLines(as_json=True))
            known = await join("commons")
            named = NamedNetwork("commons", known.genesis, known.ledger)
            here = nodes_of(own_account(), named, set(), with_homes=True)
            (tmp_path / "state" / "farflung" / "commons").rename(tmp_path / "lost")  # the account's file is left
            there = nodes_of(own_account(), named, {config.key.public for config in read}, with_homes=True)
            await _lend("commons", LendOptions(slots=2), StepLines(as_json=True))
            return [here, there]

    here, there = asyncio.run(scenario())
    assert [(config.cores, config.memory_bytes) for config in read[:2]] == [(3, 3 * 10**9)] * 2
    assert len({config.key.public for config in read}) == 4
    assert [config.key.public for config in read[4:]] == [config.key.public for config in read[:2]]
    assert {bytes(config.owner) for config in read} == {own_account().public}
    third = GRANT // 3
    assert all(abs(config.stake + config.fees - third) < 100 for config in read[:2])
    assert [(each.name, each.is_here, each.file) for each in here] == [
        ("lend", True, None),
        ("lend-2", True, None),
        ("lend-3", True, drawn),
        ("audit", True, None),
    ]
    assert [(each.name, each.is_here) for each in there] == [("lend", False), ("lend-2", False), ("audit", False)]
    notes = [each["text"] for each in told(capsys.readouterr().out) if "of its own" in each.get("text", "")]
    assert len(notes) == 1


@pytest.mark.parametrize(
    ("held", "nodes", "money"),
    [
        (Holdings(10 * CREDIT, 0, 0, 0), 1, NodeMoney(49 * CREDIT // 10, CREDIT // 10, 5 * CREDIT)),
        (Holdings(9 * CREDIT, 0, 0, 0), 2, NodeMoney(29 * CREDIT // 10, CREDIT // 10, 3 * CREDIT)),
        (Holdings(5 * CREDIT, CREDIT // 10, 4 * CREDIT, 4 * CREDIT), 1, NodeMoney(4 * CREDIT, CREDIT // 10, 0)),
        (Holdings(5 * CREDIT, 0, 4 * CREDIT, 0), 1, NodeMoney(4 * CREDIT, CREDIT // 10, CREDIT // 10)),
        (Holdings(9 * CREDIT, 0, 0, 4 * CREDIT), 1, NodeMoney(4 * CREDIT, CREDIT // 10, 41 * CREDIT // 10)),
        (Holdings(0, 10 * CREDIT, 0, 9 * CREDIT), 1, NodeMoney(9 * CREDIT, CREDIT // 10, 0)),  # a key of its own
        (Holdings(0, 0, 0, 0), 1, None),
        (Holdings(CREDIT // 2, 0, 0, 0), 1, None),
    ],
)
def test_a_node_gets_a_share_of_the_account_and_keeps_what_it_has(
    held: Holdings, nodes: int, money: NodeMoney | None
) -> None:
    assert money_for(held, CREDIT, 10, nodes) == money


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("0.000002", LeastPrice(2 * MICRO)),
        (
            "0.000001,outcome=0.000003,module=0.00001",
            LeastPrice(MICRO, ClassPrices(outcome=3 * MICRO, module=10 * MICRO)),
        ),
        ("0.000002,outcome=0.000001", "is less than 0.000002"),
        ("0.000002,private=0.000003", "outcome, module"),
        ("0.000002,outcome=0.00002", "no outcome-only job pays more"),
        ("cheap", "not an amount"),
    ],
)
def test_asks_by_class_are_read_exactly_and_written_as_they_were(said: str, meant: LeastPrice | str) -> None:
    if isinstance(meant, LeastPrice):
        found = LeastPriceParam().convert(said, None, None)
        assert found == meant
        assert LeastPriceParam().convert(str(found), None, None) == meant
    else:
        with pytest.raises(click.BadParameter, match=meant):
            LeastPriceParam().convert(said, None, None)


@pytest.mark.parametrize(
    ("balance", "kept", "fee", "sent"),
    [(1000, 100, 10, 890), (200, 100, 10, 0), (211, 100, 10, 101), (100, 100, 0, 0), (101, 100, 0, 1), (5, 100, 10, 0)],
)
def test_what_a_node_sends_to_its_account_is_worth_the_fee(balance: int, kept: int, fee: int, sent: int) -> None:
    assert surplus(balance, kept, fee) == sent
