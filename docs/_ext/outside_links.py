"""Links that leave docs/ (to source, tests, examples): on a code host they work; a built page names the path instead.

Set `outside_links_url` to where the repository can be read, and they are links again:
`make docs ARGS='-D outside_links_url=URL'`. A file that a page includes (`outside_links_pages`: path to page) is linked
as that page, and its own links start at its folder. A link to what does not exist stays as it is, so that Sphinx warns.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform
from sphinx.writers.html5 import HTML5Translator


class FilePath(nodes.literal):
    """A path in the repository; it may be broken after its parts, not inside of them."""


def open_path(translator: HTML5Translator, node: FilePath) -> None:
    """The path as HTML; nothing below the node is left to do."""
    parts = re.split(r"(?<=[/_])", node.astext())
    code = "<wbr>".join(translator.encode(part) for part in parts)
    translator.body.append(f'<code class="docutils literal notranslate path">{code}</code>')
    raise nodes.SkipNode


def close_path(translator: HTML5Translator, node: FilePath) -> None:
    """Never reached."""


class OutsideLinks(SphinxTransform):
    """Runs before anything looks for the targets of links."""

    default_priority = 5

    def apply(self, **kwargs: Any) -> None:
        """Replaces each link that leaves docs/, and each link of an included file, if its target exists."""
        links = [*self.document.findall(addnodes.pending_xref)]
        links += [*self.document.findall(addnodes.download_reference)]
        for link in links:
            found = self._found(link) if link.get("reftype") == "myst" else None
            if found is not None:
                link.replace_self(self._shown(link, found))

    def _found(self, link: nodes.Element) -> str | None:
        """The target as a path in the repository, unless Sphinx finds it by itself."""
        docs = Path(self.env.srcdir)
        folder = Path(self.env.doc2path(self.env.docname)).parent
        target = link["reftarget"].partition("#")[0]
        if target and link.get("refdomain") == "doc":  # then without its suffix, from docs/
            target = os.path.relpath(docs / target, folder)
        for base in (folder, *self._folders()):
            for suffix in ("", ".md"):
                found = Path(os.path.normpath(base / (target + suffix)))
                if target and found.exists() and found.is_relative_to(docs.parent):
                    is_of_docs = found.is_relative_to(docs) and base == folder
                    return None if is_of_docs else found.relative_to(docs.parent).as_posix()
        return None

    def _folders(self) -> list[Path]:
        """Where links of what this page includes start."""
        root = Path(self.env.srcdir).parent
        pages = self.config.outside_links_pages.items()
        return [(root / path).parent for path, page in pages if page == self.env.docname]

    def _shown(self, link: nodes.Element, path: str) -> list[nodes.Node]:
        """The page; or the path, after the link's own words where these are more than a name."""
        url, words = self.config.outside_links_url, link.astext()
        page = self.config.outside_links_pages.get(path)
        if path.startswith("docs/") and path.endswith(".md"):
            page = path.removeprefix("docs/").removesuffix(".md")
        if page is not None:
            part = link["reftarget"].partition("#")
            place = self.app.builder.get_relative_uri(self.env.docname, page) + part[1] + part[2]
            return [nodes.reference("", words, refuri=place, internal=True)]
        if url:
            return [nodes.reference("", words, refuri=f"{url.rstrip('/')}/{path}")]
        name = FilePath("", path)
        return [nodes.Text(f"{words} ("), name, nodes.Text(")")] if " " in words else [name]


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx."""
    app.add_node(FilePath, html=(open_path, close_path))
    app.add_config_value("outside_links_url", "", "env")
    app.add_config_value("outside_links_pages", {}, "env")
    app.add_transform(OutsideLinks)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
