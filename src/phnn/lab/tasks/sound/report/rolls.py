"""Sound events over time, true and found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from phnn.lab.drawing import COLOURS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BLACK, _VERMILION, BLUE, *_ = COLOURS
KINDS = {"found": BLUE, "missed": "#E69F00", "false alarm": BLACK}


def draw_roll(
    truth: Tensor, found: Tensor, classes: Sequence[str], *, seconds: float, title: str
) -> Figure:
    """Draw which classes sound in each frame: found, missed or a false alarm.

    Args:
        truth: The true events, boolean (frames, classes).
        found: The events that were found, boolean (frames, classes).
        classes: The names of the classes.
        seconds: The duration of a frame.
        title: The title of the figure.

    Raises:
        ValueError: The shapes do not match the classes.
    """
    if truth.shape != found.shape or truth.ndim != 2 or truth.shape[1] != len(classes):
        raise ValueError(
            f"truth of shape {tuple(truth.shape)} and found of shape {tuple(found.shape)} do not "
            f"match {len(classes)} classes; both must have shape (frames, {len(classes)})"
        )
    from matplotlib.colors import ListedColormap
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    truth, found = truth.bool(), found.bool()
    values = (truth & found).int() + 2 * (truth & ~found).int() + 3 * (~truth & found).int()
    figure = Figure(figsize=(6.8, 1.4 + 0.26 * len(classes)), layout="constrained")
    panel = figure.subplots()
    panel.imshow(
        values.T.cpu().numpy(), cmap=ListedColormap(["white", *KINDS.values()]), vmin=0, vmax=3,
        aspect="auto", interpolation="nearest",
        extent=(0, seconds * len(values), len(classes) - 0.5, -0.5),
    )  # fmt: skip
    panel.set_title(title, fontsize="medium")
    panel.set_xlabel("time (s)")
    names = [name.replace("_", " ") for name in classes]
    panel.set_yticks(range(len(classes)), names, fontsize="small")
    panel.set_yticks([i + 0.5 for i in range(len(classes) - 1)], minor=True)
    panel.grid(which="minor", axis="y", alpha=0.3)
    panel.tick_params(which="minor", length=0)
    handles = [Patch(color=colour, label=kind) for kind, colour in KINDS.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False)
    return figure
