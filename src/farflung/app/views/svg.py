"""Draws figures as self-contained SVG fragments that inherit a page's colours and type.

matplotlib draws in stand-in colours; each becomes a variable of the page's style, so that one drawing serves light,
dark and paper. The same numbers give the same bytes. matplotlib is slow to load, so it is imported where it is used.
"""

from __future__ import annotations

import contextlib
import io
import logging
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDE: Final = 880  # px, on a screen that has room, and on paper
NARROW: Final = 304  # px, on a telephone

# Stand-in colour → the page's variable.
INK, MUTED, RULE, PAPER = "#010101", "#010102", "#010103", "#010104"
S1, S2, S3, S4 = "#010105", "#010106", "#010107", "#010108"
GOOD, WARN, BAD, SOFT = "#010109", "#01010a", "#01010b", "#01010c"
_VARIABLES: Final = {
    INK: "--ink",
    MUTED: "--muted",
    RULE: "--rule",
    PAPER: "--paper",
    S1: "--series-1",
    S2: "--series-2",
    S3: "--series-3",
    S4: "--series-4",
    GOOD: "--good",
    WARN: "--warn",
    BAD: "--bad",
    SOFT: "--soft",
}
_SETTINGS: Final[Any] = {
    "svg.fonttype": "none",  # text stays text: it can be read aloud, searched and copied
    "svg.hashsalt": "farflung",  # no identifier is drawn by lot
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # comes with matplotlib: its widths are those of every machine
    "text.color": INK,
    "text.parse_math": False,  # a name with two dollars is no formula
    "axes.labelcolor": MUTED,
    "axes.edgecolor": RULE,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.facecolor": "none",
    "axes.axisbelow": True,
    "axes.unicode_minus": True,
    "figure.facecolor": "none",
    "grid.color": RULE,
    "grid.linewidth": 0.8,
    "xtick.color": RULE,
    "ytick.color": RULE,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "xtick.major.size": 4,
    "ytick.major.size": 0,
    "lines.linewidth": 2.2,
    "hatch.linewidth": 1.4,
    "legend.frameon": False,
    "legend.borderpad": 0,
    "legend.borderaxespad": 0,
}
_NAMESPACE: Final = re.compile(r"^\{[^}]*\}")
_COLOUR: Final = re.compile(r"#[0-9a-f]{6}")
_POINTS: Final = re.compile(r"(\d+\.\d{2})\d+")
_FONT: Final = re.compile(r"font: (?:(bold|[6-9]00) )?([\d.]+)px [^;]*")
_REFERENCE: Final = re.compile(r"url\(#([^)]+)\)")
_DROPPED: Final = frozenset({"metadata", "style", "title"})


class Chart(Struct, frozen=True):
    """One chart twice: for a wide page and for a narrow one. Both are pieces of SVG."""

    key: str
    title: str
    wide: str
    narrow: str


class ChartCanvas(Struct, frozen=True):
    """The paper that a chart is drawn on; lengths are pixels of the page."""

    figure: Any  # a matplotlib Figure
    width: int

    @property
    def is_narrow(self) -> bool:
        """Whether there is room for a telephone's screen only."""
        return self.width <= NARROW

    @property
    def type_size(self) -> float:
        """The size of letters."""
        return 11.5 if self.is_narrow else 13


def draw(key: str, title: str, description: str, height: int, paint: Callable[[ChartCanvas], None]) -> Chart:
    """Paints both widths. `height` is the wide one's; `paint` may change it through `stretch`."""
    with _quiet():
        import matplotlib
        from matplotlib.figure import Figure

    pieces = []
    for width in (WIDE, NARROW):
        with _quiet(), matplotlib.rc_context():
            matplotlib.rcdefaults()
            matplotlib.rcParams.update(_SETTINGS)
            sheet = ChartCanvas(Figure(figsize=(width / 72, height / 72)), width)
            matplotlib.rcParams["font.size"] = sheet.type_size
            paint(sheet)
            pieces.append(_fragment(sheet.figure, f"{key}-{width}", title, description))
    return Chart(key, title, *pieces)


