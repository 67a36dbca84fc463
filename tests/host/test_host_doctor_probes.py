"""`farflung check` judges a computer: what is not good says why and what next, and nothing holds the check up."""

from __future__ import annotations

import errno
import importlib.machinery
import importlib.util
import os
import re
import socket
import subprocess
import sys
import threading
import types
import typing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.app.cli import check, check_text
from farflung.core.errors import RunError
from farflung.core.tensor_layout import TensorLayout
from farflung.core.units import format_bytes
from farflung.host import doctor, sandbox
from farflung.host import machine_readings as r
from farflung.host.findings import MISSED, FindingState, ProbeFinding
from farflung.host.io import doctor_probes as probing
from farflung.host.io import doctor_sockets, doctor_storage, doctor_torch, machine_probe
from farflung.host.io.doctor_probes import CheckProbe
from farflung.host.worker_limits import GIB
from farflung.job.gpt_shapes import gpt_shapes
from farflung.job.job_loader import load
from farflung.peers.program.worker_bounds import bounds_of
from farflung.plan.machine import CPU_BUILD, GPU_BUILD, MachineMeasurements, TorchBuild
from farflung.plan.run_plan import advise
from farflung.plan.worker_memory import memory

TIERS = tuple(r.TierReading(sandbox.SandboxTier(name, ("a gap",)), "", "") for name in sandbox.ORDER)
GB = 10**9
GOOD: dict[str, Any] = {
    "python": r.PythonReading((3, 11, 7), "CPython", 64),
    "libraries": r.LibrariesReading((("numpy", "2.0", "2.1.3"), ("torch", "2.6", "2.13.0+cpu"))),
    "torch": r.TorchReading("2.13.0", 1.9, True, True, True, 1),
    "speed": r.ComputeSpeedReading(60e9),
    "cores": r.CoresReading(2, 2, 0.3),
    "memory": r.MemoryReading(25 * GB, 20 * GB, 0),
    "disk": r.DiskReading("/srv", 80 * GB, 300e6, 0.002),
    "runs": r.FolderReading("/srv/runs", "FARFLUNG_RUNS"),
    "temporary": r.FolderReading("/scratch", "TMPDIR"),
    "clock": r.ClockReading(1.8e9, 0.5, 0.0, 0.0, 86400.0, True),
    "loopback": r.LoopbackReading(0.01, 0.0001, 300e6),
    "ports": r.PortRangeReading(32768, 60999, 16, 16),
    "port": r.PortReading(7475),
    "files": r.OpenFilesReading(1024, 4096),
    "congestion": r.CongestionReading(
        "linux", "bbr", "cubic", "bbr", 0, ("reno", "cubic", "bbr"), ("reno", "cubic", "bbr"), True
    ),
    "processes": r.ProcessesReading(30000, 200, -1, 0),
    "data": r.DefaultDataReading(658, 10_000_000),
    "random": r.RandomReading(True),
    "terminal": r.TerminalReading(100, "utf-8", "utf-8"),
    "extras": r.ExtrasReading((("pandas", "3.1"), ("wandb", ""))),
    "sandbox": r.SandboxReading("bwrap", TIERS, "FARFLUNG_SANDBOX"),
}


def changed(name: str, **fields: Any) -> ProbeFinding:
    return doctor.judge(name, msgspec.structs.replace(GOOD[name], **fields), 10_000_000)


def broken(number: int) -> r.SystemCallFailure:
    return r.SystemCallFailure(number, os.strerror(number))


def is_complete(finding: ProbeFinding) -> bool:
    """What is not good has a cause and a step, what fails has a code, and nothing is ever empty."""
    is_good = finding.state in (FindingState.OK, FindingState.NOTE)
    fails = finding.state == FindingState.FAILS
    return bool(
        finding.measured.strip()
        and is_good == (not finding.cause and not finding.step)
        and is_good == (not finding.cause or not finding.step)
        and fails == bool(re.fullmatch(r"FF-[A-Z]+-\d{3}", finding.code))
        and all(detail.word and detail.text for detail in finding.details)
    )


