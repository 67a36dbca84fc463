"""What keeps a node on an open network for weeks: its registration, its address, its clock, and what jobs leave."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from role_configs import QuietChannel, node_config

from farflung.core.crypto import local_key
from farflung.core.errors import NetworkError, PolicyError, UsageError
from farflung.core.file_header import file_of
from farflung.core.ids import Hash
from farflung.host.tamper_signs import TamperReport
from farflung.ledger.block import Genesis
from farflung.ledger.table_rows import JobRow, JobState, LeaseRow, NodeRow, NodeState
from farflung.ledger.transactions import NodeRegister
from farflung.net.messages import RemoteError
from farflung.peers.node import agent, process, registration
from farflung.peers.node.lan_discovery import open_endpoint
from farflung.peers.node.process import _NodeProcess, lend
from farflung.peers.node.provider import PROVIDER
from farflung.peers.node.reachability import Reachability
from farflung.peers.node.registration import REGISTERED_MS, RENEW_MS, is_due, renew
from farflung.peers.node.tamper_watch import FORM, TamperWatch

replace = msgspec.structs.replace
NODE, CAPS, JOB = local_key(3, "node"), Hash(b"c" * 32), Hash(b"j" * 32)
WANTED = NodeRegister(CAPS, 10, 1000, REGISTERED_MS)
ROW = NodeRow(NODE.public, CAPS, 10, REGISTERED_MS, 1000)
REAL = Genesis("real", 1_700_000_000_000, (), (local_key(9, "validator").public,))


@pytest.mark.parametrize(
    ("row", "now", "due"),
    [
        (None, 0, True),
        (ROW, 0, False),
        (ROW, REGISTERED_MS - RENEW_MS - 1, False),
        (ROW, REGISTERED_MS - RENEW_MS, True),
        (replace(ROW, state=NodeState.LEFT, free=0), 0, True),
        (replace(ROW, caps=Hash(b"d" * 32)), 0, True),  # another torch
        (replace(ROW, unit_price=11), 0, True),
        (replace(ROW, free=999), 0, True),
        (replace(ROW, free=400, locked=600), 0, False),
        (replace(ROW, free=500, burnt=500), 0, False),  # what was slashed is not put up again by itself
    ],
)
def test_when_a_registration_is_renewed(row: NodeRow | None, now: int, due: bool) -> None:
    assert is_due(row, WANTED, now) == due
    sent: list[Any] = []

    async def submit(*ops: Any) -> None:
        sent.append(ops)

    async def node(_: Any) -> NodeRow | None:
        return row

    client: Any = SimpleNamespace(own=NODE.public, node=node, submit=submit)
    asyncio.run(renew(client, WANTED, now, "its first key"))  # type: ignore[arg-type]
    first = ("its first key",) if row is None else ()
    assert sent == ([(WANTED, *first)] if due else [])


def test_a_node_that_nobody_could_reach_says_so_and_publishes_nothing(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as refused:
        asyncio.run(lend(PROVIDER, node_config(NODE, tmp_path, REAL), QuietChannel()))
    assert refused.value.code == "FF-APP-577"


def test_a_node_publishes_the_address_that_its_owner_names(tmp_path: Path) -> None:
    config = node_config(NODE, tmp_path, REAL, host="home.example")

    async def opened() -> tuple[str, int]:
        endpoint, paths = open_endpoint(config, None, None, QuietChannel())  # type: ignore[arg-type]
        place = (await Reachability(NODE, endpoint, paths).open((), config.host))[0]
        assert endpoint.address == ("0.0.0.0", place.port)
        await endpoint.close()
        return place.host, place.port

    host, port = asyncio.run(opened())
    assert (host, port > 0) == ("home.example", True)


@pytest.mark.parametrize(
    ("code", "cause", "said"),
    [
        ("FF-NET-111", "it begins in 120 s by this clock", "120 s ahead of the ledger's"),
        ("FF-NET-110", "it ended 60 s ago by this clock", f"{60 + process.limits.RECORD_SECONDS} s behind"),
        ("FF-NET-111", "", "another than the ledger's"),
    ],
)
def test_a_wrong_clock_is_named_with_how_far_and_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, cause: str, said: str
) -> None:
    monkeypatch.setattr(process, "AGAIN_SECONDS", 0.0)
    told: list[str] = []

    class Heard(QuietChannel):
        def report(self, kind: str, **facts: Any) -> None:
            told.append(f"{kind} {facts.get('code')} {facts.get('message')}")

    answers = [RemoteError(code, "of another time", cause=cause)] * 2

    async def publish() -> None:
        if answers:
            raise answers.pop()

    node: Any = _NodeProcess(SimpleNamespace(), node_config(NODE, tmp_path), Heard())  # type: ignore[arg-type]
    asyncio.run(node._publish(SimpleNamespace(publish=publish)))
    assert len(told) == 2
    assert said in told[0]
    assert told[0].startswith("warning FF-APP-580")


def test_relays_that_are_away_are_waited_for_by_who_has_no_supervisor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "AGAIN_SECONDS", 0.0)
    faults = [NetworkError("FF-NET-077", "no relay answers")] * 2

    async def opened(*_: Any) -> str:
        if faults:
            raise faults.pop()
        return "there"

    node: Any = SimpleNamespace(reachability=SimpleNamespace(open=opened))
    relays = (SimpleNamespace(),)
    config: Any = SimpleNamespace(registers=True, relays=relays, host="", name="n")
    assert asyncio.run(_NodeProcess(node, config, QuietChannel()).reachable()) == "there"  # type: ignore[comparison-overlap]
    config = SimpleNamespace(registers=False, relays=relays, host="", name="n")
    faults.append(NetworkError("FF-NET-077", "no relay answers"))
    with pytest.raises(NetworkError):
        asyncio.run(_NodeProcess(node, config, QuietChannel()).reachable())


@pytest.mark.parametrize(
    ("row", "stays"),
    [
        (JobRow(JOB, NODE.public, 1, 1, 1, 1), True),
        (JobRow(JOB, NODE.public, 0, 1, 1, 1, JobState.SETTLED), False),
        (None, True),  # nobody can prove that there is none
    ],
)
def test_reports_of_jobs_that_are_over_are_swept(tmp_path: Path, row: JobRow | None, stays: bool) -> None:
    report = tmp_path / "tampering-6a6a.bin"
    report.write_bytes(file_of(FORM, TamperReport(Hash(b"l" * 32), JOB, NODE.public, CAPS, CAPS, ("ptrace",))))
    (tmp_path / "tampering-0000.bin").write_bytes(b"damaged")
    watch = TamperWatch(tmp_path, Hash(b"l" * 32), NODE.public, QuietChannel())

    async def job(_: Hash) -> JobRow | None:
        return row

    watch.follow(SimpleNamespace(job=job))  # type: ignore[arg-type]
    asyncio.run(watch.sweep())
    assert report.exists() == stays


def test_a_sweep_goes_on_where_one_part_of_it_fails() -> None:
    done: list[str] = []

    async def fails() -> None:
        raise NetworkError("FF-NET-043", "nobody there")

    async def works(*_: object) -> None:
        done.append("swept")

    node: Any = agent.NodeAgent.__new__(agent.NodeAgent)
    node.vouchers, node._slot, node._closed = SimpleNamespace(claim_all=fails), None, ""

    async def sweeps(busy: None, *, is_closed: bool) -> None:
        done.append(f"left {is_closed}")

    node.departure, node._disk_floor = SimpleNamespace(sweep=sweeps), SimpleNamespace(fault=str)
    node.disputes = node.admission = SimpleNamespace(clear=works)
    node.tamper_watch = node.voucher_bound = SimpleNamespace(sweep=works)
    warned: list[Any] = []
    asyncio.run(node.sweep(warned.append))
    assert (done, [error.code for error in warned]) == (["left False", *["swept"] * 4], ["FF-NET-043"])


@pytest.mark.parametrize(("cores", "threads"), [(1, 1), (3, 3), (0, 8)])
def test_a_lent_worker_uses_the_cores_that_its_owner_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: int, threads: int
) -> None:
    monkeypatch.setattr("farflung.host.io.machine_probe.cores", lambda: 8)
    assert node_config(NODE, tmp_path, cores=cores).threads == threads


def test_a_registration_looks_while_it_lasts() -> None:
    assert registration.LOOK_SECONDS * 1000 < RENEW_MS


def test_who_takes_the_stake_back_leaves_its_jobs_first_and_is_told_what_keeps_it(tmp_path: Path) -> None:
    done: list[str] = []
    told: list[str] = []

    def step(name: str) -> Any:
        async def work(*_: Any) -> None:
            done.append(name)
            if name == "leave" and len(done) == 4:
                raise PolicyError("FF-LEDG-021", "1 leases are open: their stake stays locked")

        return work

    class Heard(QuietChannel):
        def report(self, kind: str, **facts: Any) -> None:
            told.append(kind)

    vouchers, departure = SimpleNamespace(claim_all=step("claim")), SimpleNamespace(finish=step("jobs"))
    node: Any = SimpleNamespace(vouchers=vouchers, departure=departure, disputes=SimpleNamespace(clear=step("clear")))
    client: Any = SimpleNamespace(leave=step("leave"))
    agent_process = _NodeProcess(node, node_config(NODE, tmp_path), Heard())
    for _ in range(2):
        asyncio.run(agent_process.leave(client))
    assert done == ["claim", "jobs", "clear", "leave"] * 2
    assert told == ["warning", "stayed", "left"]


JOB_ROW = JobRow(Hash(b"j" * 32), NODE.public, 5, 1, 9, 99, JobState.RUNNING, round=4)
LEASE_ROW = LeaseRow(JOB_ROW.job, NODE.public, 1, 5, 9, NODE.public)


@pytest.mark.parametrize(
    ("owed", "answers", "waits"),
    [
        (None, [], False),  # it worked for nobody
        (3, [(JOB_ROW, LEASE_ROW)], False),  # recorded: its audits are over
        (4, [(JOB_ROW, LEASE_ROW), None, (replace(JOB_ROW, round=5), LEASE_ROW)], True),
        (4, [(JOB_ROW, LEASE_ROW), (replace(JOB_ROW, state=JobState.STOPPED), LEASE_ROW)], True),
        (4, [(JOB_ROW, replace(LEASE_ROW, is_open=False))], False),
        (4, [(None, None)], False),
    ],
)
def test_a_node_that_ends_stays_until_the_audits_of_its_last_round_are_over(
    monkeypatch: pytest.MonkeyPatch, owed: int | None, answers: list[Any], waits: bool
) -> None:
    monkeypatch.setattr(process, "PAY_SECONDS", 0.0)
    left, told = list(answers), list[str]()

    async def job(_: Hash) -> JobRow | None:
        if left[0] is None:
            left.pop(0)
            raise NetworkError("FF-NET-043", "the ledger is away")
        return left[0][0]  # type: ignore[no-any-return]

    async def row(*_: object) -> LeaseRow | None:
        return left.pop(0)[1]  # type: ignore[no-any-return]

    client: Any = SimpleNamespace(own=NODE.public, job=job, row=row)
    node: Any = SimpleNamespace(owed=None if owed is None else (JOB_ROW.job, owed))
    channel: Any = SimpleNamespace(report=lambda kind, **_: told.append(kind))
    asyncio.run(process._NodeProcess(node, None, channel).see_audits(client))  # type: ignore[arg-type]
    assert left == []
    assert told == (["owed"] if waits else [])


def test_what_a_job_left_is_removed_when_it_is_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(process, "PAY_SECONDS", 0.0)
    states, swept = [JobState.RUNNING, JobState.OUTPUT, JobState.SETTLED], asyncio.Event()

    async def job(_: Hash) -> JobRow:
        return replace(JOB_ROW, state=states[0] if len(states) == 1 else states.pop(0))

    async def row(*_: object) -> LeaseRow:
        assert not swept.is_set()
        return LEASE_ROW

    known = list[tuple[Any, ...]]()

    async def sweep(_: object) -> None:
        swept.set()

    async def work() -> None:
        client: Any = SimpleNamespace(own=NODE.public, job=job, row=row)
        node: Any = SimpleNamespace(worked={JOB_ROW.job}, sweep=sweep, know=known.append)
        paying = asyncio.create_task(_NodeProcess(node, node_config(NODE, tmp_path), QuietChannel()).pay(client))
        await swept.wait()
        assert states == [JobState.SETTLED]
        assert known == [()]  # no path to a fellow member is kept
        paying.cancel()

    asyncio.run(work())


def test_a_node_that_ends_waits_no_longer_than_anybody_may_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "PAY_SECONDS", 0.0)
    monkeypatch.setattr(process.limits, "OWED_SECONDS", 0)

    async def job(_: Hash) -> JobRow:
        return JOB_ROW

    async def row(*_: object) -> LeaseRow:
        return LEASE_ROW

    client: Any = SimpleNamespace(own=NODE.public, job=job, row=row)
    node: Any = SimpleNamespace(owed=(JOB_ROW.job, 4))
    channel: Any = SimpleNamespace(report=lambda *_, **__: None)
    asyncio.run(process._NodeProcess(node, None, channel).see_audits(client))  # type: ignore[arg-type]
