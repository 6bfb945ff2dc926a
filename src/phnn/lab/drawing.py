"""Colours and files of figures."""

from __future__ import annotations

import colorsys
import hashlib
import io
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from phnn._names import printable
from phnn.io import replacing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's palette: colour-blind readers can tell the colours apart, also in grey
COLOURS = ("#000000", "#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
# variants that many comparisons have: each keeps its colour in all figures of all reports
VARIANTS = {
    "real": "#000000",
    "quaternion": "#D55E00",
    "n=1": "#56B4E9",
    "n=2": "#0072B2",
    "n=3": "#009E73",
    "n=4": "#CC79A7",
    "n=8": "#E69F00",
}
RESOLUTION = 150  # dots per inch of a PNG

Format = Literal["png", "svg"]

# what we draw as formulas: A_1, -F_2, H = and the powers of ten of a logarithmic axis
_FORMULA = re.compile(r"\$(\\mathdefault\{[^$]*\}|-?[AFH](_\{?\d+\}?)?)\$( =)?")


class Picture(NamedTuple):
    """A figure with its name and caption.

    Attributes:
        name: A name that no other picture of the report has.
        figure: The figure.
        caption: What the figure shows, also for readers who cannot see it.
        format: The format on a page: svg, or png for photographs.
    """

    name: str
    figure: Figure
    caption: str
    format: Format = "svg"


def assign_colours(names: Iterable[str]) -> dict[str, str]:
    """Return a colour for each variant: the same one for the same name, whatever the others are.

    Example:
        >>> assign_colours(["resnet20 n=4", "real"])
        {'resnet20 n=4': '#CC79A7', 'real': '#000000'}
    """
    return {name: _choose_colour(name) for name in names}


def _choose_colour(name: str) -> str:
    """Return the colour of a common variant, or one by a hash of the name."""
    words = name.split()  # a run alone is called by its network, too
    for known in (name, words[-1] if len(words) == 2 else name):
        if known in VARIANTS:
            return VARIANTS[known]
    digest = hashlib.sha256(name.encode()).digest()
    red, green, blue = colorsys.hls_to_rgb(digest[0] / 256, 0.35 + digest[1] / 1024, 0.6)
    return f"#{round(255 * red):02X}{round(255 * green):02X}{round(255 * blue):02X}"


def tint(colour: str, share: float) -> tuple[float, float, float]:
    """Return a colour mixed with white.

    Args:
        colour: Any colour of matplotlib.
        share: 1 for the colour itself, 0 for white.
    """
    from matplotlib.colors import to_rgb

    red, green, blue = (1 - share * (1 - value) for value in to_rgb(colour))
    return red, green, blue


def save_figure(figure: Figure, out: Path, name: str) -> list[Path]:
    """Write a figure as PNG and SVG; the same figure gives the same bytes.

    Args:
        figure: The figure.
        out: The folder, which is created if necessary.
        name: The name of the files without suffix.

    Returns:
        The paths of the files.
    """
    out.mkdir(parents=True, exist_ok=True)
    formats: tuple[Format, ...] = ("png", "svg")
    file = re.sub(r"[^\w=.-]+", "-", name)  # data sets of the hub have a slash in their names
    paths = {format: out / f"{file}.{format}" for format in formats}
    for format, path in paths.items():
        with replacing(path) as temporary:
            temporary.write_bytes(render_figure(figure, format, name))
    return list(paths.values())


def _spell_out(figure: Figure) -> None:
    """Show names as they are: "$" begins no formula but ours, and no character is a command."""
    from matplotlib.text import Text

    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            labels = [label.get_text() for label in axis.get_ticklabels()]  # makes missing ones
            if any(printable(label) != label for label in labels):
                axis.set_ticks(axis.get_ticklocs(), labels=[printable(label) for label in labels])
    for text in figure.findobj(Text):
        assert isinstance(text, Text)
        shown = text.get_text()
        if "$" in shown and not _FORMULA.fullmatch(shown):
            text.set_parse_math(False)
        if printable(shown) != shown:
            text.set_text(printable(shown))


def render_figure(figure: Figure, format: Format, name: str) -> bytes:
    """Return a figure as the content of a file.

    Args:
        figure: The figure.
        format: The format of the file.
        name: Makes the ids inside an SVG unique.
    """
    from matplotlib import rc_context

    file = io.BytesIO()
    # fixed ids inside the SVG, and no date
    _spell_out(figure)
    with rc_context({"svg.hashsalt": name, "svg.fonttype": "none"}):
        undated = {"Date": None} if format == "svg" else {}
        figure.savefig(file, format=format, dpi=RESOLUTION, metadata=undated)
    return file.getvalue()
