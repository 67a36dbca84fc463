"""What crosses a bus and a disk, from a footprint that says what lies where."""

from __future__ import annotations

import pytest

from farflung.advice.memory.breakdown import Footprint, MemoryPart, MemoryPlace
from farflung.advice.memory.model_states import OffloadConfig, ZeroSplit, states
from farflung.advice.memory.offload import moved
from farflung.core.errors import UsageError

GB = 10**9
ADAM = states(GB, split=ZeroSplit(2, 1, OffloadConfig(optimizer=MemoryPlace.RAM)))


def test_an_offloaded_step_moves_four_bytes_a_parameter_and_with_the_parameters_six() -> None:
    assert moved(Footprint("", ADAM)) == (2 * GB, 2 * GB, 0)
    whole = Footprint("", states(GB, split=ZeroSplit(3, 1, OffloadConfig(MemoryPlace.RAM, MemoryPlace.RAM))))
    assert moved(whole) == (2 * GB, 4 * GB, 0)
    assert moved(whole).bus == 4 * GB
    assert moved(Footprint("", states(GB))) == (0, 0, 0)


def test_each_micro_batch_sends_its_gradients_and_fetches_the_parameters() -> None:
    assert moved(Footprint("", ADAM), 5) == (10 * GB, 2 * GB, 0)
    whole = Footprint("", states(GB, split=ZeroSplit(3, 4, OffloadConfig(MemoryPlace.RAM, MemoryPlace.RAM))))
    assert moved(whole, 5) == (10 * GB / 4, 20 * GB / 4, 0)


def test_activations_go_out_and_come_back() -> None:
    here, ram, disk = (MemoryPart("activations", 3e9, "", "", place) for place in MemoryPlace)
    assert moved(Footprint("", (here,))) == (0, 0, 0)
    assert moved(Footprint("", (ram,)), 2) == (6e9, 6e9, 0)
    assert moved(Footprint("", (disk,)), 2) == (6e9, 6e9, 12e9)


def test_states_on_disk_are_read_and_written_and_windows_of_them_are_not_moved_twice() -> None:
    split = ZeroSplit(3, 1, OffloadConfig(MemoryPlace.DISK, MemoryPlace.DISK))
    need = Footprint("", states(GB, split=split, largest=1e6))
    assert moved(need).disk == (2 * 4 + 2 * 12 + 3 * 2) * GB
    assert moved(need, 2).disk == (4 * 4 + 2 * 12 + 5 * 2) * GB


def test_a_step_without_micro_batches_is_refused() -> None:
    with pytest.raises(UsageError, match="FF-PLAN-020: micros"):
        moved(Footprint("", ADAM), 0)
