"""Arguments and outputs of a model that hold tensors at any depth."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from phnn.functional import _formats as formats


def split_arguments(example: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments that a user means by a tensor, a sequence or a mapping."""
    if isinstance(example, Tensor):
        return (example,), {}
    if isinstance(example, Mapping):
        return (), dict(example)
    if isinstance(example, Sequence) and not isinstance(example, str):
        return tuple(example), {}
    raise TypeError(
        "example_input must be a tensor, a tuple of arguments or a dict of named ones, "
        f"got {type(example).__name__}"
    )


def copy_tensors(arguments: Any) -> Any:
    """Return the same arguments in memory of their own."""
    if isinstance(arguments, Tensor):
        return arguments.clone()
    if type(arguments) in (list, tuple):
        return type(arguments)(map(copy_tensors, arguments))
    if type(arguments) is dict:
        return {name: copy_tensors(value) for name, value in arguments.items()}
    return arguments


def put_channels_last(value: Any) -> Any:
    """Return an argument with its channels last in memory, where it is of images or volumes."""
    if isinstance(value, Tensor) and value.is_floating_point():
        return formats.put_channels_last(value)
    return value


def leaves(output: Any) -> list[Tensor]:
    """Return the tensors in what a model returns, in order."""
    if isinstance(output, Tensor):
        return [output]
    if isinstance(output, Mapping):
        output = output.values()
    elif dataclasses.is_dataclass(output) and not isinstance(output, type):
        output = [getattr(output, field.name) for field in dataclasses.fields(output)]
    elif not isinstance(output, list | tuple):
        return []
    return [tensor for part in output for tensor in leaves(part)]


def compare(actual: Tensor, expected: Tensor) -> tuple[float, float]:
    """Return the largest difference of two outputs, and the largest finite expected value."""
    if not expected.numel():
        return 0.0, 0.0
    if expected.is_complex():
        actual, expected = torch.view_as_real(actual), torch.view_as_real(expected)
    actual, expected = actual.cpu().double(), expected.cpu().double()
    same = actual == expected  # infinite values, too
    difference = (actual - expected).abs().masked_fill(same, 0.0).max().item()
    return difference, expected.abs().masked_fill(~expected.isfinite(), 0.0).max().item()
