"""What was hired on this computer in the last day: sales as its run folders record them, for the tape of a quote.

A run's `matched` event has the price of an accepted token and who was hired; its resolved job says how many FLOP a
token takes. So the price of a calibrated unit is known of runs with the built-in model; others tell no FLOP and are
passed by. They were hired in test credits, and are processes of this computer: a class of its own, no card of a list.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from farflung.app import asking, folder, preparation
from farflung.app.folder import RunFolder
from farflung.core.errors import FarflungError
from farflung.core.events import Matched
from farflung.core.money import MAX_CREDITS, Credits
from farflung.core.units import Millis
from farflung.market.prices import DAY_MS, Sale
from farflung.market.units import CALIBRATED
from farflung.plan.advice.work import work
from farflung.watch.io import eventlog

HERE: Final = "this computer"  # the class of local providers
SLACK_MS: Final = 60_000  # by which a file may seem older than what was written into it last


def last_day(runs: Path, now: Millis) -> tuple[Sale, ...]:
    """Sales in the 24 h before `now`, ms since 1970, oldest first. A run that cannot be read hides no other."""
    found: list[Sale] = []
    for run in folder.all_runs(runs):
        with contextlib.suppress(OSError, FarflungError):
            if 1000 * run.events_file.stat().st_mtime > now - DAY_MS - SLACK_MS:
                found += _sale(run)
    return tuple(sorted((sale for sale in found if now - DAY_MS < sale.at <= now), key=lambda sale: sale.at))


def _sale(run: RunFolder) -> Iterator[Sale]:
    """The first hiring: a run that goes on keeps its leases, and their price."""
    spec = asking.resolve_again(run).spec
    layout = preparation.known_layout(spec)
    matched = next((event for event in eventlog.read(run.events_file) if isinstance(event, Matched)), None)
    if layout is None or matched is None or not matched.peers:
        return
    at = Millis(round(1000 * (run.read_identity().created + matched.at)))
    ask = round(matched.unit_price * CALIBRATED / work(spec, layout).flop(1))
    if 0 <= ask <= MAX_CREDITS:
        yield Sale(at, HERE, len(matched.peers), Credits(ask))
