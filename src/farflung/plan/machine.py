"""Describes a machine in numbers: those that a plan computes with, and those that a provider declares of one slot."""

from __future__ import annotations

import msgspec

from farflung.core.codec import Wire


class MachineMeasurements(msgspec.Struct, frozen=True):
    """What `host.io.machine_probe` measured: usable cores, single-thread float32 FLOP/s of one, memory to use."""

    cores: int
    flops_per_core: float
    memory_bytes: int


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
