"""Transfers pieces to measure what a line carries, several at a time to hide round trips (`relay_probe`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from farflung.core import limits

AT_ONCE: Final = 32  # pieces under way: a window of 2 MiB


async def move(
    ask: Callable[[int], Coroutine[Any, Any, bytes]],
    most: int,
    seconds: float,
    arrived: list[tuple[float, int]],
    *,
    first: int = limits.MEASURE_BYTES,
) -> None:
    """Asks by `ask(bytes)` for `most` bytes or for so long, and adds each piece: seconds since the start, and bytes.

    `first`: the size of the first pieces. Raises what `ask` raises; what came before it is told anyway.
    """
    loop = asyncio.get_running_loop()
    began, left = loop.time(), most

    async def pieces() -> None:
        nonlocal left
        size = first
        while left > 0:
            left -= size
            await ask(size)
            arrived.append((loop.time() - began, size))
            size = limits.MEASURE_BYTES

    tasks = [asyncio.create_task(pieces()) for _ in range(AT_ONCE)]
    try:
        done, _ = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
