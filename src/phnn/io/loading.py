"""Models from files, compared before anything is read and never executed."""

import copy
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from phnn.conversion.specs import LayerSpec, install_layers
from phnn.io.container import Header, ModelFileError, find_file, read_header, read_tensors
from phnn.io.tensors import (
    SHOWN,
    TensorSpec,
    enumerate_names,
    list_differences,
    names_on_meta,
    specs_of,
)
from phnn.models import create_model
from phnn.nn import PHLayer

Build = Callable[[], nn.Module]
Layers = Mapping[str, LayerSpec | None]


def load(
    path: str | Path,
    *,
    model: nn.Module | Build | None = None,
    device: torch.device | str = "cpu",
) -> nn.Module:
    """Loads a model that `save` wrote.

    The model is built without memory and compared with the file before any tensor is read. Nothing
    in the file is executed.

    A converted model is loaded into the original one: its plain layers give way to the PH layers
    that the file lists. A PH layer that the given model has already must be that of the file.

    Args:
        path: the file or the folder.
        model: what to load into, for a model that `create_model` did not make: a module, or a
            function without arguments that builds one.
        device: where the model is put; a module that has its tensors already stays where it is.

    Returns:
        The model in evaluation mode. Its `phnn_metadata` holds the metadata it was saved with.

    Raises:
        ModelFileError: the file is damaged, is not a file of `save`, or is for another model.
    """
    file = find_file(path)
    header, found = read_header(file)
    build = _builder(file, header, model)
    with torch.device("meta"):
        built = build()
    layers = header.layers if model is None else _lacking(built, header.layers)
    outline = _install(file, _outline(built, layers) if built is model else built, layers)
    in_place = built is model and not names_on_meta(built.state_dict())
    _compare(file, outline, found, exact=in_place)
    tensors = read_tensors(file, header)
    target = _install(file, built, layers) if built is model else outline
    try:
        if in_place:
            _tie(target, header.shared, layers)
            _copy(target, tensors, header.shared)
        else:
            target = _complete(lambda: _install(file, build(), layers), target, device)
            _assign(target, tensors, header.shared, device)
    except RuntimeError as error:
        # a layer refused its tensor, such as another algebra than its own
        raise ModelFileError(f"{file} is for another model: {error}") from error
    target.phnn_metadata = header.metadata  # type: ignore[assignment]
    return target.eval()


def _builder(file: Path, header: Header, model: nn.Module | Build | None) -> Build:
    if isinstance(model, nn.Module):
        return lambda: model
    if model is not None:
        return model
    if header.config is None:
        raise ModelFileError(
            f"{file} does not say how to build its model, which phnn.create_model did not make; "
            "pass model=, a module or a function that builds it"
        )
    return partial(create_model, **header.config)


# --- layers ------------------------------------------------------------------------------------


def _lacking(model: nn.Module, layers: Layers) -> Layers:
    """Returns the layers without those that somebody's model has as PH layers of its own."""
    modules = dict(model.named_modules(remove_duplicate=False))
    return {
        name: spec
        for name, spec in layers.items()
        if spec is None or not isinstance(modules.get(name), PHLayer)
    }


def _install(file: Path, model: nn.Module, layers: Layers) -> nn.Module:
    try:
        return install_layers(model, layers)
    except ValueError as error:
        raise ModelFileError(f"{file} is for another model: {error}") from error


def _outline(model: nn.Module, layers: Layers) -> nn.Module:
    """Returns a copy of the modules that holds the same tensors, to try the layers on."""
    if not layers:
        return model
    if "" in layers:
        raise ModelFileError(
            f"the given {type(model).__name__} is itself the layer that the file has as a PH "
            "layer; pass a function that builds it"
        )
    tensors = (*model.parameters(), *model.buffers())
    return copy.deepcopy(model, {id(tensor): tensor for tensor in tensors})


def _tie(model: nn.Module, shared: Mapping[str, str], layers: Layers) -> None:
    """Lets new layers share their tensors as the saved ones did."""
    state = model.state_dict(keep_vars=True)
    for alias, name in shared.items():
        layer, _, tensor = alias.rpartition(".")
        if layer in layers:
            setattr(model.get_submodule(layer), tensor, state[name])


# --- comparing ---------------------------------------------------------------------------------


def _compare(file: Path, model: nn.Module, found: Mapping[str, TensorSpec], *, exact: bool) -> None:
    differences = list_differences(specs_of(model), found, exact=exact)
    if differences:
        shown = "\n  ".join(differences[:SHOWN])
        more = len(differences) - SHOWN
        raise ModelFileError(
            f"{file} does not fit the model:\n  {shown}" + (f"\n  and {more} more" * (more > 0))
        )


# --- filling -----------------------------------------------------------------------------------


def _complete(build: Build, model: nn.Module, device: torch.device | str) -> nn.Module:
    """Builds the model in memory if it has buffers that only its constructor can fill."""
    computed = dict(model.named_buffers()).keys() - model.state_dict().keys()
    if not computed:
        return model
    with torch.device(device):
        model = build()
    empty = names_on_meta(dict(model.named_buffers()))
    lost = sorted(computed.intersection(empty))
    if lost:
        raise ModelFileError(
            f"the file does not hold {enumerate_names(lost)}, which model= has on the meta device; "
            "pass a function that builds the model"
        )
    return model


def _assign(
    model: nn.Module,
    tensors: Mapping[str, Tensor],
    shared: Mapping[str, str],
    device: torch.device | str,
) -> None:
    """Makes the tensors those of the model; names that shared one tensor share one again."""
    slots = model.state_dict(keep_vars=True)
    placed: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        placed[name] = tensor.to(device)
        if isinstance(slots[name], nn.Parameter):
            # one Parameter for all its names; load_state_dict would make one for each
            placed[name] = nn.Parameter(placed[name], requires_grad=slots[name].requires_grad)
    placed |= {alias: placed[name] for alias, name in shared.items()}
    model.load_state_dict(placed, assign=True)


def _copy(model: nn.Module, tensors: Mapping[str, Tensor], shared: Mapping[str, str]) -> None:
    aliases = {alias: tensors[name] for alias, name in shared.items()}
    model.load_state_dict({**tensors, **aliases})
