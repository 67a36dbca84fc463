"""Defines the measurements that `farflung check` takes of a computer, as data: one struct per probe.

`host.io.doctor_probes*` fills them, `host.doctor` judges them. Bytes, seconds and bytes per second throughout.
"""

from __future__ import annotations

import msgspec

from farflung.host.sandbox import SandboxTier
from farflung.plan.machine import CPU_BUILD, TorchBuild


class MissingReading(msgspec.Struct, frozen=True):
    """A probe that found nothing out, why, and what to do about that. Never the same as a good reading."""

    why: str
    step: str = ""


class ProbeErrorReading(msgspec.Struct, frozen=True):
    """A probe that met an error of ours, which has its own code, cause and next step."""

    code: str
    message: str
    cause: str
    hint: str


class SystemCallFailure(msgspec.Struct, frozen=True):
    """What the operating system said instead of doing it: its number (0: none of its own) and its words."""

    number: int
    words: str


class PythonReading(msgspec.Struct, frozen=True):
    """The interpreter that runs farflung."""

    version: tuple[int, int, int]
    implementation: str
    bits: int


class LibrariesReading(msgspec.Struct, frozen=True):
    """What farflung's own metadata asks for: (name, version wanted, version found; "" is none)."""

    wanted: tuple[tuple[str, str, str], ...]


class CardReading(msgspec.Struct, frozen=True):
    """One card that PyTorch can use. `kind`: as a node's device is called; bytes."""

    kind: str
    number: int
    name: str
    memory: int
    has_bf16: bool


class TorchReading(msgspec.Struct, frozen=True):
    """PyTorch in a process of its own. `error` is the last thing that it said when it did not come up."""

    version: str = ""
    load_seconds: float = 0.0
    is_exact: bool = False  # products of whole numbers are exact, as float32 can hold them
    is_repeated: bool = False  # the same product twice gives the same bits
    has_onednn: bool = False
    threads: int = 0  # as a worker has them
    error: str = ""
    has_python_path: bool = False  # PYTHONPATH is set, which may hide the installed one
    cards: tuple[CardReading, ...] = ()
    driver: str = ""  # version of NVIDIA's, where there is one


class ComputeSpeedReading(msgspec.Struct, frozen=True):
    """float32 FLOP/s of one core, as `host.io.probe.sgemm_flops` measures them."""

    flops: float


class CoresReading(msgspec.Struct, frozen=True):
    """Cores that may be used here (affinity, container), that the machine has, and its load of the last minute."""

    usable: int
    present: int
    load: float


class MemoryReading(msgspec.Struct, frozen=True):
    """Memory of the machine, what a run may take of it now, the container's bound (0: none), and the build of PyTorch
    that its workers load.
    """

    total: int
    usable: int
    bound: int
    torch: TorchBuild = CPU_BUILD


class DiskReading(msgspec.Struct, frozen=True):
    """The disk under `folder`: room, and how long it takes until written data is safe."""

    folder: str
    free: int
    rate: float = 0.0  # of a few MB, fsync included
    sync: float = 0.0  # of one fsync of a small record, median
    broken: SystemCallFailure | None = None


class FolderReading(msgspec.Struct, frozen=True):
    """Whether a file can be made where runs, or temporary files, go. `variable` moves that place.

    `ignored`: what the variable names, where that is not used because it cannot be.
    """

    path: str
    variable: str
    exists: bool = True
    broken: SystemCallFailure | None = None
    ignored: str = ""


class ClockReading(msgspec.Struct, frozen=True):
    """The wall clock against all that is at hand without asking anybody."""

    now: float  # since the epoch
    window: float  # over which it was watched
    jump: float  # wall minus monotonic over that window
    file_skew: float | None  # a new file's time minus the clock; None: could not be had
    since_package: float | None  # the clock minus the newest file of this package
    is_kept: bool | None  # the kernel says that a time service keeps it; None: it does not say


class LoopbackReading(msgspec.Struct, frozen=True):
    """A connection of farflung's own kind from this process to itself."""

    handshake: float = 0.0  # connect, and TLS until both ends are ready
    round_trip: float = 0.0  # median of one byte, there and back
    rate: float = 0.0
    broken: SystemCallFailure | None = None


class PortRangeReading(msgspec.Struct, frozen=True):
    """Ports that the system hands out by itself (first and last; 0, 0: it does not say); how many were free."""

    first: int
    last: int
    asked: int
    bound: int


class PortReading(msgspec.Struct, frozen=True):
    """One port on 127.0.0.1 that somebody wants to use."""

    number: int
    broken: SystemCallFailure | None = None


class CongestionReading(msgspec.Struct, frozen=True):
    """TCP's congestion control, by asking for the `wanted` one on a socket of this user.

    `own` and `got`: what the socket had before and after ("": the system does not say); `refusal`: the system's error
    number, 0 for none. Of the whole system: what it has loaded, what it lets any user choose, and whether its kernel
    has the wanted one at all, as a module or built in (None: could not be told).
    """

    system: str  # sys.platform
    wanted: str
    own: str
    got: str
    refusal: int
    available: tuple[str, ...] = ()
    allowed: tuple[str, ...] = ()
    is_in_kernel: bool | None = None


class OpenFilesReading(msgspec.Struct, frozen=True):
    """RLIMIT_NOFILE, and how many descriptors this process holds. -1: no limit."""

    soft: int
    hard: int


class ProcessesReading(msgspec.Struct, frozen=True):
    """RLIMIT_NPROC with what the user has running, and the container's bound with its own count. -1: no limit."""

    soft: int
    running: int
    bound: int
    inside: int
    hard: int = -1


class DefaultDataReading(msgspec.Struct, frozen=True):
    """The default run's data: Python's own library."""

    files: int
    size: int


class RandomReading(msgspec.Struct, frozen=True):
    """Whether the system's generator is seeded: keys come from it."""

    is_ready: bool


class TerminalReading(msgspec.Struct, frozen=True):
    """Where text goes. `columns` is 0 where it goes to no terminal."""

    columns: int
    encoding: str
    names: str  # encoding of file names


class ExtrasReading(msgspec.Struct, frozen=True):
    """Optional parts: (name, version; "" is not installed)."""

    parts: tuple[tuple[str, str], ...]


class TierReading(msgspec.Struct, frozen=True):
    """One sandbox tier on this machine: why it does not work ("" if it does), and the command that would help."""

    tier: SandboxTier
    why: str
    command: str


class SandboxReading(msgspec.Struct, frozen=True):
    """The tier that workers get ("" with `refused`), all tiers strongest first, and the variable that names one."""

    chosen: str
    tiers: tuple[TierReading, ...]
    variable: str
    refused: ProbeErrorReading | None = None


Reading = (
    MissingReading
    | ProbeErrorReading
    | PythonReading
    | LibrariesReading
    | TorchReading
    | ComputeSpeedReading
    | CoresReading
    | MemoryReading
    | DiskReading
    | FolderReading
    | ClockReading
    | LoopbackReading
    | PortRangeReading
    | PortReading
    | CongestionReading
    | OpenFilesReading
    | ProcessesReading
    | DefaultDataReading
    | RandomReading
    | TerminalReading
    | ExtrasReading
    | SandboxReading
)
