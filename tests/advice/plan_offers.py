"""Hosts for tests of advice: equal but for what a test changes."""

from __future__ import annotations

from typing import Any

import msgspec

from farflung.advice.io import card_files
from farflung.advice.job_work import JobWork, work
from farflung.advice.offers.offer_file import OfferedHost
from farflung.core.money import Credits
from farflung.core.units import Bytes, Seconds
from farflung.job.job_loader import load
from farflung.peers.rundir.inputs import known_layout
from farflung.plan.link_syntax import Link

SMALL = {"model.layers": "4", "model.width": "128"}
LARGE = {"model.layers": "32", "model.width": "4096", "model.heads": "32", "model.context": "1024", "rounds": "50"}
LAN = Link(1e9, 1e9, Seconds(0.0005))
HOME = Link(20e6, 100e6, Seconds(0.03))


def host(name: str, card: str = "RTX 4090", **changes: Any) -> OfferedHost:
    made = OfferedHost(
        name=name,
        owner=name,
        region="",
        card=card_files.read().find(card),
        cards=1,
        link=HOME,
        price=Credits(300_000),
        cores=16,
        memory_bytes=Bytes(64 * 10**9),
        lanes=16,
        churn=Seconds(360_000.0),
    )
    return msgspec.structs.replace(made, **changes)


def hosts(count: int, card: str = "RTX 4090", **changes: Any) -> tuple[OfferedHost, ...]:
    return tuple(host(f"h{number:02}", card, **changes) for number in range(count))


def asked(**flags: str) -> JobWork:
    """A job's work; keys with __ for dots."""
    said = {key.replace("__", "."): value for key, value in flags.items()}
    spec = load(None, flags={"batch": "8", "model.context": "64", **said}).spec
    layout = known_layout(spec)
    assert layout is not None
    return work(spec, layout)


def sized(flags: dict[str, str]) -> JobWork:
    return asked(**{key.replace(".", "__"): value for key, value in flags.items()})
