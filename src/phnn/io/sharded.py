"""Models from sharded checkpoints, loaded file by file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path

import torch
from torch import Tensor, nn

from phnn.conversion.sites import Site, find_sites
from phnn.conversion.specs import LayerSpec, install_layers
from phnn.io.container import ModelFileError
from phnn.io.shards import (
    INDEX,
    read_index,
    read_json,
    read_shard,
    read_tensors,
    update_digest,
)
from phnn.io.tensors import enumerate_names


def load_sharded(
    path: Path, model: nn.Module | Callable[[], nn.Module] | None, device: torch.device | str
) -> nn.Module:
    """Load a checkpoint of `convert_checkpoint`; see `phnn.load`."""
    index = read_json(path / INDEX)
    described = index.get("phnn")
    if not isinstance(described, dict):
        raise ModelFileError(
            f"{path} is a sharded checkpoint that phnn did not write; convert it with phnn convert"
        )
    if model is None:
        raise ModelFileError(
            f"{path} does not say how to build its model; pass model=, a module or a function that "
            "builds it"
        )
    built = model if isinstance(model, nn.Module) else model()
    layers = {name: LayerSpec(**fields) for name, fields in described["layers"].items()}
    _check_modules(path, built, layers)
    for name, module in dict(built.named_modules()).items():
        if name in layers:
            module.to("meta")  # theirs are replaced
    try:
        built = install_layers(built, layers)
    except (TypeError, ValueError) as error:
        raise ModelFileError(f"{path} is for another model: {error}") from error
    files = read_index(path)
    missing = _compare(path, built, files)
    for file, names in files.items():
        specs = read_shard(path, file, names)
        digest = sha256()
        for name, tensor in read_tensors(path / file, specs):
            update_digest(digest, name, tensor)
            _place(built, name, tensor, device)
        if digest.hexdigest() != described["sha256"].get(file):
            raise ModelFileError(f"{path / file} is damaged: its SHA-256 does not match")
    lost = [name for name in missing if built.state_dict()[name].is_meta]
    if lost:
        raise ModelFileError(f"{path} does not hold {enumerate_names(lost)}")
    built.to(device)
    built.phnn_metadata = {}  # type: ignore[assignment]
    return built.eval()


def _check_modules(path: Path, model: nn.Module, layers: Mapping[str, LayerSpec]) -> None:
    """Raise an error for layers whose weights mean something else than the conversion read."""
    sites: dict[str, Site] = {name: site for site in find_sites(model) for name in site.names}
    for name in layers:
        site = sites.get(name)
        if site is None:
            continue  # install_layers says so
        groups = getattr(site.module, "groups", 1)
        if groups != 1 or site.dense is not site.module:
            what = f"{groups} groups" if groups != 1 else "a transposed weight"
            raise ModelFileError(
                f"{path}: {name} is a {type(site.module).__name__} with {what}, which a checkpoint "
                f"does not tell; convert again with --exclude {name}"
            )


def _compare(path: Path, model: nn.Module, files: Mapping[str, list[str]]) -> list[str]:
    """Return the tensors of the model that the files lack, after a comparison of the names."""
    state = model.state_dict()
    found = {name for names in files.values() for name in names}
    unexpected = sorted(found - state.keys())
    if unexpected:
        raise ModelFileError(
            f"{path} does not fit the model, which lacks {enumerate_names(unexpected)}"
        )
    memory = {state[name].data_ptr() for name in found if not state[name].is_meta}
    lacking = [name for name in state if name not in found]
    # tied tensors are stored once; of others, the constructor's values would be used in silence
    strange = [
        name for name in lacking if not state[name].is_meta and state[name].data_ptr() not in memory
    ]
    if strange:
        raise ModelFileError(f"{path} does not hold {enumerate_names(strange)}")
    return lacking


def _place(model: nn.Module, name: str, tensor: Tensor, device: torch.device | str) -> None:
    """Give a tensor to the model; one that has memory keeps it, and with it its ties."""
    owner, _, attribute = name.rpartition(".")
    module = model.get_submodule(owner)
    target = getattr(module, attribute)
    if target.shape != tensor.shape:
        raise ModelFileError(
            f"{name} has shape {tuple(tensor.shape)} in the file, and {tuple(target.shape)} in the "
            "model"
        )
    with torch.no_grad():
        if not target.is_meta:
            target.copy_(tensor)
        elif isinstance(target, nn.Parameter):
            placed = tensor.to(device, target.dtype)
            setattr(module, attribute, nn.Parameter(placed, requires_grad=target.requires_grad))
        else:
            module._buffers[attribute] = tensor.to(device, target.dtype)