def test_a_good_reading_is_ok(subtests: pytest.Subtests) -> None:
    for name in GOOD:
        with subtests.test(name=name):
            finding = doctor.judge(name, GOOD[name], 10_000_000)
            assert finding.state == (FindingState.NOTE if name == "extras" else FindingState.OK)
            assert finding.name == name
            assert is_complete(finding)


# Each threshold from both sides: (probe, the field's last good value, its first bad one, what that is).
BORDERS: list[tuple[str, dict[str, Any], dict[str, Any], FindingState]] = [
    ("python", {"version": (3, 11, 0)}, {"version": (3, 10, 14)}, FindingState.FAILS),
    ("python", {"bits": 64}, {"bits": 32}, FindingState.FAILS),
    ("libraries", {}, {"wanted": (("numpy", "2.0", ""),)}, FindingState.FAILS),
    ("libraries", {"wanted": (("x", "2", "2.0"),)}, {"wanted": (("x", "2.10", "2.9"),)}, FindingState.FAILS),
    ("torch", {"load_seconds": 5.0}, {"load_seconds": 5.1}, FindingState.SLOW),
    ("torch", {}, {"is_exact": False}, FindingState.FAILS),
    ("torch", {}, {"is_repeated": False}, FindingState.FAILS),
    ("torch", {"has_onednn": False}, {"error": "ModuleNotFoundError"}, FindingState.FAILS),
    ("speed", {"flops": 5e9}, {"flops": 4.9e9}, FindingState.SLOW),
    ("cores", {"load": 1.0}, {"load": 1.1}, FindingState.SLOW),
    ("cores", {"present": 64, "load": 62.0}, {"present": 64, "load": 63.5}, FindingState.SLOW),
    ("memory", {"usable": 12 * GB}, {"usable": 3 * GB}, FindingState.FAILS),
    ("disk", {"free": 1 << 30}, {"free": 10**9}, FindingState.WARN),
    ("disk", {"free": 1 << 30}, {"free": (64 << 20) - 1}, FindingState.FAILS),
    ("disk", {"sync": 0.03}, {"sync": 0.031}, FindingState.SLOW),
    ("disk", {"rate": 20e6}, {"rate": 19e6}, FindingState.SLOW),
    ("runs", {"exists": False}, {"broken": broken(errno.EROFS)}, FindingState.FAILS),
    ("temporary", {}, {"broken": broken(errno.EACCES)}, FindingState.FAILS),
    ("temporary", {}, {"ignored": "/no such folder"}, FindingState.WARN),
    ("clock", {"jump": -0.05}, {"jump": -0.051}, FindingState.WARN),
    ("clock", {"file_skew": 2.0}, {"file_skew": -2.1}, FindingState.WARN),
    ("clock", {"file_skew": None, "is_kept": None}, {"since_package": -61.0}, FindingState.WARN),
    ("clock", {"since_package": -60.0, "is_kept": False}, {"since_package": -9e8}, FindingState.WARN),
    ("loopback", {"handshake": 0.25}, {"handshake": 0.26}, FindingState.SLOW),
    ("loopback", {"round_trip": 0.005}, {"round_trip": 0.006}, FindingState.SLOW),
    ("loopback", {"rate": 20e6}, {"rate": 19e6}, FindingState.SLOW),
    ("loopback", {}, {"broken": broken(errno.ENETUNREACH)}, FindingState.FAILS),
    ("ports", {"first": 1000, "last": 1499}, {"first": 1000, "last": 1498}, FindingState.WARN),
    ("ports", {"first": 0, "last": 0}, {"bound": 15}, FindingState.FAILS),
    ("port", {}, {"broken": broken(errno.EADDRINUSE)}, FindingState.FAILS),
    ("port", {}, {"broken": broken(errno.EACCES)}, FindingState.FAILS),
    ("files", {"soft": 256}, {"soft": 255}, FindingState.WARN),
    ("files", {"soft": -1, "hard": -1}, {"soft": 47, "hard": 47}, FindingState.FAILS),
    ("processes", {"soft": 600}, {"soft": 599}, FindingState.WARN),
    ("processes", {"soft": -1}, {"soft": 299}, FindingState.FAILS),
    ("processes", {"bound": 500, "inside": 100}, {"bound": 100, "inside": 1}, FindingState.FAILS),
    ("random", {}, {"is_ready": False}, FindingState.FAILS),
    ("congestion", {}, {"got": "cubic", "refusal": errno.EPERM, "allowed": ("reno", "cubic")}, FindingState.SLOW),
    ("congestion", {}, {"got": "cubic", "refusal": errno.ENOENT, "available": ("reno", "cubic")}, FindingState.SLOW),
    ("congestion", {}, {"system": "darwin", "own": "", "got": "", "available": ()}, FindingState.SLOW),
    ("congestion", {}, {"system": "win32", "own": "", "got": "", "available": ()}, FindingState.SLOW),
    ("terminal", {"columns": 80}, {"columns": 79}, FindingState.WARN),
    ("terminal", {"columns": 0}, {"encoding": "ascii"}, FindingState.WARN),
    ("sandbox", {"chosen": "landlock"}, {"chosen": "limits"}, FindingState.WARN),
    (
        "sandbox",
        {"tiers": TIERS[:1]},
        {"chosen": "", "refused": r.ProbeErrorReading("FF-HOST-004", "no", "c", "h")},
        FindingState.FAILS,
    ),
]


