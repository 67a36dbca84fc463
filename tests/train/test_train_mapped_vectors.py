"""A worker's file of states: places are given, used again, and left alone while somebody looks at them."""

import gc
import os

import numpy as np
import pytest

from farflung.core.io.spool_file import state_file
from farflung.train.io.mapped_vectors import LEAST, MappedVectors
from farflung.train.vector_store import kept

SIZE = LEAST + 3


@pytest.fixture
def store(tmp_path):
    descriptor = state_file(tmp_path, 3 * 4 * (SIZE + 16384))
    yield MappedVectors(descriptor)
    os.close(descriptor)


def test_a_vector_rests_in_the_file_and_is_read_again(store):
    values = np.arange(SIZE, dtype=np.float32)
    first, second = kept(store, values), kept(store, 2 * values)
    store.rest()
    assert np.array_equal(first, values)
    assert np.array_equal(second, 2 * values)
    with pytest.raises(ValueError, match="read-only"):
        first[0] = 1.0


def test_a_place_is_free_when_nobody_can_see_it_any_more(store):
    held = [kept(store, np.full(SIZE, value, np.float32)) for value in (1.0, 2.0, 3.0)]
    view = held[0][5:9]
    del held[0]
    gc.collect()
    beside = kept(store, np.full(SIZE, 4.0, np.float32))  # in memory: the file is full, and the view holds its place
    assert view.tolist() == [1.0] * 4
    del view
    gc.collect()
    again = kept(store, np.full(SIZE, 5.0, np.float32))
    assert [each[SIZE - 1] for each in (*held, beside, again)] == [2.0, 3.0, 4.0, 5.0]


def test_a_store_without_a_file_is_memory():
    store = MappedVectors(-1)
    assert kept(store, np.ones(SIZE, np.float32)).sum() == SIZE
    store.rest()
