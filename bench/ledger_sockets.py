"""Four validator processes with real sockets: transactions a second through all of them, and time to finality.

    python bench/ledger_sockets.py                  on loopback
    python bench/ledger_sockets.py --rtt 40         in homes of the laboratory with that round trip (root, Linux)
    python bench/ledger_sockets.py --seconds 20     a load that lasts, on loopback, and where the processor's time goes

Prints one JSON object, or with --seconds one a row, as the other benchmarks do. Finality is what each validator
measures of its own blocks, from making one to its being final. A load that lasts: each of 64 payers hands its next 100
payments in when the 100 before are final; counted is what was answered as applied, until the last answer.

The ceiling of a load that lasts is the machine: every validator and the client share its cores, so no more than
cores / (4 x "all processes" + "client") transactions a second go through, whatever the committee could do.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import platform
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from reporting import Row, load, show, told

from farflung.core import limits
from farflung.core.codec import decode, encode
from farflung.core.crypto import SigningKey, local_key
from farflung.ledger import queries
from farflung.ledger.block import Genesis
from farflung.ledger.params import LedgerParams
from farflung.ledger.transactions import SignedTx, Transfer, make_tx, sign_tx
from farflung.ledger.tx_results import AppliedResult
from farflung.local.netlab import EmulatedHome, NatType, NetworkLab
from farflung.net.counters import ByteCounter
from farflung.net.io.endpoint import Endpoint
from farflung.peers.ledger_client.client import serve_nothing
from farflung.peers.ledger_client.quorum_read import QUERY
from farflung.peers.validator.requests import STANDING, ValidatorStatus

SEATS = tuple(local_key(71, "seat", index) for index in range(4))
PAYERS = tuple(local_key(71, "payer", index) for index in range(64))
PORT = 4640
PART = 100  # payments that a payer hands in at a time
MONEY = 10**12


def write(folder: Path, hosts: list[str], judges: int) -> Genesis:
    """A folder for each validator."""
    law = LedgerParams(delta_ms=1000, idle_ms=1000)
    owners = tuple((key.public, MONEY) for key in (*SEATS, *PAYERS))
    genesis = Genesis("bench", int(time.time() * 1000), owners, tuple(key.public for key in SEATS), law)
    places = [
        f'"{key.public.hex()}" = "{host}:{PORT + i}"' for i, (key, host) in enumerate(zip(SEATS, hosts, strict=True))
    ]
    for i, (key, host) in enumerate(zip(SEATS, hosts, strict=True)):
        place = folder / str(i)
        place.mkdir()
        (place / "genesis.bin").write_bytes(encode(genesis))
        (place / "validator.key").write_text(key.seed.hex() + "\n")
        (place / "validator.key").chmod(0o600)
        others = "\n".join(line for number, line in enumerate(places) if number != i)
        text = f'host = "{host}"\nport = {PORT + i}\njudges = {judges}\n[validators]\n{others}\n'
        (place / "validator.toml").write_text(text)
    return genesis


def signed(genesis: Genesis, each: int) -> list[list[SignedTx]]:
    """For each validator what its clients hand in: one payment a transaction."""
    to = SEATS[0].public
    made: list[list[SignedTx]] = [[], [], [], []]
    for place, key in enumerate(PAYERS):
        for nonce in range(each):
            made[place % 4].append(sign_tx(key, make_tx(genesis.chain, key.public, nonce, Transfer(to, 1))))
    return made


async def measure(genesis: Genesis, hosts: list[str], each: int, single: int) -> dict[str, Any]:
    """Single transactions first, for finality; then all at once."""
    endpoint = Endpoint(SigningKey(os.urandom(32)), serve_nothing, ByteCounter())
    try:
        ways = [await dial(endpoint, i, host) for i, host in enumerate(hosts)]

        async def hand_in(place: int, txs: list[SignedTx]) -> int:
            answer = queries.read_reply(
                await ways[place].call(QUERY, encode(queries.SubmitRequest(tuple(txs))), timeout=300)
            )
            assert isinstance(answer, queries.SubmitReply)
            return sum(isinstance(result, AppliedResult) for result in answer.results)

        for number in range(single):
            key = SEATS[number % 4]
            tx = make_tx(genesis.chain, key.public, number // 4, Transfer(PAYERS[0].public, 1))
            assert await hand_in(number % 4, [sign_tx(key, tx)]) == 1
        told = [decode(await way.call(STANDING, b""), ValidatorStatus, limits.CONTROL_BYTES) for way in ways]
        load = signed(genesis, each)
        began = time.perf_counter()
        parts = [(place, txs[i : i + 1000]) for place, txs in enumerate(load) for i in range(0, len(txs), 1000)]
        applied = sum(await asyncio.gather(*(hand_in(place, part) for place, part in parts)))
        took = time.perf_counter() - began
        return {
            "finality_ms": [standing.finality_ms for standing in told],
            "transactions": applied,
            "seconds": round(took, 2),
            "transactions_per_second": round(applied / took),
        }
    finally:
        await endpoint.close()


class Sustained(NamedTuple):
    """What a load that lasts gave: transactions in so many seconds, their waits, and the client's own processor."""

    applied: int
    seconds: float
    waits: list[float]
    client: float
    finality_ms: list[int]