def load() -> None:
    """Loads matplotlib where it is installed, so that who draws later does not wait: a second of processor time, and
    more where its list of fonts is made first.
    """
    with contextlib.suppress(ImportError), _quiet():
        import matplotlib.backends.backend_svg
        import matplotlib.figure  # noqa: F401


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """matplotlib tells the terminal about its caches; this terminal belongs to the run."""
    log = logging.getLogger("matplotlib")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


def stretch(sheet: ChartCanvas, height: int) -> None:
    """Makes the paper `height` pixels high."""
    sheet.figure.set_size_inches(sheet.width / 72, height / 72)


def place(sheet: ChartCanvas, left: float, bottom: float, right: float, top: float) -> Any:
    """Axes with margins in pixels; what is left is the drawing."""
    width, height = sheet.width, sheet.figure.get_figheight() * 72
    box = (left / width, bottom / height, 1 - (left + right) / width, 1 - (bottom + top) / height)
    return sheet.figure.add_axes(box)


def _fragment(figure: Figure, prefix: str, title: str, description: str) -> str:
    """The figure as `<svg role="img">` with its own names for everything in it."""
    out = io.BytesIO()
    figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    root = ET.fromstring(out.getvalue())  # noqa: S314 - written two lines above
    _strip(root)
    used = {name for each in root.iter() for name in _references(each)}
    for each in root.iter():
        _adopt(each, prefix, used)
    box = root.get("viewBox", "")
    root.attrib.clear()
    root.attrib.update({"viewBox": box, "role": "img", "aria-labelledby": f"{prefix}-t {prefix}-d"})
    for number, (tag, text) in enumerate((("title", title), ("desc", description))):
        said = ET.Element(tag, {"id": f"{prefix}-{tag[0]}"})
        said.text = text
        root.insert(number, said)
    return ET.tostring(root, encoding="unicode", short_empty_elements=True)


def _strip(parent: ET.Element) -> None:
    """Drops what speaks to a file's reader and not to a page's, namespaces and comments included."""
    parent.tag = _NAMESPACE.sub("", parent.tag)
    parent.tail = None
    if parent.tag != "text":
        parent.text = None
    for child in list(parent):
        if not isinstance(child.tag, str) or _NAMESPACE.sub("", child.tag) in _DROPPED:
            parent.remove(child)
        else:
            _strip(child)


def _references(element: ET.Element) -> set[str]:
    found = set()
    for key, value in element.attrib.items():
        found.update(_REFERENCE.findall(value))
        if key.endswith("href"):
            found.add(value.removeprefix("#"))
    return found


def _adopt(element: ET.Element, prefix: str, used: set[str]) -> None:
    old = dict(element.attrib)
    element.attrib.clear()
    for key, value in old.items():
        name = _NAMESPACE.sub("", key)
        if name == "id":
            if value in used:
                element.set("id", f"{prefix}-{value}")
            continue
        if name == "href":
            value = f"#{prefix}-{value.removeprefix('#')}"
        value = _REFERENCE.sub(rf"url(#{prefix}-\1)", value)
        value = _COLOUR.sub(lambda m: f"var({_VARIABLES[m[0]]})" if m[0] in _VARIABLES else m[0], value)
        if name == "style":
            value = _FONT.sub(_type, value)
        if name in ("fill", "stroke"):  # a variable is understood in a style alone
            name, value = "style", f"{element.get('style', '')};{name}: {value}".strip(";")
        element.set(name, _POINTS.sub(r"\1", value) if name in ("d", "x", "y", "transform") else value)


def _type(found: re.Match[str]) -> str:
    weight = f"; font-weight: {found[1]}" if found[1] else ""
    return f"font-size: {found[2]}px{weight}"
