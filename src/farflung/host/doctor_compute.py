"""Decides whether this computer can compute well enough: Python, its libraries, PyTorch, cores, memory, limits.

A threshold stands with its reason: it is where a run of the defaults would feel it.
"""

from __future__ import annotations

import re
from typing import Final

from farflung.core.release import INSTALL
from farflung.core.tensor_layout import TensorLayout
from farflung.core.units import format_bytes, format_seconds
from farflung.host import machine_readings as r
from farflung.host.findings import FindingState, ProbeFinding
from farflung.job.gpt_shapes import gpt_shapes
from farflung.job.job_loader import load
from farflung.job.spec_checks import RANGES
from farflung.plan.machine import CPU_BUILD, MachineMeasurements, TorchBuild
from farflung.plan.run_plan import HEADROOM, RunPlan, advise

PYTHON: Final = (3, 11)  # StrEnum, tomllib, exception groups
# Seconds of importing torch; every worker of a run pays it, and shares the cores for it.
SLOW_LOAD: Final = 5.0
SLOW_FLOPS: Final = 5e9  # a core of ten years ago with AVX2 has 30e9; below it NumPy runs without vector code
# Of the cores: a plan reckons with all of them, so below it a run takes twice its plan.
FREE_SHARE: Final = 0.5
LEAST_FILES: Final = 48  # the supervisor of the default run holds 29 descriptors, a node 17
FEW_FILES: Final = 256  # what a worker is given (host.limits)
LEAST_PROCESSES: Final = 100  # the default run is some 40 processes with 90 threads, which count alike
FEW_PROCESSES: Final = 400
MOST: Final = "no limit on"


def default_plan(size: int, flops: float, cores: int, torch: TorchBuild = CPU_BUILD) -> RunPlan:
    """The default run on such a machine: `size` bytes of data. Memory is judged by `judge`, so none is refused here."""
    return plan_of("local", size, flops, cores, torch)


def plan_of(preset: str, size: int, flops: float, cores: int, torch: TorchBuild = CPU_BUILD) -> RunPlan:
    """A preset's run on such a machine, whose memory is judged by `memory` and so refused nowhere else."""
    spec = load(None, preset=preset).spec
    size = min(size, spec.data.limit or size)
    machine = MachineMeasurements(cores, flops, 1 << 62, torch)
    return advise(spec, TensorLayout.of(gpt_shapes(spec.model)), size, machine)


def python(reading: r.PythonReading) -> ProbeFinding:
    """The interpreter."""
    wanted = ".".join(map(str, PYTHON))
    measured = f"{reading.implementation} {'.'.join(map(str, reading.version))}, {reading.bits} bits"
    if reading.version < PYTHON:
        cause = f"farflung needs Python {wanted} or newer"
        step = f"python{wanted} -m venv .venv && .venv/bin/{INSTALL}"
    elif reading.bits < 64:
        cause = "a 32-bit Python cannot map a model, and PyTorch is not made for it"
        step = f"install a 64-bit Python {wanted} or newer, and farflung anew with it"
    else:
        return ProbeFinding("python", FindingState.OK, measured)
    return ProbeFinding("python", FindingState.FAILS, measured, cause, step, "FF-HOST-080")