def test_a_threshold_lies_where_it_is_documented(subtests: pytest.Subtests) -> None:
    for name, good, bad, state in BORDERS:
        with subtests.test(name=name, good=good, bad=bad, state=state):
            assert changed(name, **good).state == FindingState.OK
            finding = changed(name, **bad)
            assert finding.state == state
            assert is_complete(finding)


def test_a_bad_finding_fits_the_screen(subtests: pytest.Subtests) -> None:
    for name, good, bad, state in BORDERS:
        for width in [80, 100]:
            with subtests.test(name=name, good=good, bad=bad, state=state, width=width):
                lines = check_text._shown(changed(name, **bad), width, False)
                assert max(len(line) for line in lines if "         try  " not in line) <= width
                assert max(map(len, lines)) <= 100  # a command is not broken


# Any reading at all, sensible or not.


def any_value(kind: Any) -> st.SearchStrategy[Any]:
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return st.one_of([any_value(one) for one in inner])
    if origin is tuple:
        if inner[-1] is Ellipsis:
            return st.lists(any_value(inner[0]), max_size=3).map(tuple)
        return st.tuples(*[any_value(one) for one in inner])
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        if kind is r.SandboxReading:
            return st.builds(r.SandboxReading, st.sampled_from(sandbox.ORDER), any_tiers(), st.just("V"))
        if kind in (r.MissingReading, r.ProbeErrorReading):
            return st.just(kind(*(["FF-HOST-001", "words"] * 2)[: 1 if kind is r.MissingReading else 4]))
        fields = {field.name: any_value(field.type) for field in msgspec.structs.fields(kind)}
        return st.fixed_dictionaries(fields).map(lambda values: kind(**values))
    simple: dict[Any, st.SearchStrategy[Any]] = {
        int: st.integers(-1, 1 << 50),
        float: st.floats(-1e12, 1e12),
        bool: st.booleans(),
        str: st.text(min_size=1, max_size=60).filter(str.strip),
        type(None): st.none(),
    }
    return simple[kind]


def any_tiers() -> st.SearchStrategy[tuple[r.TierReading, ...]]:
    words = st.sampled_from(["", "it is not installed"])
    one = [
        st.builds(r.TierReading, st.just(sandbox.SandboxTier(name, ("gap",))), words, words) for name in sandbox.ORDER
    ]
    return st.tuples(*one)


@pytest.mark.whole
@given(data=st.data(), size=st.integers(0, 1 << 34), kind=st.sampled_from(typing.get_args(r.Reading)))
@settings(max_examples=500)
def test_whatever_is_read_gets_a_complete_finding(data: st.DataObject, size: int, kind: Any) -> None:
    reading = data.draw(any_value(kind))
    finding = doctor.judge("probe", reading, size)
    if kind is r.ProbeErrorReading:
        finding = msgspec.structs.replace(finding, code="FF-HOST-001")
    assert is_complete(finding), finding


