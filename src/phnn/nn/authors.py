"""State dicts of the authors' own layers."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from phnn import algebra

_QUATERNION = ("r_weight", "i_weight", "j_weight", "k_weight")
_SPELLINGS = {"A": ("F", "S"), "a": ("s",)}  # the names of the pair over the history of that code


def from_authors(state_dict: Mapping[str, Tensor]) -> dict[str, Tensor]:
    r"""Translate a state dict of the paper's published code (HyperNets) to that of PH layers.

    There, a layer holds `A` (n, n, n) and `F` (n, out/n, in/n, \*k), in older versions `a` and `s`.
    Here the terms are stacked, so F is reshaped. Their PH convolutions have biases that are never
    applied: these are dropped, so load into layers with `bias=False`. Their quaternion layers hold
    four weights each, which become F, and keep their biases. All other entries stay.

    `phnn.models.load_authors` loads whole networks.

    Example:
        >>> import torch
        >>> theirs = {"fc.a": torch.ones(2, 2, 2), "fc.s": torch.ones(2, 3, 4)}
        >>> {key: tuple(value.shape) for key, value in from_authors(theirs).items()}
        {'fc.A': (2, 2, 2), 'fc.F': (6, 4)}
    """
    translated = dict(state_dict)
    found = _translate_quaternions(translated)
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


def _translate_quaternions(translated: dict[str, Tensor]) -> bool:
    """Translate quaternion layers in place; return whether there are any."""
    first = _QUATERNION[0]
    prefixes = [key.removesuffix(first) for key in translated if key.rpartition(".")[2] == first]
    for prefix in prefixes:
        missing = [name for name in _QUATERNION if prefix + name not in translated]
        if missing:
            raise ValueError(f"{prefix}{first} has no {prefix}{missing[0]} beside it")
        parts = [translated.pop(prefix + name) for name in _QUATERNION]
        if parts[0].dim() == 2:  # their linear layers multiply from the right
            parts = [part.mT for part in parts]
        translated[prefix + "F"] = torch.cat(parts)
        translated[prefix + "A"] = algebra.quaternion.structure.to(parts[0])
    return bool(prefixes)