async def sustain(genesis: Genesis, hosts: list[str], seconds: float) -> Sustained:
    """Every payer at its validator, one part after the other."""
    endpoint = Endpoint(SigningKey(os.urandom(32)), serve_nothing, ByteCounter())
    to, waits = SEATS[0].public, list[float]()
    try:
        ways = [await dial(endpoint, i, host) for i, host in enumerate(hosts)]

        async def pay(place: int, key: SigningKey, end: float) -> int:
            applied = 0
            while time.perf_counter() < end:
                nonces = range(applied, applied + PART)
                made = [make_tx(genesis.chain, key.public, nonce, Transfer(to, 1)) for nonce in nonces]
                said = encode(queries.SubmitRequest(tuple(sign_tx(key, tx) for tx in made)))
                begun = time.perf_counter()
                answer = queries.read_reply(await ways[place % 4].call(QUERY, said, timeout=300))
                waits.append(time.perf_counter() - begun)
                assert isinstance(answer, queries.SubmitReply)
                assert all(isinstance(result, AppliedResult) for result in answer.results)
                applied += PART
            return applied

        begun, own = time.perf_counter(), time.process_time()
        count = sum(await asyncio.gather(*(pay(i, key, begun + seconds) for i, key in enumerate(PAYERS))))
        took, own = time.perf_counter() - begun, time.process_time() - own
        told = [decode(await way.call(STANDING, b""), ValidatorStatus, limits.CONTROL_BYTES) for way in ways]
        return Sustained(count, took, waits, own, [each.finality_ms for each in told])
    finally:
        await endpoint.close()


def rows(found: Sustained, stages: list[dict[str, float]], children: float, judges: int) -> Iterator[Row]:
    """The load as lines of a results file. `children`: processor of all validators with their processes."""
    case, each = f"four validators, {judges} judges each", found.applied * len(stages) / 1e6
    said = f"{found.applied} in {found.seconds:.0f} s, finality {statistics.median(found.finality_ms):.0f} ms"
    yield told(f"{case}, sustained", found.applied / found.seconds, "tx/s", f"by the clock; {said}")
    yield told(f"{case}, a part's wait", statistics.median(found.waits), "s", f"median; {PART} at a time")
    yield told(f"{case}, client", found.client / found.applied * 1e6, "us/tx", "processor; signing, sockets")
    yield told(f"{case}, all processes", children / each, "us/tx", "processor a validator, its judges with it")
    known = 0.0
    for stage in sorted({name for one in stages for name in one} - {"all"}):
        spent = sum(one.get(stage, 0.0) for one in stages)
        known += spent
        yield told(f"{case}, {stage}", spent / each, "us/tx", "processor a validator, own process")
    rest = sum(one["all"] for one in stages) - known
    yield told(f"{case}, sockets", rest / each, "us/tx", "the same: TLS, sockets, event loop, the start")
    own = children - sum(one["all"] for one in stages)
    if judges:
        yield told(f"{case}, judges", own / each, "us/tx", "processor a validator, its worker processes")


