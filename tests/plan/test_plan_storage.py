"""Training data and checkpoints: bytes, seconds, and what a step needs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farflung.core.errors import UsageError
from farflung.core.units import Seconds
from farflung.plan.links import Link
from farflung.plan.parallel import storage
from farflung.plan.parallel.storage import Storage
from farflung.plan.parallel.terms import Load, Road

HOME = Link(20e6, 100e6, Seconds(0.03))
SERVER = Link(1e9, 1e9, Seconds(0.01))


def test_an_epoch_s_data_is_read_once_or_by_everybody() -> None:
    shared, copied = (storage.epoch(156e9, 2, 8, is_shared=flag) for flag in (True, False))
    assert (shared.total, shared.received) == (312e9, 39e9)
    assert (copied.total, copied.received) == (8 * 312e9, 312e9)
    assert storage.batch(2048, 4096, 2, 16).received == 2048 * 4096 * 2 / 16


def test_data_and_checkpoints_are_the_other_class_of_traffic() -> None:
    load = Load(8, (storage.epoch(1e9, 2, 8), storage.checkpoint(1e9, 8)))
    assert load.of(road=Road.STORAGE).total == load.total == 3e9
    assert load.of(road=Road.CARDS).total == 0


def test_a_checkpoint_waits_for_the_slowest_of_three() -> None:
    size = 14e9
    many = Storage(100, SERVER)
    way = Seconds(0.02)
    assert storage.writing(size, 8, HOME, many) == pytest.approx(8 * size / 8 / 20e6 + way)
    one = Storage(1, SERVER)
    assert storage.writing(size, 1000, HOME, one) == pytest.approx(8 * size / 1e9 + way)
    three = Storage(3, Link(1e9, 2e9, Seconds(0.01)), copies=3)
    slow_in = Storage(3, Link(1e10, 2e9, Seconds(0.01)), copies=3)
    assert storage.writing(size, 1000, HOME, slow_in) == pytest.approx(3 * 8 * size / 6e9 + way)
    assert storage.writing(size, 1000, HOME, three) == pytest.approx(
        max(8 * size / 2e9, 2 * 8 * size / 3e9) + way
    )


def test_restoring_brings_all_of_it_to_each_replica() -> None:
    size, way = 14e9, 0.02
    assert storage.restoring(size, 4, 8, HOME, Storage(100, SERVER)) == pytest.approx(
        8 * size / 8 / 100e6 + way
    )
    assert storage.restoring(size, 4, 1000, HOME, Storage(1, SERVER)) == pytest.approx(
        4 * 8 * size / 1e9 + way
    )


@given(st.floats(1, 1e12), st.integers(1, 100), st.integers(1, 10))
def test_more_writers_and_more_nodes_never_take_longer(size: float, writers: int, nodes: int) -> None:
    before = storage.writing(size, writers, HOME, Storage(nodes, SERVER))
    assert storage.writing(size, 2 * writers, HOME, Storage(nodes, SERVER)) <= before
    assert storage.writing(size, writers, HOME, Storage(nodes + 1, SERVER)) <= before


def test_a_step_says_the_rate_that_it_needs() -> None:
    assert storage.needed_rate(storage.batch(64, 1024, 2, 8).received, 2.0) == 8 * 64 * 1024 * 2 / 8 / 2


@pytest.mark.parametrize(
    ("code", "call"),
    [
        ("FF-PLAN-020", lambda: Storage(0, SERVER)),
        ("FF-PLAN-020", lambda: Storage(2, SERVER, copies=3)),
        ("FF-PLAN-020", lambda: storage.epoch(1e9, 2, 0)),
        ("FF-PLAN-020", lambda: storage.batch(-1, 5, 2, 1)),
        ("FF-PLAN-021", lambda: storage.epoch(-1.0, 2, 1)),
        ("FF-PLAN-021", lambda: storage.checkpoint_bytes(float("nan"))),
        ("FF-PLAN-021", lambda: storage.checkpoint(-5.0, 2)),
        ("FF-PLAN-021", lambda: storage.needed_rate(1.0, 0.0)),
    ],
)
def test_storage_that_makes_no_sense_is_refused(code: str, call: object) -> None:
    with pytest.raises(UsageError) as error:
        call()  # type: ignore[operator]
    assert error.value.code == code
