"""What is known of each layer of an accelerated model."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from phnn.acceleration.measuring import Measured
from phnn.acceleration.observation import ObservedLayer
from phnn.acceleration.report import LayerSpeed
from phnn.acceleration.workshop import Choice, Workshop
from phnn.analysis.counting import count_multiplications
from phnn.conversion.sites import hooks
from phnn.conversion.specs import LayerSpec
from phnn.forms import Folded, Form
from phnn.forms.norms import Norm


def describe(
    workshop: Workshop, choice: Choice, measured: Sequence[Measured]
) -> tuple[LayerSpeed, ...]:
    """Return the layers of a model as they are chosen.

    Args:
        workshop: Holds the layers in their forms.
        choice: The forms.
        measured: The seconds of all forms that were timed.
    """
    return tuple(
        _describe(workshop, layer, choice[layer.name], measured)
        for layer in workshop.layers.values()
    )


def _describe(
    workshop: Workshop, layer: ObservedLayer, form: Form, measured: Sequence[Measured]
) -> LayerSpeed:
    name, module = layer.name, workshop.build(layer.name, form)
    drawn = [call.draw() for call in layer.calls.elements()]
    inputs = [x.to(layer.layer.F.dtype) if x.is_floating_point() else x for x in drawn]
    after = before = count_multiplications(module, *inputs)
    if not isinstance(layer.placeholder, nn.Identity):
        before = count_multiplications(layer.placeholder, *(x.to("meta") for x in inputs))
    after_it = workshop.norm_after(name, form)
    notes = [
        layer.hindrance or layer.declined,
        *(f"its {kind} are lost" for kind in hooks(layer.layer)),
        # its scale differs between components, and what mixes them cannot take it up
        "batch norm kept" * (after_it is not None),
    ]
    return LayerSpeed(
        name=name,
        kind=str(LayerSpec.of(layer.layer)),
        form=form,
        folded_multiplications=before,
        multiplications=after,
        seconds=_seconds(name, form, measured),
        error=0.0 if isinstance(form, Folded) else _error(layer, module, after_it, inputs[0]),
        note="; ".join(filter(None, notes)),
    )


def _seconds(name: str, form: Form, measured: Sequence[Measured]) -> dict[str, float]:
    """Return the seconds of the forms that were timed with a form, by their labels."""
    for times in measured:
        if form in times[name] and len(times[name]) > 1:
            return {other.label: seconds for other, seconds in times[name].items()}
    return {}


def _error(layer: ObservedLayer, module: nn.Module, after_it: Norm | None, x: Tensor) -> float:
    """Return the difference from what layer and norm compute, relative to its largest value."""
    norm = layer.source.norm
    with torch.no_grad():
        expected, actual = layer.layer(x), module(x)
        expected = expected if norm is None else norm(expected)
        actual = actual if after_it is None else after_it(actual)
    expected, actual = expected.cpu().double(), actual.cpu().double()
    difference, scale = (float(value.abs().max()) for value in (expected - actual, expected))
    if not scale:
        return math.inf if difference else 0.0
    return difference / scale
