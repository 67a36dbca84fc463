"""The network, measured: what of a line arrives, beside plain TCP on the same line, and what a core carries.

    python bench/net.py [--quick] [--cases PREFIX ...] [--out FILE]

Lines are those of `farflung.local.netlab` (root, iproute2, nftables): a laboratory is built, one home of each kind is
measured by its own self-check, and what does not agree leaves out the cases that need it, with the reason on stderr.
Both systems send as many bytes between the same homes in the same run, until the last byte is there or the time is
over; ours encrypted and through its own Connection (full runs of `direct` and `relay`: over all that bulk takes in a
job), plain TCP as one connection of cubic, set and read back, and not encrypted. Rates are payload given to the
receiving program, from the first byte sent. Medians of 3 runs; `--quick`: of one, and of transfers so short that slow
start counts.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

sys.path.insert(1, str(Path(__file__).with_suffix("")))
import net_fanout
import net_lines
import net_opening
import net_processor
import net_sharing
import net_transfer
from net_stage import Failed, Stage
from reporting import Row, load, show

from farflung.core.errors import FarflungError
from farflung.local.netlab import EmulatedHome, NetworkLab, why_not

SLOW: Final = ("control", "sharing", "table", "circuits")  # left out of --quick, unless asked for by name
LINES: Final = net_lines.CASES | net_fanout.LINES | net_opening.LINES | net_sharing.LINES | net_transfer.LINES
PROCESSOR: Final = net_processor.CASES | net_fanout.PROCESSOR
CASES: Final = (*LINES, *PROCESSOR)


class Report:
    """Prints rows as they come. `failed`: something that should have been measured was not."""

    def __init__(self, out: Path | None) -> None:
        self._out, self._before = out, load()
        self.failed = False

    def take(self, name: str, rows: Iterable[Row]) -> None:
        """Shows them; one case that fails leaves the others alone."""
        sys.stderr.write(f"{name} ...\n")
        try:
            for row in rows:
                show("net", row, self._before, self._out)
        except (Failed, OSError, FarflungError) as error:
            sys.stderr.write(f"{name}: left out: {error}\n")
            self.failed = True


def over_lines(names: list[str], quick: bool, report: Report) -> None:
    """All cases that need a laboratory, in one."""
    if reason := why_not():
        sys.stderr.write(f"skipped: {', '.join(names)}: {reason}\n")
        return
    homes: list[EmulatedHome] = []
    numbers: dict[str, list[int]] = {}
    for name in names:
        wanted = LINES[name].homes(quick)
        numbers[name] = list(range(len(homes) + 1, len(homes) + len(wanted) + 1))
        homes += wanted
    with NetworkLab(homes, len(net_transfer.RELAYS)) as laboratory:
        stage = Stage(laboratory, quick)
        for name in names:
            if reason := stage.amiss(numbers[name]):
                sys.stderr.write(f"skipped: {name}: {reason}\n")
            else:
                report.take(name, LINES[name].rows(stage, numbers[name]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one short run of fewer cases: at most 60 s")
    parser.add_argument("--cases", nargs="*", metavar="PREFIX", help=f"only these of: {' '.join(CASES)}")
    parser.add_argument("--out", type=Path, help="a results file to add to")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # the laboratory is taken down
    prefixes = tuple(asked.cases or ())
    if unknown := [one for one in prefixes if not any(name.startswith(one) for name in CASES)]:
        parser.error(f"no case {unknown[0]!r}; there are: {', '.join(CASES)}")
    chosen = [
        name for name in CASES if name.startswith(prefixes or "") and (prefixes or not asked.quick or name not in SLOW)
    ]
    report = Report(asked.out)
    if lines := [name for name in chosen if name in LINES]:
        over_lines(lines, asked.quick, report)
    for name in chosen:
        if name in PROCESSOR:
            report.take(name, PROCESSOR[name](asked.quick))
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
