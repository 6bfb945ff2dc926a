"""Adapters in files: the delta alone, or as a LoRA file that peft reads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from phnn._tables import align
from phnn.adaptation.adapters import Adapter, adapted_layers, find_adapter, list_adapters
from phnn.adaptation.adapting import install, remove_adapter, use_adapter
from phnn.io.atomic import check_output, write_text
from phnn.io.container import (
    CODES,
    SUFFIX,
    ModelFileError,
    find_file,
    read_sealed,
    write_tensors,
)
from phnn.io.header import check_fields, check_strings, parse_layers
from phnn.io.tensors import SHOWN, list_differences
from phnn.nn import PHLayer

__all__ = ["LoraFile", "export_lora", "load_adapter", "save_adapter"]

KIND = "phnn adapter"
VERSION = 1
FIELDS: dict[str, Any] = {
    "version": int,
    "name": str,
    "layers": dict,
    "filter_rank": int | None,
    "share_algebra": bool,
    "dropout": float | int,
    "shared": dict,
}
Model = TypeVar("Model", bound=nn.Module)


def save_adapter(model: nn.Module, path: str | Path, name: str | None = None) -> Path:
    """Save one adapter of a model: its delta alone, a small file.

    Args:
        model: An adapted model.
        path: A file that ends in `.safetensors`.
        name: Of the adapter; by default the one in use.

    Returns:
        The file.
    """
    path = Path(path)
    if path.suffix != SUFFIX:
        raise ValueError(f"path={str(path)!r} must end in {SUFFIX}")
    check_output(path)
    name = _name_in_use(model) if name is None else name
    adapter = find_adapter(model, name)
    tensors: dict[str, Tensor] = {}
    shared: dict[str, str] = {}
    first: dict[int, str] = {}
    for key, tensor in _state(_deltas(model, name)).items():
        if id(tensor) in first:
            shared[key] = first[id(tensor)]
            continue
        if tensor.is_meta or tensor.dtype not in CODES:
            raise ValueError(f"{key} is on the meta device, or of a type that files cannot hold")
        first[id(tensor)] = key
        tensors[key] = tensor.detach().cpu().contiguous()
    header = {
        "kind": KIND,
        "version": VERSION,
        "name": name,
        "layers": {layer: spec.to_dict() for layer, spec in adapter.layers.items()},
        "filter_rank": adapter.filter_rank,
        "share_algebra": adapter.share_algebra,
        "dropout": adapter.dropout,
        "shared": shared,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_tensors(path, tensors, header)
    return path


def load_adapter(
    model: Model, path: str | Path, name: str | None = None, *, inplace: bool = False
) -> Model:
    """Add an adapter from a file to a model, and use it.

    The file is compared with the model before anything is added. Nothing in it is executed.

    Args:
        model: The model that the adapter was made for, adapted or not.
        path: What `save_adapter` wrote.
        name: Of the adapter; by default the one it was saved with.
        inplace: Change the model itself instead of a copy.

    Returns:
        The model.

    Raises:
        ModelFileError: The file is damaged, or is not an adapter of this model.
    """
    file = find_file(path)
    tensors, header = read_sealed(file)
    stored = sum(tensor.numel() for tensor in tensors.values())
    saved, adapter = _parse(file, header, stored)
    name = saved if name is None else name
    if name in list_adapters(model):
        raise ValueError(
            f"the model already has an adapter {name!r}; give another name=, or call "
            f"phnn.remove_adapter(model, {name!r}) first"
        )
    for alias, key in header["shared"].items():
        if key not in tensors or alias in tensors:
            raise ModelFileError(f"{file} cannot be read: {alias} names {key}, which is not there")
    state = {**tensors, **{alias: tensors[key] for alias, key in header["shared"].items()}}
    before = {layer.active for layer in adapted_layers(model).values()} - {None}
    try:
        adapted = install(model, name, adapter, inplace=inplace)
    except (ValueError, TypeError) as error:
        raise ModelFileError(f"{file} is for another model: {error}") from error
    try:
        _fill(_deltas(adapted, name), state)
    except (ValueError, RuntimeError) as error:
        if inplace:  # as it was
            remove_adapter(model, name)
            for old in before:
                use_adapter(model, old)
        raise ModelFileError(f"{file} does not fit the model: {error}") from error
    return adapted


def _fill(deltas: Mapping[str, PHLayer], state: Mapping[str, Tensor]) -> None:
    """Give deltas their tensors, if these are all of theirs and have their shapes."""
    wanted = {key: (tuple(t.shape), t.dtype) for key, t in _state(deltas).items()}
    found = {key: (tuple(t.shape), t.dtype) for key, t in state.items()}
    differences = list_differences(wanted, found, exact=False)
    if differences:
        raise ValueError("\n  ".join(["", *differences[:SHOWN]]))
    for layer, delta in deltas.items():
        prefix = f"{layer}:"
        own = {k.removeprefix(prefix): t for k, t in state.items() if k.startswith(prefix)}
        delta.load_state_dict(own)  # refuses another algebra than its own


@dataclass(frozen=True)
class LoraFile:
    """A delta as a LoRA file; prints as a table.

    Attributes:
        path: The folder that peft reads.
        rank: Of LoRA.
        errors: Of each layer, ‖ΔH − BA‖ / ‖ΔH‖: what the rank leaves out.
    """

    path: Path
    rank: int
    errors: Mapping[str, float]

    def __str__(self) -> str:
        rows = [("layer", "relative error of the delta")]
        rows += [(name, f"{error:.3g}") for name, error in self.errors.items()]
        return "\n".join([f"{self.path}: LoRA of rank {self.rank}", *align(rows, right={1})])


def export_lora(model: nn.Module, path: str | Path, rank: int, name: str | None = None) -> LoraFile:
    """Write an adapter as LoRA in a folder that `peft.PeftModel.from_pretrained` reads.

    The delta of each layer is replaced by the nearest matrix of a rank (truncated SVD).

    Args:
        model: An adapted model; linear layers and `nn.Conv2d` without groups are adapted.
        path: The folder.
        rank: Of LoRA; a sum of Kronecker products mostly has full rank, so the result says what is
            lost.
        name: Of the adapter; by default the one in use.

    Returns:
        What was written, with the error of each layer.
    """
    folder = Path(path)
    check_output(folder / f"adapter_model{SUFFIX}")
    name = _name_in_use(model) if name is None else name
    adapter = find_adapter(model, name)
    if not isinstance(rank, int) or rank < 1:
        raise ValueError(f"rank must be an integer of at least 1, got rank={rank}")
    tensors: dict[str, Tensor] = {}
    errors: dict[str, float] = {}
    for layer, delta in _deltas(model, name).items():
        base = adapted_layers(model)[layer].base
        is_conv = type(base) is nn.Conv2d and base.groups == 1
        if not isinstance(base, nn.Linear) and not is_conv:
            raise ValueError(
                f"{layer} is a {type(base).__name__}; peft's LoRA files hold linear layers and "
                "Conv2d without groups"
            )
        weight = delta.weight.detach().double().cpu()
        kernel = weight.shape[1:]
        U, S, V = torch.linalg.svd(weight.flatten(1), full_matrices=False)
        kept = min(rank, len(S))
        root = S[:kept].sqrt()
        B, A = torch.zeros(len(U), rank), torch.zeros(rank, V.shape[1])
        B[:, :kept], A[:kept] = U[:, :kept] * root, root[:, None] * V[:kept]
        errors[layer] = float(S[kept:].norm() / S.norm().clamp_min(1e-300))
        prefix = f"base_model.model.{layer}"
        tensors[f"{prefix}.lora_A.weight"] = A.unflatten(1, kernel) if is_conv else A
        tensors[f"{prefix}.lora_B.weight"] = B[..., None, None] if is_conv else B
    folder.mkdir(parents=True, exist_ok=True)
    write_tensors(folder / f"adapter_model{SUFFIX}", tensors, {"kind": "LoRA of phnn"})
    config = {
        "peft_type": "LORA",
        "task_type": None,
        "base_model_name_or_path": None,
        "r": rank,
        "lora_alpha": rank,
        "lora_dropout": adapter.dropout,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "target_modules": list(adapter.layers),
    }
    write_text(folder / "adapter_config.json", json.dumps(config, indent=2) + "\n")
    return LoraFile(folder, rank, errors)


def _name_in_use(model: nn.Module) -> str:
    active = {layer.active for layer in adapted_layers(model).values()} - {None}
    if not active:
        find_adapter(model, "")  # says which there are
    return str(active.pop())


def _deltas(model: nn.Module, name: str) -> dict[str, PHLayer]:
    """Return the deltas of one adapter by their layers."""
    found: dict[str, PHLayer] = {}
    for layer, adapted in adapted_layers(model).items():
        if name in adapted.deltas:
            delta = adapted.deltas[name]
            assert isinstance(delta, PHLayer)
            found[layer] = delta
    return found


def _state(deltas: Mapping[str, PHLayer]) -> dict[str, Tensor]:
    return {
        f"{layer}:{key}": tensor
        for layer, delta in deltas.items()
        for key, tensor in delta.state_dict(keep_vars=True).items()
    }


def _parse(file: Path, header: Mapping[str, Any], stored: int) -> tuple[str, Adapter]:
    """Return the name and the adapter that a header describes, with every type checked."""
    if header.get("kind") != KIND:
        raise ModelFileError(f"{file} is not a file of phnn.save_adapter; phnn.load reads models")
    try:
        known = check_fields(header, FIELDS)
        check_strings("shared", known["shared"].values())
        if known["version"] > VERSION:
            raise ValueError(f"it has version {known['version']}; install a newer phnn")
        if not known["name"].isprintable():
            raise ValueError(f"its name is {known['name']!r}")
        if not 0 <= known["dropout"] < 1:
            raise ValueError(f"dropout={known['dropout']} is not between 0 and 1")
        layers = parse_layers(known["layers"], stored)
    except ValueError as error:
        raise ModelFileError(f"{file} cannot be read: {error}") from None
    rank, dropout = known["filter_rank"], float(known["dropout"])
    return known["name"], Adapter(layers, rank, known["share_algebra"], dropout, 0, 0, {})
