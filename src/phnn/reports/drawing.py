"""What all pictures share: colours, and files that depend on nothing but their content."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from phnn.io import replacing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's colours: told apart by colour-blind readers, and in grey
COLOURS = ("#000000", "#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
RESOLUTION = 150  # dots per inch of a PNG


def save_figure(figure: Figure, out: Path, name: str) -> list[Path]:
    """Writes a figure as PNG and SVG; the same figure gives the same bytes.

    Args:
        figure: What to write.
        out: The folder; made when it does not exist.
        name: Of the files, without suffix.

    Returns:
        The files.
    """
    from matplotlib import rc_context

    out.mkdir(parents=True, exist_ok=True)
    paths = [out / f"{name}.{suffix}" for suffix in ("png", "svg")]
    # fixed names inside the SVG, and no date
    with rc_context({"svg.hashsalt": name, "svg.fonttype": "none"}):
        for path in paths:
            undated = {"Date": None} if path.suffix == ".svg" else {}
            with replacing(path) as temporary:
                figure.savefig(temporary, format=path.suffix[1:], dpi=RESOLUTION, metadata=undated)
    return paths
