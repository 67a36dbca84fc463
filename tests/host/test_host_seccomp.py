"""The filter, read instruction by instruction as the kernel does, for every call on both architectures."""

from __future__ import annotations

import errno
import struct

import pytest

from farflung.host import seccomp

PID = 4711
EPERM, ENOSYS = seccomp.ERRNO | errno.EPERM, seccomp.ERRNO | errno.ENOSYS
THREAD = 0x3D0F00  # what the C library's pthread_create asks for
MACHINES = pytest.mark.parametrize("machine", seccomp.ARCHITECTURES)


def judge(code: bytes, arch: int, number: int, *arguments: int) -> int:
    """The verdict of a classic BPF program on one `struct seccomp_data`."""
    padded = [*arguments, *[0] * (6 - len(arguments))]
    data = struct.pack("<IIQ6Q", number & 0xFFFFFFFF, arch, 0, *[a & (1 << 64) - 1 for a in padded])
    lines = [struct.unpack_from("<HBBI", code, at) for at in range(0, len(code), 8)]
    accumulator = at = 0
    while True:
        what, if_true, if_false, value = lines[at]
        at += 1
        match what:
            case 0x20:
                (accumulator,) = struct.unpack_from("<I", data, value)
            case 0x06:
                return value
            case 0x15:
                at += if_true if accumulator == value else if_false
            case 0x25:
                at += if_true if accumulator > value else if_false
            case 0x35:
                at += if_true if accumulator >= value else if_false
            case 0x45:
                at += if_true if accumulator & value else if_false
            case _:
                raise AssertionError(f"instruction {what:#x}")


def verdict(machine: str, call: str | int, *arguments: int) -> int:
    number = seccomp.numbers(machine)[call] if isinstance(call, str) else call
    return judge(seccomp.program(machine, PID), seccomp.ARCHITECTURES[machine], number, *arguments)


@MACHINES
def test_every_number_has_the_verdict_of_its_name(machine: str) -> None:
    names = {number: name for name, number in seccomp.numbers(machine).items()}
    expected = dict.fromkeys(seccomp.DENIED, EPERM)
    # with all arguments 0: no thread, process 0 (its group), the process itself, no terminal
    expected |= {"clone": EPERM, "clone3": ENOSYS, "kill": EPERM, "tgkill": EPERM, "prctl": EPERM}
    expected |= {"prlimit64": seccomp.ALLOW, "ioctl": EPERM, "fcntl": seccomp.ALLOW}
    for number in range(seccomp.LAST_KNOWN + 1):
        assert verdict(machine, number) == expected.get(names.get(number, ""), seccomp.ALLOW), number
    for number in (seccomp.LAST_KNOWN + 1, 462, 1000, 0x3FFFFFFF):
        assert verdict(machine, number) == ENOSYS


@MACHINES
def test_what_must_never_be_allowed_is_named(machine: str) -> None:
    never = (
        "socket connect ptrace io_uring_setup bpf mount unshare userfaultfd setns keyctl process_vm_readv pidfd_getfd "
        "perf_event_open open_by_handle_at kexec_load inotify_add_watch fgetxattr"
    )
    assert {call: verdict(machine, call) for call in never.split()} == dict.fromkeys(never.split(), EPERM)


def test_numbers_are_those_of_the_headers() -> None:
    x86, arm = seccomp.numbers("x86_64"), seccomp.numbers("aarch64")
    assert (x86["socket"], x86["ptrace"], x86["fork"], x86["mount"], x86["bpf"]) == (41, 101, 57, 165, 321)
    assert (arm["socket"], arm["ptrace"], arm["mount"], arm["bpf"], arm["clone"]) == (198, 117, 40, 280, 220)
    assert "fork" not in arm
    for numbers in (x86, arm):
        assert len(set(numbers.values())) == len(numbers)


@MACHINES
def test_other_architectures_are_killed(machine: str) -> None:
    code = seccomp.program(machine, PID)
    for arch in (0x4000_0003, 0x4000_0028, 0, *(set(seccomp.ARCHITECTURES.values()))):
        if arch != seccomp.ARCHITECTURES[machine]:
            assert judge(code, arch, 0) == seccomp.KILL


