"""Submissions made to hurt whoever reads them: every codec, through the desk of the checker and its real process.

Whatever a peer sends as payload, opening or statement, the checker answers: a fault, or an update that can be merged.
Nothing that it sends is an exception, ends the process, or makes it hold more memory than honest work does.
"""

from __future__ import annotations

import asyncio
import math
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from farflung.compress.merge import WeightedUpdate, merge
from farflung.compress.payload import HEADER_BYTES
from farflung.core import limits
from farflung.core.codec import decode, encode
from farflung.core.crypto import local_key
from farflung.core.ids import ZERO_HASH, PeerId
from farflung.core.tensor_layout import Float32, TensorLayout
from farflung.job.job_loader import load
from farflung.job.spec import JobSpec
from farflung.train.contribution_trace import LoggedStatistics
from farflung.train.public_state import PublicState
from farflung.train.run_log import Contribution, payload_hash
from farflung.train.sync_arithmetic import Sync
from farflung.verify.io.checker import CheckerClient, CheckerState
from farflung.verify.submission_checks import (
    CheckerSetup,
    PayloadCheckReply,
    PayloadCheckRequest,
    RoundFlagsReply,
    RoundFlagsRequest,
    TrainingStatement,
)

LAYOUT = TensorLayout.of({"big": (24, 40), "small": (30,), "tiny": (3, 2)})
PEERS = sorted(local_key(6, "peer", i).public for i in range(3))
MEMORY = 64 << 20  # bytes by which hostile payloads may raise the process's peak: some arrays of this small layout

METHODS: dict[str, dict[str, str]] = {
    "dense": {},
    "diloco": {},
    "muloco": {},
    "muloco-1": {"sync.value_bits": "1"},
    "muloco-8": {"sync.value_bits": "8"},
    "local_sgd-16": {"sync.value_bits": "16"},
    "sparse_loco": {"sync.topk": "16", "sync.chunk": "64"},
    "sparse_loco-32": {"sync.topk": "16", "sync.chunk": "64", "sync.value_bits": "32"},
    "sparse_loco-dct": {"sync.topk": "16", "sync.chunk": "256", "sync.transform": "dct"},
    "demo": {"sync.topk": "4", "sync.chunk": "256"},
    "dgc": {"sync.topk": "4", "sync.chunk": "64"},
    "powersgd": {"sync.rank": "2"},
}

DECODERS = ("dense", "muloco", "sparse_loco", "sparse_loco-dct", "powersgd")  # that the real process is shown


class Case(NamedTuple):
    """One method, and an honest submission to round 4 of its job."""

    name: str
    spec: JobSpec
    good: PayloadCheckRequest


def case(name: str) -> Case:
    flags = {"sync.method": name.partition("-")[0], "sync.fragments": "1", **METHODS[name]}
    spec = load(None, flags=flags).spec
    sync = Sync.of(spec)
    first = sync.initial(np.zeros(LAYOUT.size, np.float32))
    state = PublicState(4, first.params, first.vectors)
    values = np.random.default_rng(1).standard_normal(LAYOUT.size).astype(np.float32) / 64
    payload = sync.encode(state, None, None, values, LAYOUT, PEERS[0]).payload
    weight = spec.round_tokens
    told = payload_hash(payload)
    c = Contribution(PEERS[0], weight, told, told, ZERO_HASH, ZERO_HASH, "none", LoggedStatistics(1, 1))
    said = TrainingStatement((2.0,) * spec.sync.steps, weight)
    return Case(name, spec, PayloadCheckRequest(4, state.root(LAYOUT), c, said, payload))


CASES = {name: case(name) for name in METHODS}


def with_payload(told: PayloadCheckRequest, payload: bytes) -> PayloadCheckRequest:
    contribution = replace(told.contribution, payload=payload_hash(payload))
    return replace(told, payload=payload, contribution=contribution)


def with_body(told: PayloadCheckRequest, body: bytes) -> PayloadCheckRequest:
    """A header that tells the truth about another body."""
    head = told.payload[: HEADER_BYTES - 8] + struct.pack("<Q", len(body))
    return with_payload(told, head + body)


def desk_of(spec: JobSpec) -> CheckerState:
    desk = CheckerState()
    desk.handle(CheckerSetup(spec, LAYOUT, spec.round_tokens))
    return desk


def updates_of(desk: CheckerState) -> Float32 | None:
    """What the desk took, or None."""
    seen = [part.values for by_peer in desk._seen.values() for part, _ in by_peer.values()]
    return seen[0] if seen else None


def judged(told: PayloadCheckRequest, spec: JobSpec) -> PayloadCheckReply:
    """The answer of a fresh desk; what it takes can be merged, and is finite."""
    desk = desk_of(spec)
    reply = desk.handle(told)
    assert isinstance(reply, PayloadCheckReply)
    taken = updates_of(desk)
    assert (taken is None) == bool(reply.code)
    if taken is not None:
        assert np.isfinite(taken).all()
        for rule in ("clip", "centered"):
            merge(LAYOUT, [WeightedUpdate(PEERS[0], 1, taken)], rule)  # type: ignore[arg-type]
        assert isinstance(desk.handle(RoundFlagsRequest(told.round, (PEERS[0],))), RoundFlagsReply)
    assert decode(encode(reply), PayloadCheckReply, limits.CONTROL_BYTES) == reply  # it fits into an answer
    return reply


def test_the_honest_submission_of_every_codec_is_taken(subtests: pytest.Subtests) -> None:
    for name in METHODS:
        with subtests.test(name=name):
            assert judged(CASES[name].good, CASES[name].spec).code == ""


# Any bytes


