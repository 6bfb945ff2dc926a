"""The tensors of a model by name, type and shape, and how they differ from those of another."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

SHOWN = 10  # names listed in one error

TensorSpec = tuple[tuple[int, ...], torch.dtype]


def specs_of(model: nn.Module) -> dict[str, TensorSpec]:
    """Returns shape and type of every tensor in the state of a model."""
    return {name: (tuple(t.shape), t.dtype) for name, t in model.state_dict().items()}


def list_differences(
    expected: Mapping[str, TensorSpec], found: Mapping[str, TensorSpec], *, exact: bool
) -> list[str]:
    """Lists what is missing, unexpected or different.

    Args:
        expected: the tensors of the model.
        found: the tensors of the file.
        exact: whether a floating type differs from another.
    """
    lines = [f"missing: {name}" for name in expected if name not in found]
    lines += [f"unexpected: {name}" for name in found if name not in expected]
    for name in expected.keys() & found.keys():
        (shape, dtype), (other_shape, other_dtype) = expected[name], found[name]
        if shape != other_shape:
            lines.append(f"shape of {name}: {other_shape} in the file, {shape} in the model")
        elif dtype != other_dtype and (
            exact or not (dtype.is_floating_point and other_dtype.is_floating_point)
        ):
            lines.append(f"type of {name}: {other_dtype} in the file, {dtype} in the model")
    return sorted(lines)


def names_on_meta(tensors: Mapping[str, Tensor]) -> list[str]:
    """Returns the names of the tensors that hold no numbers."""
    return [name for name, tensor in tensors.items() if tensor.is_meta]


def enumerate_names(names: list[str]) -> str:
    """Returns the names as one text, cut where the list gets long."""
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" * (len(names) > SHOWN))
