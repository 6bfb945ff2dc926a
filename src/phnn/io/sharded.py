"""Models from sharded checkpoints, loaded file by file."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from phnn.conversion.sites import Site, find_sites
from phnn.conversion.specs import LayerSpec, install_layers
from phnn.io.container import ModelFileError
from phnn.io.header import check_fields, parse_layers, parse_version
from phnn.io.shards import (
    FORMAT,
    INDEX,
    digest_file,
    digest_index,
    list_files,
    read_json,
    read_shard,
    read_tensors,
    update_digest,
)
from phnn.io.tensors import TensorSpec, enumerate_names


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
    files = list_files(path, index)
    specs = {file: read_shard(path, file, names) for file, names in files.items()}
    layers, digests = _parse(path, index, specs)
    built = model if isinstance(model, nn.Module) else model()
    # everything is compared before the model is touched
    _check_modules(path, built, layers)
    missing = _compare(path, built, layers, specs)
    for file, digest in digests.items():
        if digest_file(path / file, specs[file]) != digest:
            raise ModelFileError(f"{path / file} is damaged: its SHA-256 does not match")
    for name, module in dict(built.named_modules()).items():
        if name in layers:
            module.to("meta")  # theirs are replaced
    built = install_layers(built, layers)
    for file, found in specs.items():
        again = sha256()  # the file may have changed since
        for name, tensor in read_tensors(path / file, found):
            update_digest(again, name, tensor)
            _place(built, name, tensor, device)
        if again.hexdigest() != digests[file]:
            raise ModelFileError(f"{path / file} changed while it was read")
    lost = [name for name in missing if built.state_dict()[name].is_meta]
    if lost:
        raise ModelFileError(f"{path} does not hold {enumerate_names(lost)}")
    built.to(device)
    built.phnn_metadata = {}  # type: ignore[assignment]
    return built.eval()


def _parse(
    path: Path, index: Mapping[str, Any], specs: Mapping[str, Mapping[str, TensorSpec]]
) -> tuple[dict[str, LayerSpec], dict[str, str]]:
    """Return the layers and the checksums of the files that an index has, with types checked."""
    stored = sum(math.prod(shape) for found in specs.values() for shape, _ in found.values())
    try:
        version = parse_version(index["phnn"], FORMAT)
        if version >= FORMAT and index.get("phnn_sha256") != digest_index(index):
            raise ValueError("the SHA-256 of the index does not match")
        described = check_fields(index["phnn"], {"layers": dict, "sha256": dict})
        digests: dict[str, str] = check_fields(described["sha256"], dict.fromkeys(specs, str))
        layers = parse_layers(described["layers"], stored)
    except ValueError as error:
        raise ModelFileError(f"{path / INDEX} cannot be read: {error}") from None
    return layers, digests


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


def _compare(
    path: Path,
    model: nn.Module,
    layers: Mapping[str, LayerSpec],
    specs: Mapping[str, Mapping[str, TensorSpec]],
) -> list[str]:
    """Return the tensors of the model that the files lack, after a comparison of all others."""
    tensors = [*model.parameters(), *model.buffers()]
    try:  # in a copy without memory
        outline = install_layers(copy.deepcopy(model, {id(t): _forget(t) for t in tensors}), layers)
    except (TypeError, ValueError) as error:
        raise ModelFileError(f"{path} is for another model: {error}") from error
    wanted = outline.state_dict(keep_vars=True)
    found = {name: shape for each in specs.values() for name, (shape, _) in each.items()}
    unexpected = sorted(found.keys() - wanted.keys())
    if unexpected:
        raise ModelFileError(
            f"{path} does not fit the model, which lacks {enumerate_names(unexpected)}"
        )
    for name, shape in found.items():
        if tuple(wanted[name].shape) != shape:
            raise ModelFileError(
                f"{path}: {name} has shape {shape} in the file, and {tuple(wanted[name].shape)} in "
                "the model"
            )
    lacking = [name for name in wanted if name not in found]
    # tied tensors are stored once; of others, the constructor's values would be used in silence
    held = {id(wanted[name]) for name in found}
    strange = [name for name in lacking if id(wanted[name]) not in held]
    if strange:
        raise ModelFileError(f"{path} does not hold {enumerate_names(strange)}")
    return lacking


def _forget(tensor: Tensor) -> Tensor:
    """Return a tensor of the same shape and type without memory."""
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(tensor.detach().to("meta"), requires_grad=tensor.requires_grad)
    return tensor.to("meta")


def _place(model: nn.Module, name: str, tensor: Tensor, device: torch.device | str) -> None:
    """Give a tensor to the model; one that has memory keeps it, and with it its ties."""
    owner, _, attribute = name.rpartition(".")
    module = model.get_submodule(owner)
    target = getattr(module, attribute)
    with torch.no_grad():
        if not target.is_meta:
            target.copy_(tensor)
        elif isinstance(target, nn.Parameter):
            placed = tensor.to(device, target.dtype)
            setattr(module, attribute, nn.Parameter(placed, requires_grad=target.requires_grad))
        else:
            module._buffers[attribute] = tensor.to(device, target.dtype)