def _numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: `2.13.0+cpu` is (2, 13, 0)."""
    found = re.match(r"[0-9]+(\.[0-9]+)*", version)
    return tuple(map(int, found[0].split("."))) if found else ()


def libraries(reading: r.LibrariesReading) -> ProbeFinding:
    """What farflung itself is made with."""
    lacking = [name for name, _, have in reading.wanted if not have]
    old = [f"{name} {have}" for name, want, have in reading.wanted if have and _numbers(have) < _numbers(want)]
    good = len(reading.wanted) - len(lacking) - len(old)
    measured = f"{good} of {len(reading.wanted)} that farflung needs"
    if not lacking and not old:
        return ProbeFinding("libraries", FindingState.OK, f"all {good} that farflung needs, none too old")
    cause = "; ".join([f"{name} is not installed" for name in lacking] + [f"{one} is too old" for one in old])
    return ProbeFinding(
        "libraries", FindingState.FAILS, measured, cause, f"in farflung's source folder: {INSTALL}", "FF-HOST-080"
    )


def torch(reading: r.TorchReading) -> ProbeFinding:
    """PyTorch: whether it loads, and whether its float32 is float32 (audits compare what others computed)."""
    if "No module named 'torch'" in reading.error:
        cause = "without it this computer runs a ledger, a relay or a client, and cannot train or verify"
        return ProbeFinding("torch", FindingState.WARN, "is not installed", cause, "farflung setup")
    if reading.error:
        step = "pip install --force-reinstall torch"
        if reading.has_python_path:
            step = f"unset PYTHONPATH; else {step}"
        return ProbeFinding("torch", FindingState.FAILS, "does not load", reading.error, step, "FF-HOST-081")
    onednn = "oneDNN on" if reading.has_onednn else "oneDNN off"
    measured = f"{reading.version}, loads in {format_seconds(reading.load_seconds)}, {onednn},"
    measured += f" {reading.threads} thread" + ("s" if reading.threads != 1 else "")
    if not reading.is_exact or not reading.is_repeated:
        what = (
            "float32 products are rounded to fewer bits"
            if not reading.is_exact
            else "the same product twice gave other bits"
        )
        step = "pip install --force-reinstall torch"
        return ProbeFinding(
            "torch", FindingState.FAILS, measured, f"{what}: audits would not agree", step, "FF-HOST-081"
        )
    if reading.load_seconds > SLOW_LOAD:
        cause = "every worker of a run loads it; the disk is slow, or the cores are busy"
        return ProbeFinding(
            "torch", FindingState.SLOW, measured, cause, "farflung check, once more: now it is in memory"
        )
    return ProbeFinding("torch", FindingState.OK, f"{measured}, exact float32; {_cards(reading)}")


def _cards(reading: r.TorchReading) -> str:
    """The cards that it can use. That a driver is there and no card can be used says that the build is another one."""
    driver = f"driver {reading.driver}" if reading.driver else ""
    if not reading.cards:
        return f"no card that this PyTorch can use ({driver}: farflung setup)" if driver else "no card"
    each = [
        f"{card.kind}:{card.number} {card.name}, {format_bytes(card.memory)}, {'bf16' if card.has_bf16 else 'no bf16'}"
        for card in reading.cards
    ]
    return "; ".join([*each, *([driver] if driver else [])])


def speed(reading: r.ComputeSpeedReading) -> ProbeFinding:
    """How fast one core multiplies."""
    measured = f"{reading.flops / 1e9:.3g} GFLOP/s a core, float32"
    if reading.flops < SLOW_FLOPS:
        cause = "NumPy finds no vector instructions, or the core is emulated or shared with others"
        step = 'python -c "import numpy; numpy.show_config()" shows what NumPy found'
        return ProbeFinding("speed", FindingState.SLOW, measured, cause, step)
    return ProbeFinding("speed", FindingState.OK, measured)


def cores(reading: r.CoresReading) -> ProbeFinding:
    """How many cores there are, and how many of them others leave."""
    free = max(0.0, min(float(reading.usable), reading.present - reading.load))
    of = f" of {reading.present}" if reading.present != reading.usable else ""
    measured = f"{reading.usable}{of} to use, {free:.1f} free, load {reading.load:.1f}"
    if free < FREE_SHARE * reading.usable:
        cause = "other programs keep the cores busy, and a run takes longer than its plan"
        return ProbeFinding("cores", FindingState.SLOW, measured, cause, "top -o %CPU shows which; end or pause them")
    return ProbeFinding("cores", FindingState.OK, measured)


def memory(reading: r.MemoryReading, size: int) -> ProbeFinding:
    """What can be used now against what the default run takes, and what fits where that does not."""
    plan = default_plan(size, 1e9, 1, reading.torch)
    need, providers = plan.memory, plan.spec.network.providers
    bound = f", the container allows {format_bytes(reading.bound)}" if reading.bound else ""
    measured = f"{format_bytes(reading.usable)} of {format_bytes(reading.total)} to use{bound};"
    measured += f" the default run takes {format_bytes(need.network)}"
    usable = int(reading.usable * HEADROOM)
    if need.network <= usable:
        return ProbeFinding("memory", FindingState.OK, measured)
    fit = need.members_in(usable, providers)
    if fit >= RANGES["network.providers"].low:
        step = f"farflung run --set network.providers={fit}"
    elif plan_of("tiny", size, 1e9, 1, reading.torch).memory.network <= usable:
        step = "farflung run --preset tiny, or end other programs"
    else:
        step = "end other programs, or take a computer with more memory: `free -h` shows what is taken"
    cause = f"it has {need.workers} workers of {format_bytes(need.worker)}, and agents"
    return ProbeFinding("memory", FindingState.FAILS, measured, cause, step, "FF-HOST-082")


def files(reading: r.OpenFilesReading) -> ProbeFinding:
    """RLIMIT_NOFILE: a connection, a log and a store each take one."""
    soft, hard = (MOST if n < 0 else str(n) for n in (reading.soft, reading.hard))
    measured = f"{soft} open files a process" + (f", up to {hard} if asked" if hard != soft else "")
    if reading.soft < 0 or reading.soft >= FEW_FILES:
        return ProbeFinding("files", FindingState.OK, measured)
    can_ask = reading.hard < 0 or reading.hard >= FEW_FILES
    step = "ulimit -n 1024" if can_ask and reading.hard not in range(1024) else f"ulimit -n {reading.hard}"
    if not can_ask:
        step = "as root, add `* hard nofile 4096` to /etc/security/limits.conf, and log in again"
    few = reading.soft < LEAST_FILES
    cause = f"the default run holds 30 in one process, larger ones more; {FEW_FILES} do for most"
    state, code = (FindingState.FAILS, "FF-HOST-086") if few else (FindingState.WARN, "")  # too few of them
    return ProbeFinding("files", state, measured, cause, step, code)


def processes(reading: r.ProcessesReading) -> ProbeFinding:
    """RLIMIT_NPROC and the container's bound: threads count as processes."""
    rooms = [(reading.soft - reading.running, "RLIMIT_NPROC")] if reading.soft >= 0 else []
    if reading.bound >= 0:
        rooms.append((reading.bound - reading.inside, "the container"))
    running = f"{reading.running} of yours run now"
    if not rooms:
        return ProbeFinding("processes", FindingState.OK, f"no limit on processes and threads; {running}")
    room, whose = min(rooms)
    measured = f"room for {max(0, room)} more processes and threads; {running}"
    if room >= FEW_PROCESSES:
        return ProbeFinding("processes", FindingState.OK, measured)
    cause = f"{whose} bounds them, and the default run starts {LEAST_PROCESSES}"
    wanted = reading.running + 2 * FEW_PROCESSES
    step = f"ulimit -u {wanted}"
    if 0 <= reading.hard < wanted:
        step = f"as root, add `* hard nproc {2 * wanted}` to /etc/security/limits.conf, and log in again"
    if whose != "RLIMIT_NPROC":
        step = "give the container more, as with docker run --pids-limit 2000"
    state, code = (FindingState.FAILS, "FF-HOST-086") if room < LEAST_PROCESSES else (FindingState.WARN, "")
    return ProbeFinding("processes", state, measured, cause, step, code)


def random(reading: r.RandomReading) -> ProbeFinding:
    """The system's generator: keys of everybody come from it."""
    if reading.is_ready:
        return ProbeFinding("random", FindingState.OK, "the system's generator is seeded")
    cause = "the kernel has gathered too little noise since it started, and keys would wait for it"
    step = "wait a minute, then farflung check; on a virtual machine add a virtio-rng device"
    return ProbeFinding(
        "random", FindingState.FAILS, "the system's generator is not seeded", cause, step, "FF-HOST-087"
    )
