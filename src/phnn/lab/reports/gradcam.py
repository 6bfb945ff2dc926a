"""Where networks look: Grad-CAM (Selvaraju et al., 2017)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEAST = 4  # pixels at each side of a feature map that says where


class Look(NamedTuple):
    """What a network answers for images, and where it looks.

    Attributes:
        name: Of the network.
        maps: (N, height, width), between 0 and 1.
        answers: The name of the class and its probability, for each image.
    """

    name: str
    maps: Tensor
    answers: list[tuple[str, float]]


def find_layer(model: nn.Module, inputs: Tensor) -> nn.Module:
    """Returns the last module whose feature map still has places.

    Args:
        model: In evaluation mode.
        inputs: Of one image or more.
    """
    found: list[nn.Module] = []

    def note(module: nn.Module, _: Any, output: Any) -> None:
        if isinstance(output, Tensor) and output.ndim == 4 and min(output.shape[2:]) >= LEAST:
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
            f"{type(model).__name__} has no feature map of {LEAST}×{LEAST} pixels or more for "
            f"images of shape {tuple(inputs.shape[1:])}"
        )
    return found[-1]


def look(name: str, model: nn.Module, inputs: Tensor, classes: Sequence[str]) -> Look:
    """Returns the answers of a network, and what of each image speaks for its answer.

    Args:
        name: Of the network.
        model: In evaluation mode.
        inputs: Images as the network wants them.
        classes: Their names.
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
    """Draws images, and below each where the networks look, side by side with their answers.

    Args:
        images: uint8 (N, 3, height, width).
        labels: What they show.
        looks: One for each network.
        title: Of the figure.
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
    for row, answer in zip(panels[1:], looks, strict=True):
        row[0].set_ylabel(answer.name)
        for panel, image, map, (name, probability) in zip(
            row, images, answer.maps, answer.answers, strict=True
        ):
            panel.imshow(image.float().mean(0).numpy(), cmap="gray", vmin=0, vmax=255)
            panel.imshow(map.numpy(), cmap="inferno", alpha=0.6, vmin=0, vmax=1)
            panel.set_title(f"{name} ({100 * probability:.0f} %)", fontsize="small")
    return figure
