"""Constants of known algebras, shared by all layers."""

from __future__ import annotations

import functools

import torch

from phnn.algebra import Algebra
from phnn.decompose import exact
from phnn.functional import Factors, each

_FACTORS: dict[tuple[Algebra, torch.device, torch.dtype], Factors] = {}


def constant_factors(algebra: Algebra, device: torch.device, dtype: torch.dtype) -> Factors | None:
    """Return the exact CP decomposition of an algebra; None where it saves nothing.

    Args:
        algebra: A known algebra.
        device: Where a layer computes.
        dtype: Its type.
    """
    key = (algebra, device, dtype)
    if key in _FACTORS:
        return _FACTORS[key]
    found = _find(algebra)
    if found is None:
        return None
    with torch.inference_mode(False):  # tensors of that mode could not take part in training
        factors = each(lambda factor: factor.to(device, dtype), found)
    _FACTORS[key] = factors
    return factors


@functools.cache
def _find(algebra: Algebra) -> Factors | None:
    """Return the exact factors on the CPU; the solver would take seconds for others."""
    with torch.inference_mode(False), torch.device("cpu"):
        found = exact.find(algebra.structure)
    if found is None or found.factors.rank >= algebra.n**2:
        return None
    return found.factors
