"""What all pictures share: colours, and files that depend on nothing but their content."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from phnn.io import replacing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's colours: told apart by colour-blind readers, and in grey
COLOURS = ("#000000", "#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
RESOLUTION = 150  # dots per inch of a PNG


Format = Literal["png", "svg"]
Say = Callable[[str], None]  # is told what takes a while


class Picture(NamedTuple):
    """A figure with what must be known to show it.

    Attributes:
        name: Its own among those that are shown together.
        figure: What to show.
        caption: Says what it shows, also to those who cannot see it.
        format: What suits it on a page: svg, or png for photographs.
    """

    name: str
    figure: Figure
    caption: str
    format: Format = "svg"


def assign_colours(names: Iterable[str]) -> dict[str, str]:
    """Returns a colour for each name; the first is black."""
    return dict(zip(dict.fromkeys(names), cycle(COLOURS), strict=False))


def tint(colour: str, share: float) -> tuple[float, float, float]:
    """Returns a colour on white: with share 1 as it is, with 0 white."""
    from matplotlib.colors import to_rgb

    red, green, blue = (1 - share * (1 - value) for value in to_rgb(colour))
    return red, green, blue


def save_figure(figure: Figure, out: Path, name: str) -> list[Path]:
    """Writes a figure as PNG and SVG; the same figure gives the same bytes.

    Args:
        figure: What to write.
        out: The folder; made when it does not exist.
        name: Of the files, without suffix.

    Returns:
        The files.
    """
    out.mkdir(parents=True, exist_ok=True)
    formats: tuple[Format, ...] = ("png", "svg")
    file = re.sub(r"[^\w=.-]+", "-", name)  # of a data set of the hub, for one
    paths = {format: out / f"{file}.{format}" for format in formats}
    for format, path in paths.items():
        with replacing(path) as temporary:
            temporary.write_bytes(render_figure(figure, format, name))
    return list(paths.values())


def render_figure(figure: Figure, format: Format, name: str) -> bytes:
    """Returns a figure as the content of a file.

    Args:
        figure: What to render.
        format: Of the file.
        name: Makes the names inside an SVG its own.
    """
    from matplotlib import rc_context

    file = io.BytesIO()
    # fixed names inside the SVG, and no date
    with rc_context({"svg.hashsalt": name, "svg.fonttype": "none"}):
        undated = {"Date": None} if format == "svg" else {}
        figure.savefig(file, format=format, dpi=RESOLUTION, metadata=undated)
    return file.getvalue()
