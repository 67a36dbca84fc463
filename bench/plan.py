"""What plans foretell of traffic and memory (farflung.plan), beside what happens.

    python bench/plan.py [--quick] [--only references|bytes|steps|memory] [--cases WORD ...] [--out FILE]

references  published figures, and ours (plan_references.py)
bytes       bytes on the interfaces of real torch.distributed runs over gloo (plan_bytes.py); needs root, iproute2
steps       seconds of their steps on shaped links (plan_steps.py), the same
memory      activations of six modules, and resident memory of processes that train them (plan_memory.py)
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

sys.path.insert(1, str(Path(__file__).with_suffix("")))
sys.path.insert(1, str(Path(__file__).with_name("links")))
import plan_bytes
import plan_memory
import plan_references
import plan_steps
from links_others import Failed
from links_shaped import why_not
from reporting import Row, load, show

GROUPS: Final[dict[str, Callable[..., Iterator[Row]]]] = {
    "references": plan_references.rows,
    "bytes": plan_bytes.rows,
    "steps": plan_steps.rows,
    "memory": plan_memory.rows,
}
ALONE: Final = frozenset({"references", "memory"})  # groups that need no lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a minute")
    parser.add_argument("--only", choices=GROUPS)
    parser.add_argument("--cases", nargs="+", default=[""], help="those whose names hold one of these")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    names = [given.only] if given.only else list(GROUPS)
    if not ALONE.issuperset(names) and (why := why_not()):
        raise SystemExit(f"bench/plan.py: {why}")
    before = load()

    def wanted(name: str) -> bool:
        return any(word in name for word in given.cases)

    for name in names:
        try:
            for row in GROUPS[name](wanted, is_quick=given.quick):
                show("plan", row, before, given.out)
        except Failed as error:
            sys.exit(str(error))


if __name__ == "__main__":
    main()
