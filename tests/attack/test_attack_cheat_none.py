"""No cheat at all: nobody honest is ever accused, whatever its threads and however busy its machine."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest
from cheat_play import SEEDS, SHORT, play
from msgspec.structs import replace
from segment_play import ADAMW, FALSE, HOLDS, OPTIMIZERS, SGD, UNPAID, stage

from farflung.ledger.transactions import VerdictFinding
from farflung.train import noise_profile
from farflung.train.noise_profile import NumericEnvironment, environment

ONCE = replace(SHORT, rounds=1)  # two threads on a busy core wait for each other most of the time
measured: list[int] = []


@pytest.fixture(scope="module")
def busy() -> Iterator[None]:
    """A process that does nothing but take time from the others."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


@pytest.mark.whole
@pytest.mark.usefixtures("busy")
@pytest.mark.parametrize("seed", SEEDS)
def test_honest_peers_with_one_and_two_threads_are_never_accused(seed: int) -> None:
    run = play(seed, peers=2, threads=(1, 2 if seed % 3 == 0 else 1), spec=ONCE)
    assert set(run.findings.values()) == {VerdictFinding.HOLDS}
    assert len(run.findings) == 2
    measured.extend(run.excesses.values())


def test_two_threads_do_give_other_bits_than_one() -> None:
    """Else the test before this one would show nothing. Half a tolerance is far from anything that was measured."""
    run = play(0, peers=2, threads=(1, 2), spec=ONCE)
    found = [*measured, *run.excesses.values()]
    assert 0 < max(found) < 500


@pytest.mark.parametrize("threads", [2, 3, 4, 8, 16])
def test_honest_segments_of_a_worker_with_all_cores_of_its_owner_hold_for_a_verifier_with_one(threads: int) -> None:
    """The profile measures two threads: more split the same sums, and stay far inside what it allows."""
    for seed, optimizer in enumerate(OPTIMIZERS):
        one = stage(seed, optimizer)
        with environment(NumericEnvironment(threads, True)):
            found = one.judged(one.segment.honest().end)
        assert found.finding is HOLDS
        assert 0 < found.excess < 100  # other bits; a tolerance is 1000


@pytest.mark.parametrize("kind", [NumericEnvironment(1, False), NumericEnvironment(2, False)], ids=str)
def test_honest_segments_of_other_classes_hold(kind: NumericEnvironment) -> None:
    for seed, optimizer in enumerate(OPTIMIZERS):
        one = stage(seed, optimizer)
        with environment(kind):
            assert one.judged(one.segment.honest().end).finding is HOLDS


def test_honest_segments_whose_every_product_is_rounded_otherwise_hold() -> None:
    for seed, optimizer in enumerate(OPTIMIZERS):
        one = stage(seed, optimizer)
        found = one.judged(one.segment.made(model=noise_profile.PerturbedWeightsModel(one.segment.job.model, 99)).end)
        assert found.finding is HOLDS
        assert found.excess > 0  # other bits


def moved(seed: int, optimizer: object, name: str, share: float) -> VerdictFinding:
    """The finding on an end whose tensor `name` is off by a share of what the segment changed in it."""
    one = stage(seed, optimizer)
    params = np.array(one.right.params)
    place = {t.name: p for t, p in one.segment.job.model.layout.slices()}[name]
    params[place] += np.float32(share) * (params[place] - one.segment.start[place])
    return one.judged(dataclasses.replace(one.right, params=params)).finding


def test_a_keys_bias_which_is_nothing_but_rounding_accuses_nobody() -> None:
    """Adam makes full steps of it, so that honest machines differ by all of it (tensors of noise in the profile)."""
    assert moved(1, ADAMW, "blocks.0.qkv.bias", 1.0) is HOLDS
    assert moved(1, ADAMW, "blocks.0.up.bias", 1.0) is FALSE
    assert moved(2, SGD, "blocks.0.qkv.bias", 1.0) is FALSE  # no noise there: it is looked at


@pytest.mark.parametrize(("times", "finding"), [(0.9, HOLDS), (1.5, UNPAID), (2.5, FALSE)])
def test_between_one_and_two_tolerances_nobody_is_punished(times: float, finding: VerdictFinding) -> None:
    """2^-11 of a change is the floor, and the tolerance of this tensor."""
    assert moved(2, SGD, "blocks.0.up.weight", times * 2.0**-11) is finding
