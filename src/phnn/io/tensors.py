"""The tensors of a model by name, type and shape."""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

SHOWN = 10  # names listed in one error

TensorSpec = tuple[tuple[int, ...], torch.dtype]


def specs_of(model: nn.Module) -> dict[str, TensorSpec]:
    """Return shape and type of every tensor in the state of a model."""
    return {name: (tuple(t.shape), t.dtype) for name, t in model.state_dict().items()}


def list_differences(
    expected: Mapping[str, TensorSpec], found: Mapping[str, TensorSpec], *, exact: bool
) -> list[str]:
    """List what is missing, unexpected or different.

    Args:
        expected: The tensors of the model.
        found: The tensors of the file.
        exact: Whether a floating type differs from another.
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
    """Return the names of the tensors that hold no numbers."""
    return [name for name, tensor in tensors.items() if tensor.is_meta]


def find_meta(model: nn.Module) -> list[str]:
    """Return the names of all tensors of a model that hold no numbers.

    Besides parameters and buffers these are plain attributes of its modules, also in lists, tuples
    and dicts.
    """
    found = names_on_meta(dict([*model.named_parameters(), *model.named_buffers()]))
    for prefix, module in model.named_modules():
        for name, value in vars(module).items():
            if name not in ("_parameters", "_buffers", "_modules"):
                full = f"{prefix}.{name}".lstrip(".")
                found += [full for tensor in _tensors_in(value) if tensor.is_meta]
    return found


def _tensors_in(value: object) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors_in(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors_in(item)


def enumerate_names(names: list[str]) -> str:
    """Return the names as one text, cut where the list gets long."""
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" * (len(names) > SHOWN))
