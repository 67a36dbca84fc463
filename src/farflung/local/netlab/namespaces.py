"""Manages network namespaces named after this process: creates, enters, connects and always removes them.

A namespace is `ff-lab-MARK-WHO` (core.io.process_mark); WHO begins with the number of the laboratory in its process.
What a process that died left behind is removed by the next one that makes any.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from farflung.core.errors import RunError
from farflung.core.io import process_mark
from farflung.local.netlab.link_emulator import IFF_VNET_HDR

PREFIX = "ff-lab"
NAMESPACES = Path("/run/netns")
TUN = Path("/dev/net/tun")
_CLONE_NEWNET = 0x40000000
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000  # linux/if_tun.h
_TUNSETOFFLOAD, _CHECKSUMS, _TCP4 = 0x400454D0, 0x01, 0x02
_NETFILTER, _REQUEST_ACK, _CT_DELETE = 12, 1 | 4, 1 << 8 | 2  # linux/netlink.h, nfnetlink_conntrack.h
_NAME = re.compile(rf"{PREFIX}-({process_mark.MARK})-[a-z0-9.-]+")
_ENDING = 2.0  # seconds that processes have to be gone after SIGKILL


def space(who: str) -> str:
    """The namespace of `who` in this process."""
    return f"{PREFIX}-{process_mark.own_mark()}-{who}"


def why_not() -> str:
    """Why this machine cannot make a laboratory; empty if it can."""
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        return "needs root on Linux"
    for tool, package in (("ip", "iproute2"), ("nft", "nftables")):
        if shutil.which(tool) is None:
            return f"needs {package}: no `{tool}`"
    if not TUN.exists():
        return f"needs {TUN}"
    probe = space("probe")
    try:
        ip([f"netns add {probe}"])
        ip(["link add v0 type veth peer name v1", "link add b0 type bridge"], probe)
        nft(probe, 'table ip t { chain c { type nat hook postrouting priority 100; oifname "v" masquerade; }; }')
        os.close(open_tun(probe, "t0"))
    except (RunError, OSError) as error:
        return f"namespaces do not work here: {error}"
    finally:
        remove([probe])
    return ""


def ip(commands: Iterable[str], name: str = "") -> None:
    """Runs lines of `ip -batch`, in a namespace. Raises RunError FF-LAB-004."""
    where = ["-n", name] if name else []
    _tool(["ip", *where, "-batch", "-"], "".join(f"{line}\n" for line in commands))


def nft(name: str, rules: str) -> None:
    """Gives rules to a namespace. Raises RunError FF-LAB-004."""
    with inside(name):
        _tool(["nft", "-f", "-"], rules)


def _tool(command: Sequence[str], text: str) -> None:
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RunError(
            "FF-LAB-004",
            f"`{' '.join(command)}` failed",
            cause=done.stderr.strip(),
            hint="the laboratory needs root, iproute2, nftables and a kernel with TUN, bridges and NAT",
        )


@contextlib.contextmanager
def inside(name: str) -> Iterator[None]:
    """This thread is in the namespace: sockets and devices that it makes stay there. Raises OSError."""
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        there = os.open(NAMESPACES / name, os.O_RDONLY)
        try:
            _enter(there)
            try:
                yield
            finally:
                _enter(before)
        finally:
            os.close(there)
    finally:
        os.close(before)


def enter(name: str) -> None:
    """This thread, and whatever it starts, is in the namespace from now on. Raises OSError."""
    there = os.open(NAMESPACES / name, os.O_RDONLY)
    try:
        _enter(there)
    finally:
        os.close(there)


def _enter(descriptor: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns: " + os.strerror(ctypes.get_errno()))


def forget_connections(name: str) -> None:
    """Empties the namespace's table of connections, and what its router remembers. Raises RunError FF-LAB-004."""
    with inside(name), socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETFILTER) as netlink:
        netlink.sendall(struct.pack("=IHHIIBBH", 20, _CT_DELETE, _REQUEST_ACK, 1, 0, socket.AF_INET, 0, 0))
        answer = netlink.recv(4096)
    if refused := struct.unpack_from("=i", answer, 16)[0]:
        raise RunError(
            "FF-LAB-004", "`flush conntrack` failed", cause=os.strerror(-refused), hint="needs nf_conntrack_netlink"
        )
    nft(name, "flush map ip router owner\nflush set ip router seen\n")


def configure(name: str, settings: dict[str, str]) -> None:
    """Writes settings below /proc/sys/net; one that this kernel does not have is left out."""
    with inside(name):
        for key, value in settings.items():
            with contextlib.suppress(FileNotFoundError):
                Path("/proc/sys/net", key).write_text(value)


def open_tun(name: str, device: str, *, trains: bool = False) -> int:
    """A new TUN device in the namespace; the descriptor works from everywhere, and the device ends with it.

    `trains`: it gives and takes what the kernel has not cut into packets yet, each behind a virtio_net_hdr.
    """
    flags = _IFF_TUN | _IFF_NO_PI | (IFF_VNET_HDR if trains else 0)
    with inside(name):
        descriptor = os.open(TUN, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH22x", device.encode(), flags))
            if trains:
                fcntl.ioctl(descriptor, _TUNSETOFFLOAD, _CHECKSUMS | _TCP4)
        except OSError:
            os.close(descriptor)
            raise
    return descriptor


def open_socket(name: str, family: int, kind: int, protocol: int = 0) -> socket.socket:
    """A socket of the namespace, for use from everywhere."""
    with inside(name):
        return socket.socket(family, kind, protocol)


def remove_leftovers() -> list[str]:
    """Removes what laboratories of processes that are dead left behind; returns the names."""
    left = []
    for path in NAMESPACES.glob(f"{PREFIX}-*"):
        match = _NAME.fullmatch(path.name)
        if match and process_mark.has_ended(match[1]):
            left.append(path.name)
    remove(left)
    return left


def remove(names: Iterable[str]) -> None:
    """Ends all processes in these namespaces, then removes them; those that are gone already are passed over."""
    here = [name for name in names if (NAMESPACES / name).exists()]
    deadline = time.monotonic() + _ENDING
    while (inmates := _inmates(here)) and time.monotonic() < deadline:
        for pid in inmates:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
    for name in here:
        with contextlib.suppress(RunError):  # somebody else removed it
            ip([f"netns del {name}"])


def _inmates(names: Iterable[str]) -> set[int]:
    """The processes in these namespaces, but for this one. Those that have ended and are not waited for are in none."""
    spaces = set()
    for name in names:
        with contextlib.suppress(OSError):
            spaces.add(_identity(NAMESPACES / name))
    found = set()
    for path in Path("/proc").glob("[0-9]*/ns/net"):
        with contextlib.suppress(OSError):  # it has just ended
            if _identity(path) in spaces:
                found.add(int(path.parts[2]))
    return found - {os.getpid()}


def _identity(path: Path) -> tuple[int, int]:
    """Of a namespace; a file that is no mounted namespace is on another device, so it is like none."""
    status = path.stat()
    return status.st_dev, status.st_ino
