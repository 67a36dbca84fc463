"""Training data and checkpoints: bytes, seconds, and what a step needs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farflung.advice.traffic import storage_traffic
from farflung.advice.traffic.storage_traffic import StorageNodes
from farflung.advice.traffic.traffic_terms import TrafficClass, TrafficLoad
from farflung.core.errors import UsageError
from farflung.core.units import Seconds
from farflung.plan.link_syntax import Link

HOME = Link(20e6, 100e6, Seconds(0.03))
SERVER = Link(1e9, 1e9, Seconds(0.01))


def test_an_epoch_s_data_is_read_once_or_by_everybody() -> None:
    shared, copied = (storage_traffic.epoch(156e9, 2, 8, is_shared=flag) for flag in (True, False))
    assert (shared.total, shared.received) == (312e9, 39e9)
    assert (copied.total, copied.received) == (8 * 312e9, 312e9)
    assert storage_traffic.batch(2048, 4096, 2, 16).received == 2048 * 4096 * 2 / 16


def test_data_and_checkpoints_are_the_other_class_of_traffic() -> None:
    load = TrafficLoad(8, (storage_traffic.epoch(1e9, 2, 8), storage_traffic.checkpoint(1e9, 8)))
    assert load.of(road=TrafficClass.STORAGE).total == load.total == 3e9
    assert load.of(road=TrafficClass.CARDS).total == 0


def test_a_checkpoint_waits_for_the_slowest_of_three() -> None:
    size = 14e9
    many = StorageNodes(100, SERVER)
    way = Seconds(0.02)
    assert storage_traffic.writing(size, 8, HOME, many) == pytest.approx(8 * size / 8 / 20e6 + way)
    one = StorageNodes(1, SERVER)
    assert storage_traffic.writing(size, 1000, HOME, one) == pytest.approx(8 * size / 1e9 + way)
    three = StorageNodes(3, Link(1e9, 2e9, Seconds(0.01)), copies=3)
    slow_in = StorageNodes(3, Link(1e10, 2e9, Seconds(0.01)), copies=3)
    assert storage_traffic.writing(size, 1000, HOME, slow_in) == pytest.approx(3 * 8 * size / 6e9 + way)
    assert storage_traffic.writing(size, 1000, HOME, three) == pytest.approx(
        max(8 * size / 2e9, 2 * 8 * size / 3e9) + way
    )


def test_restoring_brings_all_of_it_to_each_replica() -> None:
    size, way = 14e9, 0.02
    assert storage_traffic.restoring(size, 4, 8, HOME, StorageNodes(100, SERVER)) == pytest.approx(
        8 * size / 8 / 100e6 + way
    )
    assert storage_traffic.restoring(size, 4, 1000, HOME, StorageNodes(1, SERVER)) == pytest.approx(
        4 * 8 * size / 1e9 + way
    )


@given(st.floats(1, 1e12), st.integers(1, 100), st.integers(1, 10))
def test_more_writers_and_more_nodes_never_take_longer(size: float, writers: int, nodes: int) -> None:
    before = storage_traffic.writing(size, writers, HOME, StorageNodes(nodes, SERVER))
    assert storage_traffic.writing(size, 2 * writers, HOME, StorageNodes(nodes, SERVER)) <= before
    assert storage_traffic.writing(size, writers, HOME, StorageNodes(nodes + 1, SERVER)) <= before


@pytest.mark.parametrize(
    ("code", "call"),
    [
        ("FF-PLAN-020", lambda: StorageNodes(0, SERVER)),
        ("FF-PLAN-020", lambda: StorageNodes(2, SERVER, copies=3)),
        ("FF-PLAN-020", lambda: storage_traffic.epoch(1e9, 2, 0)),
        ("FF-PLAN-020", lambda: storage_traffic.batch(-1, 5, 2, 1)),
        ("FF-PLAN-021", lambda: storage_traffic.epoch(-1.0, 2, 1)),
        ("FF-PLAN-021", lambda: storage_traffic.checkpoint_bytes(float("nan"))),
        ("FF-PLAN-021", lambda: storage_traffic.checkpoint(-5.0, 2)),
    ],
)
def test_storage_that_makes_no_sense_is_refused(code: str, call: object) -> None:
    with pytest.raises(UsageError) as error:
        call()  # type: ignore[operator]
    assert error.value.code == code
