"""What a committee costs: delays to a final block in virtual time, and processor time a block and a schedule.

    python bench/committee.py

Delays are exact. Processor time is that of all seats together with the simulator, under cheap signatures and under
Ed25519; a validator's own part is that divided by the number of seats.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "sim"))

from sim_committee import World
from sim_committee_app import cheap_signatures
from sim_committee_schedules import play

from farflung.core.crypto import local_key

DELAY = 10
SCHEDULES = 100


def blocks(seats: int, count: int, is_cheap: bool) -> tuple[World, float]:
    """A busy committee until so many blocks are final; the processor seconds that it took."""
    keys = None if is_cheap else [local_key(1, "seat", index) for index in range(seats)]
    world = World(seats, delta_ms=10 * DELAY, keys=keys)
    begun = time.process_time()
    with cheap_signatures():
        world.start()
        world.run(10**6, lambda: min(world.heights()) >= count)
    return world, time.process_time() - begun


def main() -> None:
    """Prints one line a case."""
    print("seats  signatures  final after  next after  messages a block  CPU ms a block and seat")
    for seats, count, is_cheap in ((4, 50, True), (16, 10, True), (100, 1, True), (4, 50, False), (16, 5, False)):
        world, spent = blocks(seats, count, is_cheap)
        begins = [world.proposed[world.final_at[height]] for height in range(1, count + 1)]
        final = (world.final_times[count] - begins[-1]) / DELAY
        gap = (begins[-1] - begins[0]) / DELAY / max(1, count - 1)
        said = sum(world.sent.values()) // count
        name = "hash" if is_cheap else "Ed25519"
        print(f"{seats:5}  {name:10}  {final:11.2f}  {gap:10.2f}  {said:16}  {1000 * spent / count / seats:23.2f}")
    begun = time.process_time()
    for seed in range(1, SCHEDULES + 1):
        play(seed)
    print(f"{SCHEDULES / (time.process_time() - begun):.1f} schedules under faults a CPU second")


if __name__ == "__main__":
    main()
