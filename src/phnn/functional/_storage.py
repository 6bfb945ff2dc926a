"""Filters in the type that a file holds."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

STORAGE = ("float32", "float16", "int8")
STEPS = 127  # of int8, on each side of zero


class Encoded(NamedTuple):
    """Filters as a file holds them.

    Attributes:
        values: In the storage type.
        per_unit: Steps of int8 that make 1, for each filter along the first axis; None otherwise.
    """

    values: Tensor
    per_unit: Tensor | None


def check_storage(storage: str) -> None:
    """Raise a ValueError for a storage type that does not exist."""
    if storage not in STORAGE:
        raise ValueError(f"storage must be one of {', '.join(STORAGE)}; got {storage!r}")


def encode(filters: Tensor, storage: str) -> Encoded:
    """Return filters in a storage type; int8 has a scale for each row of the first axis.

    Args:
        filters: Of a floating type.
        storage: One of `STORAGE`; float32 leaves them as they are.

    Raises:
        ValueError: They are too large for the type, or not finite.
    """
    if storage == "float32":
        return Encoded(filters, None)
    if not filters.isfinite().all():
        raise ValueError(f"filters that are not finite cannot be stored as {storage}")
    if storage == "float16":
        values = filters.half()
        if not values.isfinite().all():
            top = filters.abs().max().item()
            raise ValueError(f"filters of up to {top:.3g} are too large for float16; use int8")
        return Encoded(values, None)
    precise: Tensor = filters.double()
    largest: Tensor = precise.abs().flatten(1).amax(1)
    per_unit = STEPS / largest.masked_fill(largest == 0, 1.0)
    per_unit = per_unit.clamp_max(torch.finfo(torch.float32).max).to(torch.float32)
    per_unit = per_unit.view(-1, *(1,) * (filters.dim() - 1))
    values = (precise * per_unit).round().clamp(-STEPS, STEPS).to(torch.int8)
    return Encoded(values, per_unit)


def decode(values: Tensor, per_unit: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Return filters in the type that a layer computes with.

    A division, as OpenVINO keeps a multiplication of int8 by a scale in the graph that it runs, to
    save memory, and computes it in every call.
    """
    filters = values.to(dtype)
    return filters if per_unit is None else filters / per_unit.to(dtype)
