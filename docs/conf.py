"""How the pages become HTML: `make docs`. Nothing is fetched, and the built pages ask no other host for anything."""

from __future__ import annotations

import sys
from pathlib import Path

from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx

import farflung

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "farflung"
author = "the farflung authors"
project_copyright = "the farflung authors, Apache-2.0"
version = release = farflung.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "change_fragments", "outside_links", "plain_docstrings", "verbs"]
exclude_patterns = ["_build", "_ext", "_static", "pictures"]
suppress_warnings: list[str] = []
nitpicky = True
# Types of the standard library and of others: their documentation is elsewhere, and nothing is fetched.
nitpick_ignore_regex = [("py:.*", ".*")]

outside_links_pages = {
    "README.md": "project/readme",
    "CONTRIBUTING.md": "project/contributing",
    "SECURITY.md": "project/security",
    "examples/README.md": "project/examples",
}

myst_enable_extensions = ["deflist"]
myst_heading_anchors = 4
default_role = "literal"  # docstrings are Markdown-like: `name` is a name
pygments_style = "friendly"
pygments_dark_style = "native"
highlight_language = "text"

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
autodoc_type_aliases = {name: name for name in ("AnyEvent", "Watch")}
add_module_names = False
python_use_unqualified_type_names = True

html_theme = "furo"
html_title = f"farflung {version}"
html_static_path = ["_static"]
html_css_files = ["farflung.css"]
html_copy_source = False
html_show_sphinx = False
html_show_sourcelink = False
html_theme_options = {"navigation_with_keys": False, "footer_icons": []}
templates_path: list[str] = []


def setup(app: Sphinx) -> None:
    """Two blocks of docs/protocol/payload.md are read by tests under languages of their own: they are plain text."""
    for language in ("coded", "golden", "merge"):
        app.add_lexer(language, TextLexer)
