"""Where networks look: Grad-CAM (Selvaraju et al., 2017)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SMALLEST = 4  # pixels per side of the smallest feature map that still shows positions


class Look(NamedTuple):
    """The answers of a network for some images, and where it looked.

    Attributes:
        name: The name of the network.
        maps: (N, height, width), between 0 and 1.
        answers: The class and its probability for each image.
    """

    name: str
    maps: Tensor
    answers: list[tuple[str, float]]


def find_layer(model: nn.Module, inputs: Tensor) -> nn.Module:
    """Return the last module with a feature map that still shows positions.

    Args:
        model: A network in evaluation mode.
        inputs: One image or more.

    Raises:
        ValueError: There is no such module.
    """
    found: list[nn.Module] = []

    def note(module: nn.Module, _: Any, output: Any) -> None:
        if isinstance(output, Tensor) and output.ndim == 4 and min(output.shape[2:]) >= SMALLEST:
            found.append(module)

    hooks = [module.register_forward_hook(note) for module in model.modules()]
    try:
        with torch.no_grad():
            model(inputs[:1])
    finally:
        for hook in hooks:
            hook.remove()
    if not found:
        raise ValueError(
            f"{type(model).__name__} has no feature map of {SMALLEST}×{SMALLEST} pixels or more "
            f"for images of shape {tuple(inputs.shape[1:])}"
        )
    return found[-1]


def look(name: str, model: nn.Module, inputs: Tensor, classes: Sequence[str]) -> Look:
    """Return the answers of a network, and the positions in each image that support its answer.

    Args:
        name: The name of the network.
        model: The network in evaluation mode.
        inputs: Images as the network takes them.
        classes: The names of the classes.
    """
    from captum.attr import LayerAttribution, LayerGradCam

    with torch.no_grad():
        probabilities, answers = model(inputs).softmax(1).max(1)
    cam = LayerGradCam(model, find_layer(model, inputs))
    maps = cam.attribute(inputs, target=answers, relu_attributions=True).detach()
    maps = LayerAttribution.interpolate(maps, inputs.shape[2:], "bilinear").sum(1)
    highest = maps.amax((1, 2), keepdim=True)
    maps = maps / highest.where(highest > 0, torch.ones(()))
    names = [classes[answer] for answer in answers.tolist()]
    return Look(name, maps, list(zip(names, probabilities.tolist(), strict=True)))


def draw_looks(images: Tensor, labels: Sequence[str], looks: Sequence[Look], title: str) -> Figure:
    """Draw images, and below each where the networks looked and what they answered.

    Args:
        images: uint8 (N, 3, height, width).
        labels: The true class of each image.
        looks: One for each network.
        title: The title of the figure.
    """
    from matplotlib.figure import Figure

    rows, columns = 1 + len(looks), len(images)
    figure = Figure(figsize=(0.7 + 1.35 * columns, 0.7 + 1.65 * rows), layout="constrained")
    figure.suptitle(title, fontsize="medium")
    panels = figure.subplots(rows, columns, squeeze=False)
    for panel in panels.flat:
        panel.set_xticks([])
        panel.set_yticks([])
    for panel, image, label in zip(panels[0], images, labels, strict=True):
        panel.imshow(image.permute(1, 2, 0).numpy())
        panel.set_title(label, fontsize="small")
    panels[0][0].set_ylabel("image")
    for row, found in zip(panels[1:], looks, strict=True):
        row[0].set_ylabel(found.name)
        for panel, image, map, (name, probability) in zip(
            row, images, found.maps, found.answers, strict=True
        ):
            panel.imshow(image.float().mean(0).numpy(), cmap="gray", vmin=0, vmax=255)
            panel.imshow(map.numpy(), cmap="inferno", alpha=0.6, vmin=0, vmax=1)
            panel.set_title(f"{name} ({100 * probability:.0f} %)", fontsize="small")
    return figure
