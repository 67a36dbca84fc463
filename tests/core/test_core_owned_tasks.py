"""Tasks end with their owner, in the order in which they began, and none of their errors is lost."""

import asyncio
import gc
from typing import Any

import pytest

from farflung.core.io.owned_tasks import OwnedTasks


async def forever(said: list[str], name: str) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        said.append(name)


def test_closing_ends_all_in_the_order_in_which_they_began_and_waits_for_it() -> None:
    async def main() -> None:
        tasks, said = OwnedTasks(), list[str]()
        running = [tasks.begin(forever(said, name)) for name in "abcdefgh"]
        await asyncio.sleep(0)
        assert len(tasks) == 8
        await tasks.close()
        assert "".join(said) == "abcdefgh"
        assert all(task.cancelled() for task in running)
        assert not tasks
        await tasks.close()  # of nothing

    asyncio.run(main())


def test_what_ended_is_held_no_more_and_its_result_is_its_awaiters() -> None:
    async def main() -> None:
        tasks = OwnedTasks()

        async def answer() -> int:
            return 42

        async def fails() -> int:
            raise KeyError("x")

        assert await tasks.begin(answer()) == 42
        with pytest.raises(KeyError):
            await tasks.begin(fails())
        assert list(tasks) == []

    asyncio.run(main())


def test_nothing_takes_a_step_after_the_close() -> None:
    """A task that is being ended may still begin others; they are waited for, too, and do nothing."""

    async def main() -> None:
        tasks, said = OwnedTasks(), list[str]()

        async def begins_more() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                tasks.begin(forever(said, "more"))
                said.append("first")

        tasks.begin(begins_more())
        await asyncio.sleep(0)
        await tasks.close()
        late = tasks.begin(forever(said, "late"))
        await asyncio.wait([late])
        assert late.cancelled()
        assert said == ["first"]
        assert not tasks

    asyncio.run(main())


def test_an_error_while_all_is_closed_is_told() -> None:
    told: list[BaseException] = []

    def note(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        told.append(context["exception"])

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(note)
        tasks = OwnedTasks()

        async def breaks() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                raise KeyError("broken while it ended")

        tasks.begin(breaks())
        await asyncio.sleep(0)
        await tasks.close()
        gc.collect()

    asyncio.run(main())
    assert [type(error) for error in told] == [KeyError]


def test_the_oldest_makes_room() -> None:
    async def main() -> None:
        tasks, said = OwnedTasks(), list[str]()
        for name in "ab":
            tasks.begin(forever(said, name))
        await asyncio.sleep(0)
        tasks.drop_oldest()
        assert len(tasks) == 1
        await asyncio.sleep(0)
        assert said == ["a"]
        tasks.cancel()
        assert len(tasks) == 1
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert said == ["a", "b"]
        assert not tasks

    asyncio.run(main())