@settings(max_examples=150)
@given(st.data())
def test_any_changed_bytes_of_any_codec_get_an_answer(data: Any) -> None:
    told = CASES[data.draw(st.sampled_from(list(METHODS)))]
    payload = bytearray(told.good.payload)
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(payload) - 1))
        payload[at] = data.draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF, payload[at] ^ 1]))
    end = data.draw(st.one_of(st.just(len(payload)), st.integers(0, len(payload))))
    judged(with_payload(told.good, bytes(payload[:end])), told.spec)


@settings(max_examples=150)
@given(st.sampled_from(list(METHODS)), st.binary(max_size=400), st.integers(0, 3))
def test_any_body_of_any_codec_gets_an_answer(name: str, body: bytes, kept: int) -> None:
    """Behind the first bytes of an honest one, where its tables and counts are."""
    told = CASES[name]
    honest = told.good.payload[HEADER_BYTES:]
    judged(with_body(told.good, honest[: kept * len(honest) // 4] + body), told.spec)


# What is not the payload

HUGE = (1 << 63, (1 << 64) - 1, -(1 << 63), -1, 0, 1, limits.ROUNDS)


@settings(max_examples=100)
@given(
    st.sampled_from(HUGE),
    st.sampled_from(HUGE),
    st.lists(st.floats(), max_size=30),
    st.sampled_from(HUGE),
    st.text(max_size=40),
    st.tuples(st.sampled_from(HUGE), st.sampled_from(HUGE)),
)
def test_any_envelope_gets_an_answer(
    weight: int, tokens: int, losses: list[float], round: int, sandbox: str, stated: tuple[int, int]
) -> None:
    told = CASES["muloco"]
    c = replace(told.good.contribution, weight=weight, sandbox=sandbox, stated=LoggedStatistics(*stated))
    said = TrainingStatement(tuple(losses), tokens)
    assert judged(replace(told.good, contribution=c, statement=said), told.spec).code
    judged(replace(told.good, contribution=c, round=round), told.spec)
    judged(replace(told.good, contribution=c, statement=None), told.spec)


@settings(max_examples=40)
@given(st.lists(st.tuples(st.sampled_from(HUGE), st.sampled_from(HUGE)), min_size=3, max_size=12))
def test_any_figures_in_an_opening_get_flags(figures: list[tuple[int, int]]) -> None:
    told = CASES["muloco"]
    desk = desk_of(told.spec)
    desk.handle(told.good)
    part, _ = desk._seen[4].pop(PEERS[0])
    peers = [PeerId(bytes([i]) * 32) for i in range(len(figures))]
    desk._seen[4] = {
        p: (part._replace(peer=p), LoggedStatistics(*pair)) for p, pair in zip(peers, figures, strict=True)
    }
    reply = desk.handle(RoundFlagsRequest(4, tuple(peers)))
    assert isinstance(reply, RoundFlagsReply)
    assert {reason for _, reason in reply.flags} <= {"duplicate"}  # all of them sent the same


# The real process


def hostile(told: Case) -> Iterator[PayloadCheckRequest]:
    """Payloads against length fields, counts, tables, indices, scales and dtypes, of one codec."""
    good, payload = told.good, told.good.payload
    body = payload[HEADER_BYTES:]
    for length in (1 << 63, (1 << 64) - 1, 1 << 40, 0):
        yield with_payload(good, payload[: HEADER_BYTES - 8] + struct.pack("<Q", length) + body)
    for at in range(
        0, HEADER_BYTES, 1 if told.name == "dense" else 9
    ):  # another codec, more bits, topk, chunk or rank, flags, layout, root, peer
        yield with_payload(good, payload[:at] + b"\xff" + payload[at + 1 :])
    for filler in (b"\0", b"\xff", b"\x7f", b"\x80"):
        yield with_body(good, filler * len(body))
        yield with_body(good, body[:8] + filler * max(0, len(body) - 8))
        yield with_body(good, body[: len(body) // 2] + filler * (len(body) - len(body) // 2))
    for number in (math.nan, math.inf, -math.inf, 0.0, -0.0, 3e38, 1e-45):
        for at in {0, len(body) // 8 * 4, max(0, len(body) - 4)}:
            yield with_body(good, body[:at] + struct.pack("<f", number) + body[at + 4 :])
    for cut in (0, 1, len(body) // 2, len(body) - 1):
        yield with_body(good, body[:cut])
    yield with_payload(good, payload + bytes(1 << 22))
    yield with_body(good, body + bytes(1 << 22))


def peak(process: subprocess.Popen[bytes]) -> int:
    """Bytes that it ever held at once."""
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no /proc")
def test_the_real_process_outlives_them_all_and_holds_no_more_than_for_honest_work() -> None:
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-m", "farflung.verify.io.checker", str(theirs.fileno())]
    process = subprocess.Popen(command, pass_fds=(theirs.fileno(),), stderr=subprocess.DEVNULL)
    theirs.close()
    checker = CheckerClient(ours)

    async def work() -> None:
        before = 0
        for told in map(CASES.__getitem__, DECODERS):
            await checker.setup(CheckerSetup(told.spec, LAYOUT, told.spec.round_tokens))
            assert (await checker.check(told.good)).code == ""
            before = before or peak(process)
            refused = [bool((await checker.check(each)).code) for each in hostile(told)]
            assert sum(refused) > HEADER_BYTES // 9
            assert (await checker.check(told.good)).code == ""
            await checker.conclude(4, tuple(PEERS))
        assert peak(process) < before + MEMORY

    try:
        asyncio.run(work())
    finally:
        checker.close()
        process.wait(60)
    assert process.returncode == 0
