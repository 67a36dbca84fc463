"""Describes a machine in numbers: those that a plan computes with, and those that a provider declares of one slot."""

from __future__ import annotations

from typing import Final

import msgspec

from farflung.core.codec import Wire


class TorchBuild(msgspec.Struct, frozen=True):
    """What a process that loads this build of PyTorch takes more than with the one for CPUs alone, in resident bytes.

    `shared`: of them, pages of its libraries, which all processes of one machine have in common.
    """

    resident: int = 0
    shared: int = 0


# A process after its first backward pass, torch 2.13 on Linux: 237 MB (cpu), 534 MB (cu130); of files 87 and 244 MB.
CPU_BUILD: Final = TorchBuild()
GPU_BUILD: Final = TorchBuild(297_000_000, 156_000_000)


class MachineMeasurements(msgspec.Struct, frozen=True):
    """What `host.io.machine_probe` measured: usable cores, single-thread float32 FLOP/s of one, memory to use,
    and the build of PyTorch that is installed."""

    cores: int
    flops_per_core: float
    memory_bytes: int
    torch: TorchBuild = CPU_BUILD


class Capabilities(Wire, frozen=True):
    """One slot's share of a machine: whole numbers, FLOP/s of single-thread float32 sgemm."""

    cores: int
    memory_bytes: int
    disk_bytes: int
    flops: int
    threads: int  # that one worker may use
    system: str  # operating system, as `platform.system()` says
    machine: str  # processor architecture
    torch: str  # version of PyTorch
