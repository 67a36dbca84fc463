"""Decides what a reading of this computer means: ok, slow, warn or fails, why, and exactly what to do next.

Every finding that is not good names a cause and a step; what could not be measured says so. The rules and their
thresholds are in `doctor_computing`, `doctor_surroundings` and `doctor_network`.
"""

from __future__ import annotations

from collections.abc import Mapping

from farflung.core.units import format_bytes
from farflung.host import doctor_computing as computing
from farflung.host import doctor_network as network
from farflung.host import doctor_surroundings as surroundings
from farflung.host import readings as r
from farflung.host.findings import MISSED, Finding, State


def examine(found: Mapping[str, r.Reading]) -> list[Finding]:
    """All readings judged, in their order."""
    data = found.get("data")
    size = data.size if isinstance(data, r.Data) else 0
    return [judge(name, reading, size) for name, reading in found.items()]


def seconds(found: Mapping[str, r.Reading]) -> float | None:
    """How long the default run would take here; None where it cannot be told."""
    data, speed, cores = (found.get(name) for name in ("data", "speed", "cores"))
    if not (isinstance(data, r.Data) and isinstance(speed, r.Speed) and isinstance(cores, r.Cores)):
        return None
    return computing.default_plan(data.size, max(1.0, speed.flops), cores.usable).duration.total


def judge(name: str, reading: r.Reading, size: int = 0) -> Finding:  # one line a kind
    """What a reading means. `size`: bytes of the default run's data."""
    match reading:
        case r.Missed():
            step = reading.step or "farflung check, once more and with less else running"
            return Finding(name, State.UNKNOWN, MISSED, reading.why, step)
        case r.Refused():
            return Finding(name, State.FAILS, reading.message, reading.cause, reading.hint, reading.code)
        case r.Python():
            return computing.python(reading)
        case r.Libraries():
            return computing.libraries(reading)
        case r.Torch():
            return computing.torch(reading)
        case r.Speed():
            return computing.speed(reading)
        case r.Cores():
            return computing.cores(reading)
        case r.MemoryLeft():
            return computing.memory(reading, size)
        case r.Disk():
            return surroundings.disk(reading)
        case r.Folder():
            return surroundings.folder(name, reading)
        case r.Clock():
            return surroundings.clock(reading)
        case r.Loopback():
            return surroundings.loopback(reading)
        case r.Ports():
            return surroundings.ports(reading)
        case r.Port():
            return surroundings.port(reading)
        case r.Congestion():
            return network.congestion(reading)
        case r.Files():
            return computing.files(reading)
        case r.Processes():
            return computing.processes(reading)
        case r.Data():
            measured = f"{reading.files} files of Python's own library, {format_bytes(reading.size)}"
            return Finding("data", State.OK, measured)
        case r.Random():
            return computing.random(reading)
        case r.Terminal():
            return surroundings.terminal(reading)
        case r.Extras():
            return surroundings.extras(reading)
        case r.Sandbox():
            return surroundings.sandbox(reading)