async def dial(endpoint: Endpoint, place: int, host: str) -> Any:
    """A connection, once the validator is up."""
    for _ in range(300):
        with contextlib.suppress(Exception):
            return await endpoint.dial(SEATS[place].public, host, PORT + place)
        await asyncio.sleep(0.1)
    raise SystemExit(f"validator {place} does not answer")


def lasting(seconds: float, judges: int, out: Path | None) -> None:
    """Four validators with clocks around their stages (ledger_stages), under a load that lasts."""
    before, program = load(), Path(__file__).with_suffix("") / "ledger_stages.py"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        genesis = write(folder, ["127.0.0.1"] * 4, judges)
        told_by = [folder / f"{i}.json" for i in range(4)]
        processes = [
            subprocess.Popen(
                [sys.executable, str(program), str(folder / str(i) / "validator.toml"), str(told_by[i])],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            for i in range(4)
        ]
        spent = resource.getrusage(resource.RUSAGE_CHILDREN)
        try:
            found = asyncio.run(sustain(genesis, ["127.0.0.1"] * 4, seconds))
        finally:
            for process in processes:
                process.send_signal(signal.SIGTERM)
            for process in processes:
                process.wait()
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        children = after.ru_utime + after.ru_stime - spent.ru_utime - spent.ru_stime
        stages = [json.loads(path.read_text()) for path in told_by]
    for row in rows(found, stages, children, judges):
        show("ledger", row, before, out)


def main() -> None:
    """Reads the words, measures, prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rtt", type=float, default=0.0, help="ms between home and backbone and back; 0: loopback")
    parser.add_argument("--each", type=int, default=100, help="transactions of each of 64 payers")
    parser.add_argument("--single", type=int, default=40, help="transactions one by one")
    parser.add_argument("--seconds", type=float, default=0.0, help="of a load that lasts, on loopback")
    parser.add_argument("--judges", type=int, default=0, help="processes for signatures of each validator")
    parser.add_argument("--out", type=Path, help="with --seconds: a results file to add to")
    words = parser.parse_args()
    if words.seconds:
        lasting(words.seconds, words.judges, words.out)
        return
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder, lab = Path(name), None
        hosts = ["127.0.0.1"] * 4
        if words.rtt:
            home = EmulatedHome(up=0, down=0, rtt=words.rtt, nat=NatType.NONE)
            lab = stack.enter_context(NetworkLab([home] * 4, 1))
            hosts = [lab.address(f"h{number}") for number in (1, 2, 3, 4)]
        genesis = write(folder, hosts, words.judges)
        processes = []
        for i in range(4):
            command = [sys.executable, "-m", "farflung.app.cli.main", "ledger", "validator"]
            command += [str(folder / str(i) / "validator.toml")]
            if lab is not None:
                processes.append(lab.start(f"h{i + 1}", command, environment=dict(os.environ), out=subprocess.DEVNULL))
            else:
                processes.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, text=True))
        try:
            with lab.inside("s1") if lab is not None else contextlib.nullcontext():
                found = asyncio.run(measure(genesis, hosts, words.each, words.single))
        finally:
            for process in processes:
                process.kill()
                process.wait()
    machine = {"cores": os.cpu_count(), "load": os.getloadavg()[0], "python": platform.python_version()}
    print(json.dumps({"case": "sockets", "one_way_ms": words.rtt, "validators": 4, **found, **machine}))


if __name__ == "__main__":
    main()
