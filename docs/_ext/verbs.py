"""The directive `farflung-verbs`: a section for each verb of the command line, with its help as it is printed.

What stands between the fences is for readers on a code host, where nothing is generated.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from farflung.app.cli.main import cli

COLUMNS = 88


def helps(command: click.Command, path: tuple[str, ...], above: click.Context | None) -> Iterator[tuple[str, str]]:
    """(`farflung verb`, its help text) for a command and those below it."""
    context = click.Context(
        command, parent=above, info_name=path[-1], terminal_width=COLUMNS, max_content_width=COLUMNS
    )
    yield " ".join(path), command.get_help(context).rstrip()
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            if below is not None and not below.hidden:
                yield from helps(below, (*path, name), context)


class Verbs(SphinxDirective):
    """Takes no arguments; its content is not shown."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        """One section a verb."""
        made: list[nodes.Node] = []
        for name, text in helps(cli, ("farflung",), None):
            section = nodes.section(ids=[nodes.make_id(name)], names=[nodes.fully_normalize_name(name)])
            section += nodes.title("", "", nodes.literal("", name))
            section += nodes.literal_block(text, text, language="text")
            self.state.document.note_explicit_target(section)
            made.append(section)
        return made


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx."""
    app.add_directive("farflung-verbs", Verbs)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
