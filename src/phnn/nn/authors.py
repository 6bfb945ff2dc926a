"""State dicts of the authors' own layers."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

_SPELLINGS = {"A": ("F", "S"), "a": ("s",)}  # the names of the pair over the history of that code


def from_authors(state_dict: Mapping[str, Tensor]) -> dict[str, Tensor]:
    r"""Translate a state dict of the paper's published code (HyperNets) to that of PH layers.

    There, a layer holds `A` (n, n, n) and `F` (n, out/n, in/n, \*k), in older versions `a` and `s`.
    Here the terms are stacked, so F is reshaped. Their convolutions have biases that are never
    applied: these are dropped, so load into layers with `bias=False`. All other entries stay.

    Example:
        >>> import torch
        >>> theirs = {"fc.a": torch.ones(2, 2, 2), "fc.s": torch.ones(2, 3, 4)}
        >>> {key: tuple(value.shape) for key, value in from_authors(theirs).items()}
        {'fc.A': (2, 2, 2), 'fc.F': (6, 4)}
    """
    translated = dict(state_dict)
    found = False
    for key, A in state_dict.items():
        prefix, _, name = key.rpartition(".")
        prefix = f"{prefix}." if prefix else ""
        filters = next((f for f in _SPELLINGS.get(name, ()) if prefix + f in state_dict), None)
        if filters is None:
            continue
        F = state_dict[prefix + filters]
        n = A.shape[0]
        if A.shape != (n, n, n) or F.dim() < 3 or F.shape[0] != n:
            raise ValueError(
                f"{key} and {prefix}{filters} are not a pair (n, n, n) and (n, out/n, in/n, ...): "
                f"got {tuple(A.shape)} and {tuple(F.shape)}"
            )
        found = True
        del translated[key], translated[prefix + filters]
        translated[prefix + "A"] = A
        translated[prefix + "F"] = F.flatten(0, 1)
        if F.dim() > 3:
            translated.pop(prefix + "bias", None)
    if not found:
        raise ValueError(
            "no layer of the authors' code (keys A and F, or a and s) among "
            f"{sorted(state_dict)[:5]}"
        )
    return translated
