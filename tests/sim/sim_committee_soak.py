"""Many schedules in parallel processes, a line for each that fails; goes on where it was interrupted.

nice -n 19 python tests/sim/sim_committee_soak.py --count 1000000 --jobs 8 --state soak.json

The state holds the seeds in question, the first that was not played, and every line of a failure; a run that was cut
plays some groups again.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from sim_committee_schedules import failure

GROUP = 50  # schedules a process plays in one go


def play_group(seeds: range) -> tuple[range, list[str], float]:
    """Lines of those that failed, and seconds of CPU."""
    begun = time.process_time()
    return seeds, [line for line in map(failure, seeds) if line], time.process_time() - begun


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="the first")
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--state", type=Path, help="where to go on from, if it is there, and to write to")
    asked = parser.parse_args()
    first, failed = asked.seed, list[str]()
    if asked.state and asked.state.exists():
        known = json.loads(asked.state.read_text())
        first, failed = max(first, known["next"]), known["failed"]
    end, spent = asked.seed + asked.count, 0.0
    groups = [range(begin, min(begin + GROUP, end)) for begin in range(first, end, GROUP)]
    with multiprocessing.Pool(asked.jobs) as pool:
        for number, (seeds, lines, seconds) in enumerate(pool.imap(play_group, groups), 1):
            spent += seconds
            failed += lines
            print(*lines, sep="\n", end="\n" if lines else "", flush=True)
            if asked.state:
                asked.state.write_text(json.dumps({"next": seeds.stop, "failed": failed}))
            if number % 20 == 0 or seeds.stop == end:
                told = f"{seeds.stop - first} schedules, {len(failed)} failed, {spent:.0f} CPU seconds"
                print(f"{told}; next is {seeds.stop}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
