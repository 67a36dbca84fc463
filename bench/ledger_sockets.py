"""Four validator processes with real sockets: transactions a second through all of them, and time to finality.

    python bench/ledger_sockets.py                  on loopback
    python bench/ledger_sockets.py --rtt 40         in homes of the laboratory with that round trip (root, Linux)

Prints one JSON object. Finality is what each validator measures of its own blocks, from making one to its being final.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from farflung.app.answering import STANDING, Standing
from farflung.app.lab import Home, Laboratory, Nat
from farflung.app.ledger_client import serve_nothing
from farflung.app.panel import QUERY
from farflung.core import limits
from farflung.core.codec import decode, encode
from farflung.core.crypto import SigningKey, local_key
from farflung.ledger import queries
from farflung.ledger.block import Genesis
from farflung.ledger.params import Params
from farflung.ledger.results import Applied
from farflung.ledger.tx import SignedTx, Transfer, make_tx, sign_tx
from farflung.net.counters import Counter
from farflung.net.io.endpoint import Endpoint

SEATS = tuple(local_key(71, "seat", index) for index in range(4))
PAYERS = tuple(local_key(71, "payer", index) for index in range(64))
PORT = 4640
MONEY = 10**12


def write(folder: Path, hosts: list[str]) -> Genesis:
    """A folder for each validator."""
    law = Params(delta_ms=1000, idle_ms=1000)
    owners = tuple((key.public, MONEY) for key in (*SEATS, *PAYERS))
    genesis = Genesis("bench", int(time.time() * 1000), owners, tuple(key.public for key in SEATS), law)
    places = [
        f'"{key.public.hex()}" = "{host}:{PORT + i}"'
        for i, (key, host) in enumerate(zip(SEATS, hosts, strict=True))
    ]
    for i, (key, host) in enumerate(zip(SEATS, hosts, strict=True)):
        place = folder / str(i)
        place.mkdir()
        (place / "genesis.bin").write_bytes(encode(genesis))
        (place / "validator.key").write_text(key.seed.hex() + "\n")
        (place / "validator.key").chmod(0o600)
        others = "\n".join(line for number, line in enumerate(places) if number != i)
        text = f'host = "{host}"\nport = {PORT + i}\n[validators]\n{others}\n'
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
    endpoint = Endpoint(SigningKey(os.urandom(32)), serve_nothing, Counter())
    try:
        ways = [await dial(endpoint, i, host) for i, host in enumerate(hosts)]

        async def hand_in(place: int, txs: list[SignedTx]) -> int:
            answer = queries.read_answer(
                await ways[place].call(QUERY, encode(queries.Submit(tuple(txs))), timeout=300)
            )
            assert isinstance(answer, queries.Submitted)
            return sum(isinstance(result, Applied) for result in answer.results)

        for number in range(single):
            key = SEATS[number % 4]
            tx = make_tx(genesis.chain, key.public, number // 4, Transfer(PAYERS[0].public, 1))
            assert await hand_in(number % 4, [sign_tx(key, tx)]) == 1
        told = [decode(await way.call(STANDING, b""), Standing, limits.CONTROL_BYTES) for way in ways]
        load = signed(genesis, each)
        began = time.perf_counter()
        parts = [
            (place, txs[i : i + 1000]) for place, txs in enumerate(load) for i in range(0, len(txs), 1000)
        ]
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


async def dial(endpoint: Endpoint, place: int, host: str) -> Any:
    """A connection, once the validator is up."""
    for _ in range(300):
        with contextlib.suppress(Exception):
            return await endpoint.dial(SEATS[place].public, host, PORT + place)
        await asyncio.sleep(0.1)
    raise SystemExit(f"validator {place} does not answer")


def main() -> None:
    """Reads the words, measures, prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--rtt", type=float, default=0.0, help="ms between home and backbone and back; 0: loopback"
    )
    parser.add_argument("--each", type=int, default=100, help="transactions of each of 64 payers")
    parser.add_argument("--single", type=int, default=40, help="transactions one by one")
    words = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder, lab = Path(name), None
        hosts = ["127.0.0.1"] * 4
        if words.rtt:
            home = Home(up=0, down=0, rtt=words.rtt, nat=Nat.NONE)
            lab = stack.enter_context(Laboratory([home] * 4, 1))
            hosts = [lab.address(f"h{number}") for number in (1, 2, 3, 4)]
        genesis = write(folder, hosts)
        processes = []
        for i in range(4):
            command = [sys.executable, "-m", "farflung.app.cli.main", "ledger", "validator"]
            command += [str(folder / str(i) / "validator.toml")]
            if lab is not None:
                processes.append(
                    lab.start(f"h{i + 1}", command, environment=dict(os.environ), out=subprocess.DEVNULL)
                )
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
