"""Peers in threads of one process, over connections on this computer."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

from app_sync import together

from farflung.sync import connect, unsafe_key
from farflung.sync.mesh_group import Mesh

Book = list[tuple[str, str, int]]


def book_of(size: int) -> Book:
    """Keys by number, each at a port that was free a moment ago; in the order of ranks."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(size)]
    ports = [each.getsockname()[1] for each in held]
    for each in held:
        each.close()
    keys = sorted(unsafe_key(7, index).public.hex() for index in range(size))
    return [(key, "127.0.0.1", port) for key, port in zip(keys, ports, strict=True)]


def key_of(book: Book, rank: int) -> Any:
    return next(key for index in range(9) if (key := unsafe_key(7, index)).public.hex() == book[rank][0])


def meshed(size: int, work: Callable[[Mesh], Any], **options: Any) -> list[Any]:
    """work(mesh) at every rank of a mesh."""
    book = book_of(size)

    def one(rank: int) -> Any:
        with connect(list(reversed(book)), key_of(book, rank), join_seconds=30, **options) as mesh:
            assert mesh.rank == rank  # by key, whatever the order of the book
            return work(mesh)

    return together(size, one)
