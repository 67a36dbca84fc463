"""Small scenarios for tests of `farflung simulate`."""

from __future__ import annotations

from typing import Any

from farflung.app.simulate import scenario
from farflung.app.simulate.scenario import Scenario

SMALL = {"network.nodes": "200", "network.days": "2", "market.members": "4"}


def made(**values: Any) -> Scenario:
    return scenario.with_values(scenario.read(None, "", SMALL), **values)
