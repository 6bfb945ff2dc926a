"""Models side by side on one input."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from phnn.acceleration.accelerating import accelerate
from phnn.acceleration.calls import leaves, put_channels_last
from phnn.conversion.converting import convert
from phnn.conversion.folding import to_dense, trace
from phnn.conversion.sites import find_ph_slots
from phnn.runtimes.timing import compiling, count_multiplications, interleave, wait

ROUND_SECONDS = 0.5  # least time of a round on average, in which short calls are repeated


@dataclass(frozen=True)
class Result:
    """What one model takes.

    Attributes:
        name: Of the model.
        parameters: Number of its parameters.
        multiplications: Of one inference.
        inference: Seconds of one inference.
        training: Seconds of forward and backward in training mode; None where it was not timed.
    """

    name: str
    parameters: int
    multiplications: int
    inference: float
    training: float | None


def make_forms(
    model: nn.Module, example: Tensor, n: int, rounds: int = 7, compiled: bool = False
) -> dict[str, nn.Module]:
    """A model and what this library makes of it, in evaluation mode.

    Args:
        model: Any model. One with PH layers is the assembled form, and its plain twin the real one.
        example: An input.
        n: Dimension of the algebras.
        rounds: Of acceleration.
        compiled: Whether they will be compiled. Then they are accelerated for channels last, which
            torch.compile turns convolutions to: weights that are not would be turned in every call.

    Returns:
        The forms "real", "real, accelerated" (as far as that goes without an algebra), "assembled"
        (PH layers as they are trained), "folded" and "accelerated".
    """
    model.eval()
    if find_ph_slots(model):
        real, assembled = to_dense(model), model
    else:
        # a random start will do: the time does not depend on the numbers
        real, assembled = model, convert(model, n, start="random")
    x = put_channels_last(example) if compiled else example
    return {
        "real": real,
        "real, accelerated": accelerate(convert(real, n=1, start="random"), x, rounds=rounds),
        "assembled": assembled,
        "folded": to_dense(assembled, fuse=is_traceable(assembled)),
        "accelerated": accelerate(assembled, x, rounds=rounds),
    }


def compete(
    models: Mapping[str, nn.Module],
    example: Tensor,
    train: Iterable[str] = (),
    rounds: int = 7,
    compiled: bool = False,
) -> list[Result]:
    """Times the models by turns, so that their ratios hold on a busy machine, too.

    Args:
        models: In evaluation mode, by name.
        example: The input of all.
        train: Names of those whose training is timed as well.
        rounds: Timed calls of each, more of short ones.
        compiled: Whether they are compiled before.
    """
    train = tuple(train)
    with compiling(models) if compiled else nullcontext(models) as timed:
        calls = {name: inference_of(model, example) for name, model in timed.items()}
        steps = {name: step_of(timed[name], example) for name in train}
        inference = interleave(calls, rounds, seconds=rounds * ROUND_SECONDS)
        for name in train:
            models[name].train()
        training = interleave(steps, rounds, seconds=rounds * ROUND_SECONDS)
    for name in train:
        models[name].eval().zero_grad()
    return [
        Result(
            name=name,
            parameters=sum(parameter.numel() for parameter in model.parameters()),
            multiplications=count_multiplications(model, example),
            inference=inference[name],
            training=training.get(name),
        )
        for name, model in models.items()
    ]


def inference_of(model: nn.Module, example: Tensor) -> Callable[[], object]:
    """A call that runs the model."""

    def run() -> Any:
        with torch.no_grad():
            return wait(model(example))

    return run


def step_of(model: nn.Module, example: Tensor) -> Callable[[], object]:
    """A call that runs the model forward and backward; to be used in training mode."""

    def run() -> None:
        model.zero_grad()
        outputs = [output for output in leaves(model(example)) if output.requires_grad]
        loss = torch.stack([output.float().square().mean() for output in outputs]).sum()
        loss.backward()
        wait(loss)

    return run


def is_traceable(model: nn.Module) -> bool:
    """Whether torch.fx can trace the model, so that its batch norms may be fused."""
    try:
        trace(model)
    except ValueError:
        return False
    return True
