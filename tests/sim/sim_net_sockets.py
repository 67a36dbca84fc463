"""Sockets of the simulated network: as much of `socket.socket` as asyncio and farflung use, never blocking."""

from __future__ import annotations

import errno
import os
import socket
from collections import deque
from typing import Any

from sim_net_lines import HERE, Address, Flow, Host, Link, Net, Process

from farflung.net.io.socket_options import ALIVE_SECONDS, DEAD_SECONDS

SEND_BUFFER = 128 * 1024
CONNECT_SECONDS = 127.0  # until a call that nobody answers ends


class SimSocket:
    """One TCP socket of the process that made it."""

    net: Net  # set by a class of each world

    def __init__(
        self,
        family: int = socket.AF_INET,
        type: int = socket.SOCK_STREAM,
        proto: int = 0,
        fileno: int | None = None,
        *,
        process: Process | None = None,
    ) -> None:
        assert fileno is None, "the simulated network has no descriptors to take over"
        self.family, self.type, self.proto = family, type, proto
        self.process = HERE.get() if process is None else process
        if not self.process.is_alive:
            raise OSError(errno.ENETDOWN, "this process has ended")
        self._fd = self.net.next_fd
        self.net.next_fd += 1
        self.net.sockets[self._fd] = self.process.sockets[self._fd] = self
        self.inbox = bytearray()
        self.out: Flow | None = None
        self._in: Flow | None = None
        self._link: Link | None = None
        self._here: Address | None = None
        self._there: Address | None = None
        self._seen: Address | None = None  # by the other end, where it differs from `_here`
        self.waiting: deque[SimSocket] | None = None  # of a listener
        self._backlog = 0
        self.error = 0
        self._is_calling = False
        self.has_end = False
        self.is_gone = False
        self.options: dict[tuple[int, int], Any] = {}

    # What the selector asks

    @property
    def is_writable(self) -> bool:
        if self._is_calling:
            return False
        return bool(self.error) or (self.out is not None and len(self.out.unsent) <= SEND_BUFFER // 2)

    # socket.socket

    def fileno(self) -> int:
        return -1 if self.is_gone else self._fd

    def setblocking(self, flag: bool) -> None:
        assert not flag, "nothing blocks in virtual time"

    def settimeout(self, value: float | None) -> None:
        assert value == 0, "nothing blocks in virtual time"

    def gettimeout(self) -> float:
        return 0.0

    def setsockopt(self, level: int, option: int, value: Any) -> None:
        self._check()
        self.options[level, option] = value
        if (level, option) == (socket.SOL_SOCKET, socket.SO_KEEPALIVE) and value:
            self.net.clock.after(ALIVE_SECONDS, lambda: self._ask(self.net.clock.now))

    def getsockopt(self, level: int, option: int, size: int = 0) -> Any:
        self._check()
        if (level, option) == (socket.SOL_SOCKET, socket.SO_ERROR):
            error, self.error = self.error, 0
            return error
        if (level, option) not in self.options:
            raise OSError(errno.ENOPROTOOPT, os.strerror(errno.ENOPROTOOPT))
        return self.options[level, option]

    def bind(self, address: Address) -> None:
        self._check()
        host, port = self.process.host, address[1]
        if address[0] not in (host.ip, "0.0.0.0", "::", "") and not address[0].startswith("127."):
            raise OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))
        if port in host.listeners:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        self._here = (address[0] or "0.0.0.0", port or self._free_port())

    def listen(self, backlog: int = 128) -> None:
        assert self._here is not None
        host = self.process.host
        if self._here[1] in host.listeners:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        self.waiting, self._backlog = deque(), backlog
        host.listeners[self._here[1]] = self

    def accept(self) -> tuple[SimSocket, Address]:
        self._check()
        if not self.waiting:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        made = self.waiting.popleft()
        return made, made.getpeername()

    def connect(self, address: Address) -> None:
        error = self.connect_ex(address)
        if error:
            raise OSError(error, os.strerror(error))

    def connect_ex(self, address: Address) -> int:
        self._check()
        if self._is_calling:
            return errno.EALREADY
        if self.out is not None:
            return errno.EISCONN
        host = self.process.host
        local = "127.0.0.1" if address[0].startswith("127.") else host.ip
        self._here = (local, self._here[1] if self._here is not None else self._free_port())
        self._there = (address[0], address[1])
        self._is_calling = True
        host.calling[self._here[1], self._there] = self
        self._call(1.0, self.net.clock.now)
        return errno.EINPROGRESS

    def getsockname(self) -> Address:
        self._check()
        return self._here or ("0.0.0.0", 0)

    def getpeername(self) -> Address:
        self._check()
        if self._there is None or self.out is None:
            raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))
        return self._there

    def send(self, data: Any, flags: int = 0) -> int:
        self._check()
        if self.error:
            raise OSError(self.error, os.strerror(self.error))
        if self.out is None or self.out.is_ended:
            raise OSError(errno.EPIPE, os.strerror(errno.EPIPE))
        piece = bytes(memoryview(data).cast("B")[: SEND_BUFFER - len(self.out.unsent)])
        if not piece and len(data):
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        self.out.unsent += piece
        self.process.sent += len(piece)
        self.out.pump()
        return len(piece)

    def sendmsg(self, buffers: Any, *rest: Any) -> int:
        return self.send(b"".join(bytes(each) for each in buffers))

    def recv(self, size: int, flags: int = 0) -> bytes:
        self._check()
        if not self.inbox:
            if self.error:
                raise OSError(self.error, os.strerror(self.error))
            if self.has_end:
                return b""
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        piece = bytes(self.inbox[:size])
        if flags & socket.MSG_PEEK:
            return piece
        del self.inbox[:size]
        self.process.received += len(piece)
        if self._in is not None:
            delay = self.net.delay(self.process.host, self._in.one)
            self.net.clock.after(delay, self._in.pump)
        return piece

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        view = memoryview(buffer).cast("B")
        piece = self.recv(nbytes or len(view), flags)
        view[: len(piece)] = piece
        return len(piece)

    def recvmsg_into(self, buffers: Any, *rest: Any) -> tuple[int, list[Any], int, None]:
        views = [memoryview(each).cast("B") for each in buffers]
        piece = self.recv(sum(map(len, views)))
        size = len(piece)
        for view in views:
            part, piece = piece[: len(view)], piece[len(view) :]
            view[: len(part)] = part
        return size, [], 0, None

    def shutdown(self, how: int) -> None:
        self._check()
        if self.out is None:
            raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))
        if how in (socket.SHUT_WR, socket.SHUT_RDWR):
            self.out.is_ended = True
            self.out.pump()
        if how in (socket.SHUT_RD, socket.SHUT_RDWR):
            self.has_end = True

    def close(self) -> None:
        if self.is_gone:
            return
        unread = bool(self.inbox)
        self._leave()
        if self.out is None:
            return
        if unread:  # the kernel resets what was not read
            self.out.drop()
            self._tell(errno.ECONNRESET)
        else:
            self.out.is_ended = True
            self.out.pump()

    def detach(self) -> int:
        raise OSError(errno.EOPNOTSUPP, "a simulated socket has no descriptor")

    def __enter__(self) -> SimSocket:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # What the network does to it

    def take(self, data: bytes) -> None:
        """Bytes have come; none: the other end sends no more."""
        self.inbox += data
        self.has_end = self.has_end or not data

    def fail(self, error: int) -> None:
        """The connection is no more."""
        if self.is_gone:
            return
        self.error = self.error or error
        self.process.broken += 1
        self._is_calling = False
        if self.out is not None:
            self.out.drop()

    def vanish(self) -> None:
        """Its machine has lost its current: the other end is not told."""
        self._leave()
        if self.out is not None:
            self.out.drop()

    def move(self, home: list[Host]) -> None:
        """Its home has another address: connections with others lead nowhere."""
        if self._link is not None and self._in is not None and self._in.one not in home:
            self._link.moved = self.process.host

    # Inside

    def _check(self) -> None:
        if self.is_gone:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    def _free_port(self) -> int:
        host = self.process.host
        host.next_port += 1
        return host.next_port

    def _leave(self) -> None:
        self.is_gone = True
        self._is_calling = False
        host = self.process.host
        self.net.sockets.pop(self._fd, None)
        self.process.sockets.pop(self._fd, None)
        if self._here is not None:
            if host.listeners.get(self._here[1]) is self:
                del host.listeners[self._here[1]]
            if self._there is not None:
                host.calling.pop((self._here[1], self._there), None)
        for each in self.waiting or ():
            each.close()

    def _tell(self, error: int) -> None:
        if self._in is None:
            return
        other, net, host = self._in.source, self.net, self.process.host
        far = self._in.one

        def arrive() -> None:
            if net.carries(host, far):
                other.fail(error)

        net.clock.after(net.delay(host, far), arrive)

    def _ask(self, heard: float) -> None:
        """The kernel asks the other one, which was heard last at that time; the connection ends when it is silent."""
        if self.is_gone or self.error or self._in is None or self._link is None:
            return
        now = self.net.clock.now
        if self._link.moved is None and self.net.carries(self.process.host, self._in.one):
            heard = now
        if now - heard > DEAD_SECONDS:
            self.fail(errno.ETIMEDOUT)
        else:
            self.net.clock.after(1.0 if heard < now else ALIVE_SECONDS, lambda: self._ask(heard))

    def _call(self, pause: float, since: float) -> None:
        """Sends a SYN, and another one after `pause`."""
        net, host = self.net, self.process.host
        if not self._is_calling:
            return
        if net.clock.now - since > CONNECT_SECONDS:
            self.fail(errno.ETIMEDOUT)
            return
        assert self._here is not None
        assert self._there is not None
        found = net.find(host, (host.ip, self._here[1]), self._there)
        if found is None:
            there = next((each for each in net.hosts.values() if each.ip == self._there[0]), None)
            if there is None and not any(router.ip == self._there[0] for router in net.routers):
                net.clock.after(net.delay(host, host), lambda: self.fail(errno.EHOSTUNREACH))
                return
        else:
            far, at, seen = found
            if net.carries(host, far):
                delay = net.delay(host, far)
                net.clock.after(delay, lambda: self._arrive(far, at, seen, delay))
        net.clock.after(pause, lambda: self._call(2 * pause, since))

    def _arrive(self, far: Host, at: Address, seen: Address, delay: float) -> None:
        """The SYN is at `far`."""
        net = self.net
        if not self._is_calling or self.out is not None or not far.is_on:
            return
        assert self._there is not None
        listener = far.listeners.get(at[1])
        caller = far.calling.get((at[1], seen))
        if caller is not None and caller._is_calling:
            other = caller  # both have called each other
        elif listener is not None and listener._hears(self.process.host):
            assert listener.waiting is not None
            if len(listener.waiting) >= listener._backlog:
                return
            other = type(self)(process=listener.process)
            other._here, other._there = (at[0], at[1]), seen
            listener.waiting.append(other)
        else:
            net.note(f"{self.process.host.name}>{far.name} nobody")
            net.clock.after(delay, lambda: self.fail(errno.ECONNREFUSED))
            return
        net.note(f"{self.process.host.name}>{far.name} joined")
        link = Link()
        for one, two in ((self, other), (other, self)):
            one.out = two._in = Flow(net, link, one, two)
            one._link = link
        other._is_calling = False
        net.clock.after(delay, self._joined)

    def _hears(self, host: Host) -> bool:
        """Whether a listener is there for `host`."""
        assert self._here is not None
        return self.process.host is host or not self._here[0].startswith("127.")

    def _joined(self) -> None:
        self._is_calling = False
