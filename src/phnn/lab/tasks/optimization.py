"""Optimizers and learning-rate schedules by name."""

import math
from typing import Any

from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from phnn.lab.recipe import OptimizerOptions, ScheduleOptions
from phnn.nn import param_groups

SMALLEST = 0.01  # size of a tensor that a relative rate refers to: biases may begin at zero
START = 1 / 25  # of the highest rate: where onecycle begins, as in torch's OneCycleLR


class NonFiniteLossError(RuntimeError):
    """The loss became infinite or not a number."""


def make_optimizer(model: nn.Module, options: OptimizerOptions) -> Optimizer:
    """Return an optimizer of a model's parameters.

    Args:
        model: The model. Its learned algebras are a parameter group of their own.
        options: Which optimizer, and its settings.
    """
    groups = param_groups(
        model,
        lr=options.lr,
        balance=("sgd" if options.name == "sgd" else "adam") if options.balanced else None,
        weight_decay=options.weight_decay,
        norm_bias_scale=options.norm_bias_scale,
        filter_scale=options.filter_scale,
        algebra_scale=options.algebra_scale,
        algebra_lr=options.algebra_lr,
        algebra_decay=options.algebra_decay,
        vector_decay=options.vector_decay,
    )
    if options.relative:
        groups = [each for group in groups for each in _scale(group, options.lr)]
    if options.decoupled:
        for group in groups:
            if group["lr"]:  # a rate of zero changes nothing, whatever the decay
                group["weight_decay"] /= group["lr"]
    if options.name == "sgd":
        return SGD(groups, options.lr, momentum=options.momentum, nesterov=options.nesterov)
    kind = Adam if options.name == "adam" else AdamW
    return kind(groups, options.lr)


def _scale(group: dict[str, Any], lr: float) -> list[dict[str, Any]]:
    """Return a group for each tensor, with a rate that is a share of its size."""
    rate = group.get("lr", lr)
    sizes = [float(p.detach().float().square().mean().sqrt()) for p in group["params"]]
    return [
        {**group, "params": [parameter], "lr": rate * max(size, SMALLEST)}
        for parameter, size in zip(group["params"], sizes, strict=True)
    ]


def number_states(state: dict[str, Any], optimizer: Optimizer, model: nn.Module) -> dict[str, Any]:
    """Return the state of an optimizer with parameters numbered as the model has them.

    torch numbers them as the groups have them, and loads any numbers. Lightning takes them for
    the order of the model when it shares a checkpoint out.

    Args:
        state: The state, as torch numbers it.
        optimizer: The optimizer.
        model: The model with its parameters.
    """
    order = {id(parameter): number for number, parameter in enumerate(model.parameters())}
    numbers = [order[id(p)] for group in optimizer.param_groups for p in group["params"]]
    groups = [
        {**group, "params": [numbers[old] for old in group["params"]]}
        for group in state["param_groups"]
    ]
    return {"state": {numbers[o]: v for o, v in state["state"].items()}, "param_groups": groups}


def make_schedule(
    optimizer: Optimizer, options: ScheduleOptions, steps: int, epochs: int
) -> LambdaLR:
    """Return a schedule that is stepped after every optimizer step.

    Args:
        optimizer: The optimizer whose rates change.
        options: Which schedule, and its settings.
        steps: The steps of an epoch.
        epochs: The epochs of the run.
    """
    return LambdaLR(optimizer, lambda step: rate(options, step, steps, epochs))


def rate(options: ScheduleOptions, step: int, steps: int, epochs: int) -> float:
    """Return the learning rate at a step, as a fraction of the highest.

    Args:
        options: Which schedule, and its settings.
        step: The step, counted from 0 over all epochs.
        steps: The steps of an epoch.
        epochs: The epochs of the run.

    Example:
        >>> [round(rate(ScheduleOptions("cosine"), step, 1, 4), 3) for step in range(4)]
        [1.0, 0.854, 0.5, 0.146]
    """
    epoch = step // steps
    if options.name == "cosine":
        return _cosine(epoch / epochs)
    if options.name == "step":
        return float(options.factor ** (epoch // options.every))
    if options.name == "onecycle":
        peak = options.warmup * steps * epochs
        if step < peak:
            return START + (1 - START) * _cosine(1 - step / peak)
        return _cosine((step - peak) / (steps * epochs - peak))
    if options.name == "triangular":
        peak = options.warmup * steps * epochs
        if step < peak:
            return options.start + (1 - options.start) * step / peak
        return 1 - (1 - options.end) * (step - peak) / (steps * epochs - peak)
    return 1.0


def _cosine(progress: float) -> float:
    """Fall from 1 to 0 while progress goes from 0 to 1."""
    return (1 + math.cos(math.pi * min(progress, 1.0))) / 2
