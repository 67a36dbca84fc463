"""Decides what a reading of this computer means: ok, slow, warn or fails, why, and exactly what to do next.

Every finding that is not good names a cause and a step; what could not be measured says so. The rules and their
thresholds are in `doctor_computing`, `doctor_surroundings` and `doctor_network`.
"""

from __future__ import annotations

from collections.abc import Mapping

from farflung.core.units import format_bytes
from farflung.host import doctor_compute as computing
from farflung.host import doctor_congestion as network
from farflung.host import doctor_environment as surroundings
from farflung.host import machine_readings as r
from farflung.host.findings import MISSED, FindingState, ProbeFinding


def examine(found: Mapping[str, r.Reading]) -> list[ProbeFinding]:
    """All readings judged, in their order."""
    data = found.get("data")
    size = data.size if isinstance(data, r.DefaultDataReading) else 0
    return [judge(name, reading, size) for name, reading in found.items()]


def seconds(found: Mapping[str, r.Reading]) -> float | None:
    """How long the default run would take here; None where it cannot be told."""
    data, speed, cores = (found.get(name) for name in ("data", "speed", "cores"))
    if not (
        isinstance(data, r.DefaultDataReading)
        and isinstance(speed, r.ComputeSpeedReading)
        and isinstance(cores, r.CoresReading)
    ):
        return None
    return computing.default_plan(data.size, max(1.0, speed.flops), cores.usable).duration.total


def judge(name: str, reading: r.Reading, size: int = 0) -> ProbeFinding:  # one line a kind
    """What a reading means. `size`: bytes of the default run's data."""
    match reading:
        case r.MissingReading():
            step = reading.step or "farflung check, once more and with less else running"
            return ProbeFinding(name, FindingState.UNKNOWN, MISSED, reading.why, step)
        case r.ProbeErrorReading():
            return ProbeFinding(name, FindingState.FAILS, reading.message, reading.cause, reading.hint, reading.code)
        case r.PythonReading():
            return computing.python(reading)
        case r.LibrariesReading():
            return computing.libraries(reading)
        case r.TorchReading():
            return computing.torch(reading)
        case r.ComputeSpeedReading():
            return computing.speed(reading)
        case r.CoresReading():
            return computing.cores(reading)
        case r.MemoryReading():
            return computing.memory(reading, size)
        case r.DiskReading():
            return surroundings.disk(reading)
        case r.FolderReading():
            return surroundings.folder(name, reading)
        case r.ClockReading():
            return surroundings.clock(reading)
        case r.LoopbackReading():
            return surroundings.loopback(reading)
        case r.PortRangeReading():
            return surroundings.ports(reading)
        case r.PortReading():
            return surroundings.port(reading)
        case r.CongestionReading():
            return network.congestion(reading)
        case r.OpenFilesReading():
            return computing.files(reading)
        case r.ProcessesReading():
            return computing.processes(reading)
        case r.DefaultDataReading():
            measured = f"{reading.files} files of Python's own library, {format_bytes(reading.size)}"
            return ProbeFinding("data", FindingState.OK, measured)
        case r.RandomReading():
            return computing.random(reading)
        case r.TerminalReading():
            return surroundings.terminal(reading)
        case r.ExtrasReading():
            return surroundings.extras(reading)
        case r.SandboxReading():
            return surroundings.sandbox(reading)