def test_too_little_memory_names_a_run_that_fits() -> None:
    assert changed("memory", usable=int(3.9 * GB)).step == "farflung run --set network.providers=2"
    assert "--preset tiny" in changed("memory", usable=int(3.4 * GB)).step, "no run has a single provider"
    assert "--preset tiny" in changed("memory", usable=int(2.2 * GB)).step
    assert "end other programs" in changed("memory", usable=GB).step


@pytest.mark.parametrize(
    ("told", "build"),
    [
        ("__version__ = '2.13.0+cpu'\ncuda: Optional[str] = None\nhip: Optional[str] = None\n", CPU_BUILD),
        ("__version__ = '2.13.0'\nfrom typing import Optional\ncuda = None\nhip = None\n", CPU_BUILD),  # macOS
        ("__version__ = '2.13.0+cu130'\ncuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n", GPU_BUILD),
        ("__version__ = '2.13.0'\ncuda = '13.0'\n", GPU_BUILD),
        ("cuda: Optional[str] = None\nhip: Optional[str] = '7.0'\nrocm: Optional[str] = None\n", GPU_BUILD),
        ("cuda: Optional[str] = None\nhip: Optional[str] = None\nxpu: Optional[str] = '20250101'\n", GPU_BUILD),
        (None, CPU_BUILD),
    ],
)
def test_a_plan_and_the_check_count_the_build_of_torch_that_is_installed(
    told: str | None, build: TorchBuild, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that loads one for CUDA took 592 MB where 293 MB were planned."""
    if told is not None:
        (tmp_path / "version.py").write_text(told)
    there = importlib.machinery.ModuleSpec("torch", None, origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: there)
    machine_probe.torch_build.cache_clear()
    try:
        found = machine_probe.torch_build()
        assert found == build
        here = probing.memory()
        assert here.torch == build
        told_by_check = doctor.judge("memory", msgspec.structs.replace(here, usable=1 << 62), 10_000_000).measured
        spec = load(None).spec
        machine = MachineMeasurements(1, 1e9, 1 << 62, found)
        planned = advise(spec, TensorLayout.of(gpt_shapes(spec.model)), 10_000_000, machine).memory
        assert f"the default run takes {format_bytes(planned.network)}" in told_by_check
        lean = memory(spec, TensorLayout.of(gpt_shapes(spec.model)), 10_000_000)
        assert planned.worker - lean.worker == build.resident
        assert bounds_of(spec, 10_000_000).data == 2 * planned.worker + GIB
    finally:
        machine_probe.torch_build.cache_clear()


def test_a_limit_is_raised_only_as_far_as_it_may_be() -> None:
    assert changed("files", soft=47, hard=4096).step == "ulimit -n 1024"
    assert changed("files", soft=64, hard=300).step == "ulimit -n 300"
    assert "limits.conf" in changed("files", soft=64, hard=64).step


def test_a_limit_on_processes_is_lifted_by_whoever_may() -> None:
    assert changed("processes", soft=250).step == "ulimit -u 1000"
    assert "limits.conf" in changed("processes", soft=250, hard=250).step
    assert "--pids-limit" in changed("processes", bound=50, inside=10).step


def test_a_broken_torch_gets_the_step_that_fits() -> None:
    missing = changed("torch", error="ModuleNotFoundError: No module named 'torch'")
    assert (missing.state, missing.step) == (FindingState.WARN, "farflung setup")
    assert "unset PYTHONPATH" in changed("torch", error="ImportError: no", has_python_path=True).step


def test_a_torch_that_takes_too_long_is_not_waited_for() -> None:
    reading = doctor_torch.torch(0.01)
    assert isinstance(reading, r.MissingReading)
    assert "did not load within" in reading.why
    assert "import torch" in reading.step


@pytest.mark.whole
def test_products_of_fewer_bits_are_seen() -> None:
    rounded = doctor_torch.CODE.replace("(x @ y)", "(x.bfloat16() @ y.bfloat16()).float()")
    assert rounded != doctor_torch.CODE
    done = subprocess.run([sys.executable, "-c", rounded], stdout=subprocess.PIPE, check=True)
    reading = msgspec.json.decode(done.stdout, type=r.TorchReading)
    assert (reading.is_exact, reading.is_repeated) == (False, True)


def test_help_fits_a_screen_and_shows_one_example() -> None:
    text = CliRunner().invoke(check.check, ["--help"]).stdout
    assert len(text.splitlines()) <= 24
    assert text.count("Example:") == 1


def test_what_a_probe_refuses_keeps_its_code_and_words() -> None:
    def refuse(seconds: float) -> r.Reading:
        raise RunError("FF-HOST-002", "message", cause="cause", hint="hint")

    reading = probing.measure([CheckProbe("speed", refuse)])["speed"]
    finding = doctor.judge("speed", reading)
    assert finding == ProbeFinding("speed", FindingState.FAILS, "message", "cause", "hint", "FF-HOST-002")


def test_a_probe_that_hangs_or_fails_is_told_as_not_measured() -> None:
    release = threading.Event()

    def hang(seconds: float) -> r.Reading:
        release.wait()
        return GOOD["disk"]

    def fault(seconds: float) -> r.Reading:
        raise KeyError("x")

    asked = [
        CheckProbe("disk", hang, "lane"),
        CheckProbe("loopback", lambda _: GOOD["loopback"], "lane"),  # behind it: cannot be had either
        CheckProbe("cores", fault),
        CheckProbe("data", lambda _: GOOD["data"]),
    ]
    found = probing.measure(asked, 0.3)
    release.set()
    findings = doctor.examine(found)
    assert [one.name for one in findings] == ["disk", "loopback", "cores", "data"]
    assert [one.state for one in findings] == [
        FindingState.UNKNOWN,
        FindingState.UNKNOWN,
        FindingState.UNKNOWN,
        FindingState.OK,
    ]
    assert all(one.measured == MISSED and is_complete(one) for one in findings[:3])
    assert findings[0].cause == "it did not end within 0.3 s"
    assert findings[2].cause == "KeyError: 'x'"


@pytest.mark.whole
def test_all_probes_measure_this_machine(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        asked = probing.probes(tmp_path / "runs", port) + probing.net_probes()
        found = probing.measure(asked, 60.0)
    kinds = {name: type(reading) for name, reading in found.items()}
    assert kinds == {name: type(reading) for name, reading in GOOD.items() if name != "terminal"}
    findings = doctor.examine(found)
    assert all(is_complete(one) for one in findings)
    states = {one.name: one.state for one in findings}
    assert states["port"] == FindingState.FAILS
    assert {states[name] for name in ("python", "data", "random", "runs")} == {FindingState.OK}
    assert found["disk"].rate > 0
    assert found["loopback"].handshake > 0
    seconds = doctor.seconds(found)
    assert seconds is not None
    assert seconds > 0
    assert list(tmp_path.iterdir()) == [], "the check leaves nothing behind"


def test_the_time_of_a_run_is_not_guessed() -> None:
    assert doctor.seconds({**GOOD, "speed": r.MissingReading("it hangs")}) is None


def test_a_place_that_cannot_be_written_is_told_by_its_reason(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"")
    for place in (file, file / "below"):
        assert doctor_storage.disk(place).broken == r.SystemCallFailure(errno.ENOTDIR, "it is no folder")
        found = doctor.judge("runs", doctor_storage.folder(place, "FARFLUNG_RUNS"))
        assert (found.state, found.code) == (FindingState.FAILS, "FF-HOST-083")
        assert found.cause == "it is a file, or lies below one"


def test_a_port_is_free_once_its_listener_is_gone() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        number = listener.getsockname()[1]
        taken = doctor_sockets.port(number).broken
        assert taken is not None
        assert taken.number == errno.EADDRINUSE
    assert doctor_sockets.port(number).broken is None
