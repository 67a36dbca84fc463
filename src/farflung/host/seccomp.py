"""Builds the classic BPF program for the kernel's seccomp filter: the system calls a sandboxed worker may make.

A worker computes, reads what is mapped for it, writes to its scratch and speaks over one descriptor that it was
given. Whatever reaches beyond that is refused with EPERM: sockets, other processes, other processes' memory, new
processes, mounts and namespaces, kernel modules, keys, io_uring (whose operations no filter sees), descriptors of
the file system by handle, metadata that Landlock does not guard (modes, owners, extended attributes).

    foreign architecture, x32      kill: no honest program gets here, and numbers there mean other calls
    clone3                         ENOSYS: its flags lie in memory, where a filter cannot read; C libraries then
    anything newer than this list  fall back to an older call that can be judged
    clone                          only a thread: CLONE_THREAD, and no new namespace
    kill, tgkill, prlimit64        only to itself: the process number is part of the program
    fcntl                          not F_SETOWN and its like: the owner of a pipe gets whatever signal is chosen for it
    ioctl                          only whether it is a terminal, how much can be read, whether it waits, whether exec
                                   keeps it: any other asks a driver, types into a terminal, or has the socket that it
                                   inherits name the interfaces and addresses of the host
    prctl                          only names of threads and memory, huge pages, vector widths, and questions: a worker
                                   does not switch off the signal by which it ends with its agent, adopt processes,
                                   hide its memory's owner, choose who traces it or with whom it shares a core

The kernel caches by number which calls are always allowed (since 5.11): they cost nothing that can be measured.
Sources: kernel Documentation/userspace-api/seccomp_filter.rst; numbers from the kernel's uapi headers of 6.5.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Mapping
from typing import Final

ALLOW: Final = 0x7FFF_0000
KILL: Final = 0x8000_0000
ERRNO: Final = 0x0005_0000
LAST_KNOWN: Final = 451  # cachestat; newer calls do not exist for a worker

CLONE_THREAD: Final = 0x0001_0000
# CLONE_NEWTIME, NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET
CLONE_NAMESPACES: Final = 0x80 | 0x0002_0000 | 0x0200_0000 | 0x0400_0000 | 0x0800_0000 | 0x7000_0000
# asm-generic/ioctls.h, as both architectures have it
OF_A_DESCRIPTOR: Final = (
    0x5401,  # TCGETS
    0x802C_542A,  # TCGETS2
    0x5413,  # TIOCGWINSZ
    0x541B,  # FIONREAD
    0x5421,  # FIONBIO
    0x5450,  # FIONCLEX
    0x5451,  # FIOCLEX
)
OWNERS_BY_FCNTL: Final = (8, 15)  # F_SETOWN, F_SETOWN_EX
# Options of prctl that a program is free to use: linux/prctl.h of 6.12. Each library asks for a few of them when it is
# loaded and goes on without; a newer option is refused like a newer call.
OF_ITSELF: Final = (
    2,  # PR_GET_PDEATHSIG
    3,  # PR_GET_DUMPABLE
    15,  # PR_SET_NAME
    16,  # PR_GET_NAME
    21,  # PR_GET_SECCOMP
    23,  # PR_CAPBSET_READ
    27,  # PR_GET_SECUREBITS
    29,  # PR_SET_TIMERSLACK
    30,  # PR_GET_TIMERSLACK
    39,  # PR_GET_NO_NEW_PRIVS
    41,  # PR_SET_THP_DISABLE
    42,  # PR_GET_THP_DISABLE
    50,  # PR_SVE_SET_VL
    51,  # PR_SVE_GET_VL
    54,  # PR_PAC_RESET_KEYS
    55,  # PR_SET_TAGGED_ADDR_CTRL
    56,  # PR_GET_TAGGED_ADDR_CTRL
    63,  # PR_SME_SET_VL
    64,  # PR_SME_GET_VL
    0x4155_5856,  # PR_GET_AUXV
    0x5356_4D41,  # PR_SET_VMA: names of memory, by which a C library marks its own
)
X32_BIT: Final = 0x4000_0000

# AUDIT_ARCH_* by the machine's name as `platform.machine` gives it
ARCHITECTURES: Final[Mapping[str, int]] = {"x86_64": 0xC000_003E, "aarch64": 0xC000_00B7}
_COLUMN: Final[Mapping[str, int]] = {"x86_64": 0, "aarch64": 1}

# name: (x86_64, aarch64); None where the architecture has no such call
JUDGED: Final[Mapping[str, tuple[int | None, int | None]]] = {
    "clone": (56, 220),
    "clone3": (435, 435),
    "kill": (62, 129),
    "tgkill": (234, 131),
    "prlimit64": (302, 261),
    "ioctl": (16, 29),
    "fcntl": (72, 25),
    "prctl": (157, 167),
}
DENIED: Final[Mapping[str, tuple[int | None, int | None]]] = {
    # sockets: the one it has is inherited
    "socket": (41, 198),
    "socketpair": (53, 199),
    "connect": (42, 203),
    "bind": (49, 200),
    "listen": (50, 201),
    "accept": (43, 202),
    "accept4": (288, 242),
    # other processes and their memory
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "kcmp": (312, 272),
    "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438),
    "pidfd_send_signal": (424, 424),
    "tkill": (200, 130),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "setpriority": (141, 140),
    "ioprio_set": (251, 30),
    "sched_setscheduler": (144, 119),
    "sched_setparam": (142, 118),
    "sched_setattr": (314, 274),
    "sched_setaffinity": (203, 122),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    # new processes
    "fork": (57, None),
    "vfork": (58, None),
    # what reads or runs past the filter, and faults served by a program
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_setup": (206, 0),
    "io_submit": (209, 2),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "fanotify_init": (300, 262),
    "fanotify_mark": (301, 263),
    # mounts, namespaces, swap
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "move_mount": (429, 429),
    "open_tree": (428, 428),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "unshare": (272, 97),
    "setns": (308, 268),
    # keys
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    # the kernel, its clock and its names
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "create_module": (174, None),
    "uselib": (134, None),
    "reboot": (169, 142),
    "acct": (163, 89),
    "syslog": (103, 116),
    "vhangup": (153, 58),
    "iopl": (172, None),
    "ioperm": (173, None),
    "modify_ldt": (154, None),
    "personality": (135, 92),
    "nfsservctl": (180, 42),
    "lookup_dcookie": (212, 18),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    # files by handle, device nodes
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "mknod": (133, None),
    "mknodat": (259, 33),
    # metadata, and who uses what: Landlock guards neither
    "getxattr": (191, 8),
    "lgetxattr": (192, 9),
    "fgetxattr": (193, 10),
    "listxattr": (194, 11),
    "llistxattr": (195, 12),
    "flistxattr": (196, 13),
    "inotify_init": (253, None),
    "inotify_init1": (294, 26),
    "inotify_add_watch": (254, 27),
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "chown": (92, None),
    "fchown": (93, 55),
    "lchown": (94, None),
    "fchownat": (260, 54),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
    "utime": (132, None),
    "utimes": (235, None),
    "futimesat": (261, None),
    "utimensat": (280, 88),
    # memory that outlives the process or escapes RLIMIT_DATA
    "shmget": (29, 194),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "shmdt": (67, 197),
    "semget": (64, 190),
    "semop": (65, 193),
    "semctl": (66, 191),
    "semtimedop": (220, 192),
    "msgget": (68, 186),
    "msgsnd": (69, 189),
    "msgrcv": (70, 188),
    "msgctl": (71, 187),
    "mq_open": (240, 180),
    "mq_unlink": (241, 181),
    "mq_timedsend": (242, 182),
    "mq_timedreceive": (243, 183),
    "mq_notify": (244, 184),
    "mq_getsetattr": (245, 185),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
}

# struct seccomp_data: int nr; u32 arch; u64 instruction_pointer; u64 args[6]; both architectures little-endian
_NR, _ARCH, _ARGUMENTS = 0, 4, 16
_LOAD, _EQUAL, _GREATER, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x25, 0x35, 0x45, 0x06
_PERM: Final = ERRNO | errno.EPERM
_NONE: Final = ERRNO | errno.ENOSYS


def numbers(machine: str) -> dict[str, int]:
    """The numbers of all calls that are named here, on `machine`."""
    column = _COLUMN[machine]
    named = {**DENIED, **JUDGED}
    return {name: number for name, row in named.items() if (number := row[column]) is not None}


def program(machine: str, pid: int) -> bytes:
    """The filter for process `pid` on `machine`: 8 bytes an instruction. Raises KeyError: not an architecture
    of ARCHITECTURES.
    """
    number = numbers(machine)
    lines = [
        *_unless(_EQUAL, _ARCH, ARCHITECTURES[machine], KILL),
        _line(_LOAD, _NR),
        *(_when(_AT_LEAST, X32_BIT, KILL) if machine == "x86_64" else []),
        *_when(_GREATER, LAST_KNOWN, _NONE),
        *_when(_EQUAL, number["clone3"], _NONE),
    ]
    for name in DENIED:
        if name in number:
            lines += _when(_EQUAL, number[name], _PERM)
    lines += _call(number["clone"], _thread_only())
    for name in ("kill", "tgkill"):
        lines += _call(number[name], _argument_in(0, (pid,), ALLOW, _PERM))
    lines += _call(number["prlimit64"], _argument_in(0, (0, pid), ALLOW, _PERM))
    lines += _call(number["ioctl"], _argument_in(1, OF_A_DESCRIPTOR, ALLOW, _PERM))
    lines += _call(number["fcntl"], _argument_in(1, OWNERS_BY_FCNTL, _PERM, ALLOW))
    lines += _call(number["prctl"], _argument_in(0, OF_ITSELF, ALLOW, _PERM))
    lines.append(_line(_RETURN, ALLOW))
    return b"".join(lines)


def _line(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("<HBBI", code, if_true, if_false, value)


def _when(test: int, value: int, verdict: int) -> list[bytes]:
    return [_line(test, value, 0, 1), _line(_RETURN, verdict)]


def _unless(test: int, place: int, value: int, verdict: int) -> list[bytes]:
    return [_line(_LOAD, place), _line(test, value, 1, 0), _line(_RETURN, verdict)]


def _call(number: int, verdicts: list[bytes]) -> list[bytes]:
    """`verdicts`, each of whose paths returns, for one call; other calls jump over them."""
    return [_line(_EQUAL, number, 0, len(verdicts)), *verdicts]


def _thread_only() -> list[bytes]:
    return [
        _line(_LOAD, _ARGUMENTS),
        *_when(_ANY_BIT, CLONE_NAMESPACES, _PERM),
        *_when(_ANY_BIT, CLONE_THREAD, ALLOW),
        _line(_RETURN, _PERM),
    ]


def _argument_in(index: int, values: tuple[int, ...], inside: int, outside: int) -> list[bytes]:
    """Judges the low word of an argument: pids and ioctl numbers have 32 bits."""
    tests = [line for value in values for line in _when(_EQUAL, value, inside)]
    return [_line(_LOAD, _ARGUMENTS + 8 * index), *tests, _line(_RETURN, outside)]
