"""Submission checks: what is refused before it is merged, what is merged and looked at twice, and their process."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from farflung.compress.merge import WeightedUpdate
from farflung.compress.payload import HEADER_BYTES
from farflung.core.crypto import digest, local_key
from farflung.core.errors import ProtocolError, RunError
from farflung.core.ids import PeerId
from farflung.core.tensor_layout import Float32, TensorLayout
from farflung.job.spec import JobSpec, OptimizerSpec, SyncSpec
from farflung.train.public_state import PublicState
from farflung.train.run_log import Contribution, payload_hash
from farflung.train.sync_arithmetic import Sync
from farflung.verify import submission_checks
from farflung.verify.io.checker import CheckerClient
from farflung.verify.submission_checks import CheckerSetup, PayloadCheckRequest, TrainingStatement, decoded, flags

LAYOUT = TensorLayout.of({"big": (64, 64), "small": (30,)})
SPEC = JobSpec(sync=SyncSpec(steps=3, topk=32, chunk=512))
SYNC = Sync.of(SPEC)
STATE = PublicState(4, np.zeros(LAYOUT.size, np.float32))
ROOT, WEIGHT = STATE.root(LAYOUT), SPEC.round_tokens
PEERS = sorted(local_key(5, "peer", i).public for i in range(4))
SETUP = CheckerSetup(SPEC, LAYOUT, WEIGHT)


def change(seed: int, scale: float = 0.01) -> Float32:
    values = np.random.default_rng(seed).standard_normal(LAYOUT.size).astype(np.float32)
    return np.float32(scale) * values


def submission(peer: PeerId = PEERS[0], delta: Float32 | None = None) -> PayloadCheckRequest:
    values = change(1) if delta is None else delta
    payload = SYNC.encode(STATE, None, None, STATE.params + values, LAYOUT, peer).payload
    digested = payload_hash(payload)
    c = Contribution(peer, WEIGHT, digested, digested, ROOT, ROOT, "none")
    return PayloadCheckRequest(4, ROOT, c, TrainingStatement((2.0, 1.9, 1.8), WEIGHT), payload)


def with_payload(told: PayloadCheckRequest, payload: bytes) -> PayloadCheckRequest:
    return replace(told, payload=payload, contribution=replace(told.contribution, payload=payload_hash(payload)))


# Faults


def test_a_good_submission_decodes_to_what_will_be_merged() -> None:
    told = submission()
    values = decoded(SYNC, LAYOUT, told, WEIGHT)
    assert np.array_equal(values, SYNC.decode(SYNC.about(STATE, LAYOUT, PEERS[0]), LAYOUT, told.payload))


def faulty() -> list[tuple[PayloadCheckRequest, str]]:
    good = submission()
    c, p = good.contribution, good.payload
    return [
        (replace(good, round=-1), "FF-VERI-060"),
        (replace(good, contribution=replace(c, weight=0)), "FF-VERI-061"),
        (replace(good, contribution=replace(c, weight=WEIGHT + 1)), "FF-VERI-061"),
        (replace(good, statement=replace(good.statement, tokens=WEIGHT - 1)), "FF-VERI-061"),
        (replace(good, payload=p + b"\0"), "FF-VERI-062"),
        (replace(good, statement=TrainingStatement((1.0, 1.0), WEIGHT)), "FF-VERI-063"),
        (replace(good, statement=TrainingStatement((1.0, float("nan"), 1.0), WEIGHT)), "FF-VERI-063"),
        (with_payload(good, p[:50]), "FF-COMP-001"),
        (with_payload(good, p + bytes(1 << 16)), "FF-COMP-002"),
        (with_payload(good, b"X" + p[1:]), "FF-COMP-003"),
        (replace(good, round=5), "FF-COMP-007"),
        (replace(good, root=digest("test/root/1")), "FF-COMP-008"),
        (replace(good, contribution=replace(c, peer=PEERS[1])), "FF-COMP-009"),
        (with_payload(good, p[:-1]), "FF-COMP-010"),
        (with_payload(good, p[:HEADER_BYTES] + b"\xff" * (len(p) - HEADER_BYTES)), "FF-COMP-0"),
    ]


def test_a_submission_that_breaks_a_rule_is_refused_with_its_code(subtests: pytest.Subtests) -> None:
    for place in range(len(faulty())):
        with subtests.test(place=place):
            told, code = faulty()[place]
            with pytest.raises(ProtocolError, match=code):
                decoded(SYNC, LAYOUT, told, WEIGHT)


# Flags


def part(peer: PeerId, values: Float32) -> WeightedUpdate:
    return WeightedUpdate(peer, WEIGHT, values)


def test_honest_updates_are_not_suspicious() -> None:
    assert flags(LAYOUT, [part(peer, change(i)) for i, peer in enumerate(PEERS)]) == {}


@pytest.mark.parametrize(("scale", "is_odd"), [(4.9, False), (5.2, True), (0.21, False), (0.19, True)])
def test_an_update_beyond_five_times_the_median_norm_is_flagged(scale: float, is_odd: bool) -> None:
    base = change(9)
    rest = [part(peer, base[np.random.default_rng(i).permutation(base.size)]) for i, peer in enumerate(PEERS)]
    odd = np.random.default_rng(77).permutation(base.size)
    found = flags(LAYOUT, [*rest[:3], part(PEERS[3], np.float32(scale) * base[odd])])
    assert found == ({PEERS[3]: submission_checks.NORM} if is_odd else {})


def test_one_large_tensor_that_is_out_of_line_is_enough() -> None:
    tensors = TensorLayout.of({"a": (64, 64), "b": (64, 32)})
    updates = [np.random.default_rng(i).standard_normal(tensors.size).astype(np.float32) for i in range(4)]
    updates[2][4096:] /= 50
    assert flags(tensors, [part(p, u) for p, u in zip(PEERS, updates, strict=True)]) == {
        PEERS[2]: submission_checks.NORM
    }


def test_two_have_no_median() -> None:
    assert flags(LAYOUT, [part(PEERS[0], change(1)), part(PEERS[1], change(2, 10.0))]) == {}


def test_an_update_that_changes_nothing_is_flagged() -> None:
    parts = [part(PEERS[0], change(1)), part(PEERS[1], change(1) * 0)]
    assert flags(LAYOUT, parts) == {PEERS[1]: submission_checks.ZERO}


@pytest.mark.parametrize(
    ("scale", "noise", "is_one"),
    [(1.0, 0.0, True), (0.3, 0.0, True), (1.0, 0.1, True), (1.0, 0.17, False), (1.0, 0.3, False)],
)
def test_updates_that_point_the_same_way_are_both_flagged(scale: float, noise: float, is_one: bool) -> None:
    """cos = 1 / sqrt(1 + noise²): 0.995 at 0.1, 0.986 at 0.17, 0.958 at 0.3."""
    copied = np.float32(scale) * (change(1) + np.float32(noise) * change(2))
    parts = [part(PEERS[2], copied), part(PEERS[0], change(1)), part(PEERS[1], change(3))]
    found = {PEERS[0]: submission_checks.DUPLICATE, PEERS[2]: submission_checks.DUPLICATE} if is_one else {}
    assert flags(LAYOUT, parts) == found


def test_updates_of_opposite_directions_are_no_duplicates() -> None:
    assert flags(LAYOUT, [part(PEERS[0], change(1)), part(PEERS[1], -change(1))]) == {}


def test_the_same_elements_with_other_values_are_a_duplicate() -> None:
    """Whoever copies a choice of elements and changes the numbers is seen as well."""
    chosen = np.random.default_rng(3).permutation(LAYOUT.size)[:200]
    updates = [np.zeros(LAYOUT.size, np.float32) for _ in range(2)]
    for i, update in enumerate(updates):
        update[chosen] = change(20 + i)[:200]
    parts = [part(p, u) for p, u in zip(PEERS[:2], updates, strict=True)]
    assert flags(LAYOUT, parts) == dict.fromkeys(PEERS[:2], submission_checks.DUPLICATE)


def test_factors_of_one_shape_are_no_duplicates() -> None:
    """PowerSGD (low_rank): what is zero follows from the layout, in all payloads alike."""
    updates = [change(20 + i) for i in range(2)]
    for update in updates:
        update[LAYOUT.size // 3 :] = 0.0
    parts = [part(p, u) for p, u in zip(PEERS[:2], updates, strict=True)]
    assert flags(LAYOUT, parts, is_chosen=False) == {}
    assert flags(LAYOUT, parts) == dict.fromkeys(PEERS[:2], submission_checks.DUPLICATE)


@pytest.mark.parametrize("round", [4, 5])
def test_a_submission_is_held_against_the_phase_of_its_round(round: int) -> None:
    spec = JobSpec(
        optimizer=OptimizerSpec(name="gradient"),
        sync=SyncSpec(method="powersgd", codec="low_rank", value_bits=32, steps=1, rank=2, error_decay=1.0),
    )
    sync, state = Sync.of(spec), PublicState(round, np.zeros(LAYOUT.size, np.float32))
    payload = sync.encode(state, None, None, change(1), LAYOUT, PEERS[0]).payload
    digested, weight = payload_hash(payload), spec.round_tokens
    c = Contribution(PEERS[0], weight, digested, digested, ROOT, ROOT, "none")
    told = PayloadCheckRequest(round, state.root(LAYOUT), c, TrainingStatement((2.0,), weight), payload)
    assert decoded(sync, LAYOUT, told, weight).any()
    # Too long for the other phase, or of another round.
    with pytest.raises(ProtocolError, match=r"FF-COMP-00[27]"):
        decoded(sync, LAYOUT, replace(told, round=round + 1), weight)


def test_flags_do_not_hang_on_the_order_of_arrival() -> None:
    parts = [part(PEERS[0], change(1)), part(PEERS[1], change(1)), part(PEERS[2], change(2, 9.0))]
    assert flags(LAYOUT, parts) == flags(LAYOUT, parts[::-1])
    assert list(flags(LAYOUT, parts)) == PEERS[:3]


# The process


def served(work: Any) -> Any:
    """What `work(checker)` gives with a real checker process behind it."""

    ours, theirs = socket.socketpair()
    command = [sys.executable, "-m", "farflung.verify.io.checker", str(theirs.fileno())]
    process = subprocess.Popen(command, pass_fds=(theirs.fileno(),), stderr=subprocess.DEVNULL)
    theirs.close()
    checker = CheckerClient(ours)
    try:
        return asyncio.run(work(checker)), process
    finally:
        checker.close()
        process.wait(60)


def test_the_process_refuses_faults_and_flags_what_the_rules_flag() -> None:
    async def work(checker: CheckerClient) -> None:
        await checker.setup(SETUP)
        good = submission()
        for told, code in faulty()[1:5]:
            assert (await checker.check(told)).code.startswith(code)
        found = await checker.check(good)
        assert (found.code, len(found.norms)) == ("", 2)
        assert all(norm > 0 for norm in found.norms)
        assert (await checker.check(submission(PEERS[1]))).code == ""
        assert (await checker.check(submission(PEERS[2], change(5)))).code == ""
        expected = dict.fromkeys(PEERS[:2], submission_checks.DUPLICATE)
        assert await checker.conclude(4, tuple(PEERS[:3])) == expected
        assert await checker.conclude(4, tuple(PEERS[:3])) == {}  # a round is concluded once

    _, process = served(work)
    assert process.returncode == 0


def test_only_accepted_payloads_are_compared() -> None:
    async def work(checker: CheckerClient) -> None:
        await checker.setup(SETUP)
        for peer in PEERS[:2]:
            await checker.check(submission(peer))
        assert await checker.conclude(4, (PEERS[0],)) == {}

    served(work)


def test_a_checker_that_dies_is_told_by_its_code() -> None:
    async def work(checker: CheckerClient) -> None:
        with pytest.raises(RunError, match="FF-VERI-065"):  # it ends: nothing was set up
            await checker.check(submission())
        with pytest.raises(RunError, match="FF-VERI-065"):
            await checker.setup(SETUP)

    _, process = served(work)
    assert process.returncode != 0


def test_the_checker_loads_no_torch() -> None:
    code = "import sys, farflung.verify.io.checker; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("size", [1e-12, 1e-7, 1e5, 1e20])
def test_updates_of_any_size_are_told_apart(size: float) -> None:
    """Below a unit of fixed point all were zero, and above 64 all were alike."""
    updates = [change(i, size) for i in range(4)]
    assert flags(LAYOUT, [part(p, u) for p, u in zip(PEERS, updates, strict=True)]) == {}
    loud = [*updates[:3], change(3, 6 * size)]
    assert flags(LAYOUT, [part(p, u) for p, u in zip(PEERS, loud, strict=True)]) == {PEERS[3]: submission_checks.NORM}
    copied = [*updates[:3], updates[0] * np.float32(1.001)]
    found = flags(LAYOUT, [part(p, u) for p, u in zip(PEERS, copied, strict=True)])
    assert found == dict.fromkeys((PEERS[0], PEERS[3]), submission_checks.DUPLICATE)
    still = [*updates[:3], np.zeros_like(updates[0])]
    assert flags(LAYOUT, [part(p, u) for p, u in zip(PEERS, still, strict=True)]) == {PEERS[3]: submission_checks.ZERO}
