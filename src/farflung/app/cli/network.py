"""Defines the command group `network`, for those who open a network and look after it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import click

from farflung.app.cli.lazy_group import LazyCommandGroup

# Each verb's place: the module is imported when the verb is used.
PLACES: Final[Mapping[str, str]] = {
    "open": "network_open:open_network",
    "invite": "network_open:invite",
    "status": "network_status:status",
    "nodes": "network_status:nodes",
    "seat": "network_seat:seat",
    "upgrade": "network_upgrade:upgrade",
    "backup": "network_backup:backup",
    "restore": "network_backup:restore",
}


@click.group(cls=LazyCommandGroup, places=PLACES, epilog="Example: farflung network open --host net.example")
def network() -> None:
    """Open a network that others can join, invite them, and look after it.

    One small server is enough to begin with. A network's credits are worth nothing
    until its operator says otherwise.
    """
