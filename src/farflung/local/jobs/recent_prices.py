"""Reads the last day's prices on this computer from its run folders, as price history for a quote.

A run's `matched` event has the price of an accepted token and who was hired; its resolved job says how many FLOP a
token takes. So the price of a calibrated unit is known of runs with the built-in model; others tell no FLOP and are
passed by. They were hired in test credits, and are processes of this computer: a class of its own, no card of a list.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from farflung.advice.job_work import work
from farflung.core.errors import FarflungError
from farflung.core.events import ProviderMatchEvent
from farflung.core.money import MAX_CREDITS, Credits
from farflung.core.units import Millis
from farflung.market.price_history import DAY_MS, BundleSale
from farflung.market.work_units import CALIBRATED
from farflung.peers.rundir import folder
from farflung.peers.rundir.folder import RunFolder
from farflung.peers.rundir.inputs import known_layout
from farflung.peers.rundir.runs import resolve_again
from farflung.watch.io import event_log

HERE: Final = "this computer"  # the class of local providers
SLACK_MS: Final = 60_000  # by which a file may seem older than what was written into it last


def last_day(runs: Path, now: Millis) -> tuple[BundleSale, ...]:
    """Sales in the 24 h before `now`, ms since 1970, oldest first. A run that cannot be read hides no other."""
    found: list[BundleSale] = []
    for run in folder.all_runs(runs):
        with contextlib.suppress(OSError, FarflungError):
            if 1000 * run.events_file.stat().st_mtime > now - DAY_MS - SLACK_MS:
                found += _sale(run)
    return tuple(sorted((sale for sale in found if now - DAY_MS < sale.at <= now), key=lambda sale: sale.at))


def _sale(run: RunFolder) -> Iterator[BundleSale]:
    """The first hiring: a run that goes on keeps its leases, and their price."""
    spec = resolve_again(run).spec
    layout = known_layout(spec)
    matched = next((event for event in event_log.read(run.events_file) if isinstance(event, ProviderMatchEvent)), None)
    if layout is None or matched is None or not matched.peers:
        return
    at = Millis(round(1000 * (run.read_identity().created + matched.at)))
    ask = round(matched.unit_price * CALIBRATED / work(spec, layout).flop(1))
    if 0 <= ask <= MAX_CREDITS:
        yield BundleSale(at, HERE, len(matched.peers), Credits(ask))