def test_x32_is_killed() -> None:
    for number in (0x4000_0000, 0x4000_0000 | 41, 0xFFFF_FFFF):
        assert verdict("x86_64", number) == seccomp.KILL


@MACHINES
def test_clone_makes_threads_and_nothing_else(machine: str) -> None:
    assert verdict(machine, "clone", THREAD) == seccomp.ALLOW
    assert verdict(machine, "clone", 17) == EPERM  # fork: SIGCHLD
    assert verdict(machine, "clone", 0x4111) == EPERM  # vfork
    for bit in (0x80, 0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
        assert verdict(machine, "clone", THREAD | bit) == EPERM


@MACHINES
def test_no_pipe_is_given_an_owner_who_would_be_signalled(machine: str) -> None:
    for command in (8, 15):  # F_SETOWN, F_SETOWN_EX
        assert verdict(machine, "fcntl", 3, command, PID) == EPERM
    for request in (0x8901, 0x8902):  # FIOSETOWN, SIOCSPGRP
        assert verdict(machine, "ioctl", 3, request, PID) == EPERM
    for command in (1, 2, 3, 4, 5, 6, 7, 9, 10, 1030, 1031, 1032, 1033):
        assert verdict(machine, "fcntl", 3, command) == seccomp.ALLOW


@MACHINES
def test_no_driver_and_no_network_is_asked_through_a_descriptor(machine: str) -> None:
    """SIOCGIFCONF, SIOCGIFADDR, SIOCGIFHWADDR, SIOCGARP, SIOCOUTQ, FIBMAP, FS_IOC_GETFLAGS, PIDFD_GET_INFO."""
    for request in (0x8912, 0x8915, 0x8927, 0x8954, 0x5411, 1, 0x80086601, 0xC040FF0B, 0):
        assert verdict(machine, "ioctl", 3, request) == EPERM, request


@MACHINES
def test_signals_and_limits_reach_only_itself(machine: str) -> None:
    for call in ("kill", "tgkill"):
        assert verdict(machine, call, PID, PID) == seccomp.ALLOW
        for other in (0, 1, -1, -PID, PID + 1):
            assert verdict(machine, call, other, PID) == EPERM
    assert verdict(machine, "prlimit64", PID) == seccomp.ALLOW
    assert verdict(machine, "prlimit64", PID - 1) == EPERM


@MACHINES
def test_nothing_is_typed_into_a_terminal(machine: str) -> None:
    for request in (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451, 0x802C542A, (1 << 32) | 0x5401):
        assert verdict(machine, "ioctl", 1, request) == seccomp.ALLOW
    for request in (0x5412, 0x541C, (1 << 32) | 0x5412):
        assert verdict(machine, "ioctl", 1, request) == EPERM


@MACHINES
def test_no_option_lets_a_worker_live_on_adopt_or_hide(machine: str) -> None:
    """PDEATHSIG, KEEPCAPS, DUMPABLE, SECCOMP, CAPBSET_DROP, SECUREBITS, MM, SUBREAPER, NO_NEW_PRIVS, CAP_AMBIENT,
    SPECULATION, IO_FLUSHER, SCHED_CORE, MDWE, MEMORY_MERGE, PTRACER, and one that nobody knows yet.
    """
    for option in (1, 4, 8, 22, 24, 28, 35, 36, 38, 47, 53, 57, 59, 62, 65, 67, 0x59616D61, 99_999, (1 << 32) | 1):
        assert verdict(machine, "prctl", option) == EPERM, option
    for option in (15, 16, 23, 39, 41, 0x53564D41, (1 << 32) | 15):
        assert verdict(machine, "prctl", option) == seccomp.ALLOW, option


@MACHINES
def test_the_program_fits_the_kernels_bound(machine: str) -> None:
    assert len(seccomp.program(machine, PID)) % 8 == 0
    assert len(seccomp.program(machine, PID)) // 8 <= 4096
