"""What a worker may use, the words for how it ended, and what is measured of a machine."""

from __future__ import annotations

import itertools
import os
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest

from farflung.host import exit_reason
from farflung.host.io import machine_probe
from farflung.host.worker_limits import WorkerLimits, cpu_bound, limits_for, one_threaded, scrubbed


def test_no_word_of_the_environment_passes_but_switches_of_known_values() -> None:
    of_the_user = {"PATH": "/home/u/bin", "LANG": "xx_YY", "HOME": "/root", "HTTP_PROXY": "x", "FARFLUNG_KEY": "y"}
    given = scrubbed({**of_the_user, "FARFLUNG_DEBUG": "/home/u", "FARFLUNG_KERNELS": "/home/u/k"}, Path("/s"))
    assert not set(of_the_user.values()) & set(given.values())
    assert given == scrubbed({"FARFLUNG_DEBUG": "1"}, Path("/s"))
    assert (given["HOME"], given["PYTHONHASHSEED"], given["OMP_NUM_THREADS"]) == ("/s", "0", "1")
    assert "FARFLUNG_DEBUG" not in scrubbed({"FARFLUNG_DEBUG": ""}, Path("/s"))
    assert scrubbed({"FARFLUNG_KERNELS": "numba"}, Path("/s"))["FARFLUNG_KERNELS"] == "numba"


def test_no_thread_of_a_process_keeps_a_core_busy_that_others_compute_on() -> None:
    quiet = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
    for given in (scrubbed({}, Path("/s")), one_threaded({"A": "b", "OMP_NUM_THREADS": "8"})):
        assert quiet.items() <= given.items()
    assert one_threaded({"A": "b"})["A"] == "b"


def test_a_process_keeps_from_step_to_step_the_memory_that_it_freed() -> None:
    heap = {"MALLOC_MMAP_THRESHOLD_": "33554432", "MALLOC_TRIM_THRESHOLD_": "67108864"}
    of_the_user = {"MALLOC_TRIM_THRESHOLD_": "0"}
    for given in (scrubbed(of_the_user, Path("/s")), one_threaded(of_the_user)):
        assert heap.items() <= given.items()


def test_planned_memory_sets_the_data_limit() -> None:
    assert limits_for(300_000_000).data == 600_000_000 + (1 << 30)


def test_reasons_name_the_signal_and_quote_the_last_line() -> None:
    assert exit_reason.reason(-signal.SIGSEGV, b"").startswith("SIGSEGV")
    assert exit_reason.reason(-63, b"") == "signal 63"
    assert exit_reason.reason(2, b"first\nlast \x1b[31mword\n\n") == "exit status 2; its last words: last [31mword"
    assert len(exit_reason.last_line(b"x" * 9999)) == exit_reason.LAST_WORDS


def test_the_probe_measures_this_machine(tmp_path: Path) -> None:
    machine = machine_probe.machine()
    assert 1 <= machine.cores <= (os.cpu_count() or 1)
    assert machine.flops_per_core > 1e8
    assert machine.memory_bytes > 1 << 20
    offered = machine_probe.capabilities(tmp_path / "not" / "yet")
    assert offered.disk_bytes > 0
    assert offered.torch


def test_speed_is_that_of_the_fastest_window_however_long_others_slowed_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")
    used = itertools.chain([0.0, 9.0, 9.0, 10.0], map(float, itertools.count(19, 9)))  # the second takes a second
    clocks = SimpleNamespace(process_time=lambda: next(used), perf_counter=itertools.count().__next__)
    monkeypatch.setattr(machine_probe, "time", clocks)
    assert machine_probe.sgemm_flops(4.0) == 2.0 * machine_probe.SIDE**3 * machine_probe.WINDOW


def test_usage_of_a_process_and_of_one_that_is_gone() -> None:
    peak, seconds = machine_probe.usage(os.getpid())
    assert peak > 1_000_000
    assert seconds > 0
    assert machine_probe.usage(2**30) == (0, 0.0)


def test_a_process_and_its_children_are_counted_together() -> None:
    use = machine_probe.use_of_tree(os.getpid())
    assert use.peak_bytes >= use.resident_bytes > 1_000_000
    assert use.cpu_seconds > 0
    assert machine_probe.use_of_tree(2**30) == (0, 0, 0.0)


def test_the_size_of_a_folder_is_what_it_takes_on_disk(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "file").write_bytes(bytes(1 << 20))
    held, entries = machine_probe.folder_use(tmp_path, 100)
    assert 1 << 20 <= held < 2 << 20
    assert entries == 2
    assert machine_probe.folder_use(tmp_path / "none", 100) == (0, 0)
    for index in range(5):
        (tmp_path / str(index)).mkdir()
    assert machine_probe.folder_use(tmp_path, 3)[1] > 3


def test_processor_time_is_bounded_only_if_asked() -> None:
    assert not any("RLIMIT_CPU" in item for item in WorkerLimits().arguments())
    assert "RLIMIT_CPU=5:6" in WorkerLimits(cpu_seconds=5).arguments()


@pytest.mark.parametrize(
    ("words", "limit"),
    [
        ("MemoryError", exit_reason.MEMORY),
        ("terminate called: std::bad_alloc", exit_reason.MEMORY),
        ("RuntimeError: can't start new thread", exit_reason.PROCESSES),
        ("BlockingIOError: [Errno 11] Resource temporarily unavailable", exit_reason.PROCESSES),
        ("OSError: [Errno 28] No space left on device", exit_reason.DISK),
        ("PermissionError: [Errno 1] Operation not permitted", exit_reason.REFUSED),
        ("ValueError: 3", ""),
    ],
)
def test_last_words_tell_which_limit_was_broken(words: str, limit: str) -> None:
    assert exit_reason.limit_in_log(words.encode()) == limit
    told = exit_reason.reason(1, words.encode())
    assert told == (f"{limit}; " if limit else "") + f"exit status 1; its last words: {words}"


def test_what_the_host_knows_goes_before_what_the_worker_says() -> None:
    assert exit_reason.reason(1, b"MemoryError", exit_reason.DISK).startswith(f"{exit_reason.DISK}; exit status 1")
    assert exit_reason.reason(-9, b"x", exit_reason.MEMORY) == f"{exit_reason.MEMORY}; {exit_reason.reason(-9, b'')}"
    assert exit_reason.reason(0, b"", exit_reason.DISK) == f"{exit_reason.DISK}; exit status 0"


def test_a_signal_is_read_through_bubblewrap() -> None:
    assert [exit_reason.through_bwrap(n) for n in (None, 0, 1, 128, 137, 152, 255)] == [None, 0, 1, 128, -9, -24, 255]


def test_a_lease_has_processor_time_for_its_work_many_times_over_and_no_more() -> None:
    default = cpu_bound(834_304, 204_800, 10**11)
    assert 20 * 19 < default < 3 * 3600  # a fifth of the default run's tokens took 19 s of a core
    assert cpu_bound(834_304, 10**9, 10**11) > 20 * default  # grows with the work
    assert cpu_bound(1, 1, 0) == 600 + 50 * 6  # a rate of nothing divides nothing by zero
    assert limits_for(0, default).cpu_seconds == default
