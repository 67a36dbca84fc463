"""Small networks for tests of plan.sim: rules with one thing changed."""

from __future__ import annotations

from typing import Any

from farflung.plan.sim.rules import Rules, odds, sigmas

HOUR = 3_600_000

PLAIN = Rules(
    key=1,
    nodes=1000,
    periods=30,
    rounds=36,
    train=38 * 60_000,
    exchange=120_000,
    up=10 * HOUR,
    down=2 * HOUR,
    death=0,
    speed_sigma=sigmas(0.4),
    ask=20,
    ask_sigma=sigmas(0.3),
    uplink=20_000,
    uplink_sigma=sigmas(0.8),
    downlink=100_000,
    downlink_sigma=sigmas(0.8),
    hidden=odds(0.7),
    relays=4,
    late=odds(0.01),
    payload=25_000_000,
    snapshot=400_000_000,
    members=4,
    wanted=odds(0.5),
    ceiling=100,
    budget=0,
    stake=400,
    opening=800,
    cheaters=odds(0.05),
    probation=2,
    audited=odds(0.1),
    caught=odds(0.05),
    caught_known=odds(0.5),
    segments=5,
    voices=2,
    taken=500,
    bounty=500,
    fare=10_000,
)


def network(**changes: Any) -> Rules:
    values = {name: getattr(PLAIN, name) for name in Rules.__struct_fields__}
    return Rules(**(values | changes))
