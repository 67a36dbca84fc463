"""Defines a group of commands whose modules are imported one at a time, when a command is used."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import click


class LazyCommandGroup(click.Group):
    """`places`: for each command's name its `module:function` below farflung.app.cli, in the order of the help."""

    def __init__(self, *words: Any, places: Mapping[str, str], **options: Any) -> None:
        super().__init__(*words, **options)
        self._places = places

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All verbs, in their order."""
        return list(self._places)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The verb's command, or None."""
        if cmd_name not in self._places:
            return None
        module, _, name = self._places[cmd_name].partition(":")
        command: click.Command = getattr(importlib.import_module(f"farflung.app.cli.{module}"), name)
        return command
