"""Names this version of farflung, which its files, errors and advertisements name, and which jobs and laws it knows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

VERSION: Final = "0.1.0"

# What a job consists of: its terms, the messages of its leases, its log. A job keeps its format for life.
JOB_FORMAT: Final = 4  # of new jobs: passes of a step, bfloat16, data sets by their root
JOB_FORMATS: Final = (JOB_FORMAT,)  # that this farflung works on

# The newest version of the ledger's law that this farflung executes; it knows those before, too (ledger.law_version).
LAW: Final = 1

# No package index has farflung: what somebody else puts there under this name must not be what a hint installs.
INSTALL: Final = "pip install -c constraints.txt ."  # in its source folder
UPGRADE: Final = f"git pull in farflung's source folder; {INSTALL}"


def format_list(formats: Iterable[int]) -> str:
    """`2 and 3`, for people."""
    return " and ".join(str(each) for each in sorted(formats)) or "no"
