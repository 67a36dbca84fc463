"""Runs `python -m farflung.local.netlab HOME...`: builds an emulated network, measures it, removes it."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from farflung.core.errors import FarflungError
from farflung.local.netlab import NetworkLab, parse_home
from farflung.local.netlab.self_check import prove_home


def main(arguments: Sequence[str]) -> int:
    """Each argument is a home: up=20,down=100,rtt=40,loss=0.005,nat=symmetric. Exit 1: something does not agree."""
    if not arguments or "--help" in arguments:
        print(__doc__, main.__doc__, sep="\n", file=sys.stderr)
        return 0 if arguments else 2
    agrees = True
    try:
        with NetworkLab([parse_home(text) for text in arguments]) as laboratory:
            for number in range(1, len(arguments) + 1):
                for finding in prove_home(laboratory, number):
                    agrees &= finding.agrees
                    print(finding, flush=True)
    except FarflungError as error:
        print(*error.lines(), sep="\n", file=sys.stderr)
        return error.exit_code
    return 0 if agrees else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
