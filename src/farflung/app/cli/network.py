"""Defines the command group `network`, for those who open a network and look after it."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Final

import click

# Each verb's place: the module is imported when the verb is used.
PLACES: Final[Mapping[str, str]] = {
    "open": "network_open:open_network",
    "invite": "network_open:invite",
    "status": "network_status:status",
    "nodes": "network_status:nodes",
    "seat": "network_seat:seat",
    "backup": "network_backup:backup",
    "restore": "network_backup:restore",
}


class NetworkCommandGroup(click.Group):
    """A group whose commands are imported one at a time."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All verbs, in the order of a network's life."""
        return list(PLACES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The verb's command, or None."""
        if cmd_name not in PLACES:
            return None
        module, _, name = PLACES[cmd_name].partition(":")
        command: click.Command = getattr(importlib.import_module(f"farflung.app.cli.{module}"), name)
        return command


@click.group(cls=NetworkCommandGroup, epilog="Example: farflung network open --host net.example")
def network() -> None:
    """Open a network that others can join, invite them, and look after it.

    One small server is enough to begin with. A network's credits are worth nothing
    until its operator says otherwise.
    """
