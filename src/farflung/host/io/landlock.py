"""Restricts the file system with Landlock for this process and its descendants. No dependency, no root.

Sources: kernel Documentation/userspace-api/landlock.rst; landlock(7). Every right that the running kernel knows is
handled, so what no rule allows is refused; newer kernels also refuse TCP, abstract Unix sockets and signals here,
which seccomp refuses in any case.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
import sys
from collections.abc import Sequence
from typing import Final

CREATE, ADD, RESTRICT = 444, 445, 446  # system calls, the same on all architectures
_VERSION: Final = 1
_PATH_BENEATH: Final = 1

# access rights to files by bit
_EXECUTE, _WRITE, _READ, _READ_DIR, _REMOVE_DIR, _REMOVE, _MAKE_CHAR, _MAKE_DIR = (1 << n for n in range(8))
_MAKE_REG, _MAKE_SOCK, _MAKE_FIFO, _MAKE_BLOCK, _MAKE_LINK, _REFER, _TRUNCATE, _IOCTL = (1 << n for n in range(8, 16))
_BITS_BY_ABI: Final = {1: 13, 2: 14, 3: 15, 4: 15}  # 16 from ABI 5 on
OF_FILES: Final = _EXECUTE | _WRITE | _READ | _TRUNCATE | _IOCTL
TO_READ: Final = _EXECUTE | _READ | _READ_DIR
TO_WRITE: Final = TO_READ | _WRITE | _TRUNCATE | _REMOVE_DIR | _REMOVE | _MAKE_DIR | _MAKE_REG | _MAKE_LINK | _REFER
TO_USE: Final = _READ | _WRITE  # a device
TO_USE_OWN: Final = TO_USE | _READ_DIR | _TRUNCATE


def _syscall(number: int, *arguments: object) -> int:
    library = ctypes.CDLL(None, use_errno=True)
    result = int(library.syscall(ctypes.c_long(number), *arguments))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def abi() -> int:
    """The kernel's version of Landlock. Raises OSError with words: there is none, or it is switched off."""
    if sys.platform != "linux":
        raise OSError(errno.ENOSYS, "no Landlock on this system")
    try:
        return _syscall(CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION))
    except OSError as error:
        words = "Landlock is disabled in this kernel" if error.errno == errno.EOPNOTSUPP else "no Landlock here"
        raise OSError(error.errno, f"{words}: {error.strerror}") from None


def restrict(
    reads: Sequence[str],
    writes: Sequence[str],
    devices: Sequence[str] = (),
    lists: Sequence[str] = (),
    own: Sequence[str] = (),
) -> None:
    """From here on this process opens only what lies beneath these paths; those that are not there are left out.

    Of `lists` only the names in folders can be read. `own` are single files of this process in /proc: the kernel makes
    their inodes, to which the rules belong, anew once memory was short, so that each is held by a descriptor that
    reads nothing (O_PATH) and stays open in the command too.
    Needs no_new_privs. Raises OSError.
    """
    version = abi()
    handled = (1 << _BITS_BY_ABI.get(version, 16)) - 1
    net, scoped = (3 if version >= 4 else 0), (3 if version >= 6 else 0)
    attributes = struct.pack("<QQQ", handled, net, scoped)[: 24 if version >= 6 else 16 if version >= 4 else 8]
    rules = _syscall(CREATE, attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint32(0))
    try:
        for paths, rights in ((reads, TO_READ), (writes, TO_WRITE), (devices, TO_USE), (lists, _READ_DIR)):
            for path in paths:
                _allow(rules, path, rights & handled)
        for path in own:
            _allow(rules, path, TO_USE_OWN & handled, is_held=True)
        _syscall(RESTRICT, ctypes.c_int(rules), ctypes.c_uint32(0))
    finally:
        os.close(rules)


def _allow(rules: int, path: str, rights: int, is_held: bool = False) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(place).st_mode):
            rights &= OF_FILES
        rule = struct.pack("<Qi", rights, place)
        _syscall(ADD, ctypes.c_int(rules), ctypes.c_int(_PATH_BENEATH), rule, ctypes.c_uint32(0))
    finally:
        if is_held:
            os.set_inheritable(place, True)
        else:
            os.close(place)
