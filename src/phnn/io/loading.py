"""Models from files."""

import copy
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from phnn.conversion.sites import FOLDING
from phnn.conversion.specs import LayerSpec, install_layers
from phnn.io.container import ModelFileError, find_file, read_header, read_tensors
from phnn.io.header import Header
from phnn.io.sharded import load_sharded
from phnn.io.shards import is_sharded
from phnn.io.tensors import (
    SHOWN,
    TensorSpec,
    enumerate_names,
    find_meta,
    list_differences,
    names_on_meta,
    specs_of,
)
from phnn.models import create_model

Build = Callable[[], nn.Module]
Layers = Mapping[str, LayerSpec | None]


def load(
    path: str | Path,
    *,
    model: nn.Module | Build | None = None,
    device: torch.device | str = "cpu",
) -> nn.Module:
    """Load a model that `save` wrote.

    The model is compared with the file before any tensor is read. Nothing in the file is executed.
    The loaded model owns its memory: what happens to the file later does not change it.

    A converted model is loaded into the original one: the PH layers that the file lists replace its
    plain layers. A PH layer that the given model has already must be that of the file.

    Args:
        path: The file or the folder; also the folder of a sharded checkpoint that `phnn convert`
            wrote.
        model: What to load into, for a model that `create_model` did not make: a module, or a
            function without arguments that builds one. A module on the meta device needs no memory
            beside that of the file.
        device: Where the model is put; a module that has its tensors already stays where it is.

    Returns:
        The model in evaluation mode. Its `phnn_metadata` holds the metadata it was saved with.

    Raises:
        ModelFileError: The file is damaged, is not a file of `save`, or is for another model.
    """
    if is_sharded(path):
        return load_sharded(Path(path), model, device)
    file = find_file(path)
    header, found = read_header(file)
    if isinstance(model, nn.Module):
        built, layers = model, _lacking(model, header.layers)
        outline = _outline(model, layers)  # the given model stays as it is when it does not fit
    elif model is not None:
        built = outline = _call(model)
        layers = _lacking(built, header.layers)
        _empty(built, layers)
    else:
        built, layers = build_model(file, header), {}
        outline = built
    in_place = built is model and not names_on_meta(built.state_dict())
    outline = _install(file, outline, layers)
    _compare(file, outline, found, exact=in_place)
    tensors = read_tensors(file, header)
    target = _install(file, built, layers) if built is model else outline
    try:
        if in_place:
            _tie(target, header.shared, layers)
            _copy(target, tensors, header.shared)
        else:
            _assign(target, tensors, header.shared, device)
    except (RuntimeError, ValueError) as error:
        # a layer refused its tensor, such as another algebra than its own
        raise ModelFileError(f"{file} is for another model: {error}") from error
    _require_numbers(target)
    if not in_place:
        target.to(device)  # what the file does not hold
    target.phnn_metadata = header.metadata  # type: ignore[assignment]
    return target.eval()


def build_model(file: Path, header: Header) -> nn.Module:
    """Build the network of the zoo that a file describes, on the meta device.

    Raises:
        ModelFileError: The file does not say how to build it, or cannot mean what it says.
    """
    if header.config is None:
        raise ModelFileError(
            f"{file} does not say how to build its model, which phnn.create_model did not make; "
            "pass model=, a module or a function that builds it"
        )
    try:
        with torch.device("meta"):
            return install_layers(create_model(**header.config), header.layers)
    except ImportError:
        raise
    except Exception as error:  # whatever somebody wrote there
        raise ModelFileError(f"{file} describes a model that cannot be built: {error}") from error


def _call(build: Build) -> nn.Module:
    # not on the meta device: a constructor may read values, or keep tensors that no file holds
    built = build()
    if not isinstance(built, nn.Module):
        raise TypeError(f"model= returns {type(built).__name__}, not a torch.nn.Module")
    return built


# --- layers ------------------------------------------------------------------------------------


def _lacking(model: nn.Module, layers: Layers) -> Layers:
    """Return the layers without those that somebody's model has as PH layers of its own."""
    modules = dict(model.named_modules(remove_duplicate=False))
    return {
        name: spec
        for name, spec in layers.items()
        if spec is None or not isinstance(modules.get(name), FOLDING)
    }


def _install(file: Path, model: nn.Module, layers: Layers) -> nn.Module:
    try:
        return install_layers(model, layers)
    except (TypeError, ValueError) as error:
        raise ModelFileError(f"{file} is for another model: {error}") from error


def _empty(model: nn.Module, layers: Layers) -> None:
    """Put the layers that will be replaced on the meta device: theirs are not drawn in vain."""
    for name, module in dict(model.named_modules(remove_duplicate=False)).items():
        if name in layers:
            module.to("meta")


def _outline(model: nn.Module, layers: Layers) -> nn.Module:
    """Return a copy of the modules that holds the same tensors, to try the layers on."""
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
    """Let new layers share their tensors as the saved ones did."""
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


def _require_numbers(model: nn.Module) -> None:
    lost = find_meta(model)
    if lost:
        raise ModelFileError(
            f"the file does not hold {enumerate_names(lost)}, which model= has on the meta device; "
            "pass a function that builds the model"
        )


# --- filling -----------------------------------------------------------------------------------


def _assign(
    model: nn.Module,
    tensors: Mapping[str, Tensor],
    shared: Mapping[str, str],
    device: torch.device | str,
) -> None:
    """Give the tensors to the model; names that shared one tensor share one again."""
    before = model.state_dict(keep_vars=True)
    placed: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        placed[name] = tensor.to(device)
        if isinstance(before[name], nn.Parameter):
            # one Parameter for all its names; load_state_dict would make one for each
            placed[name] = nn.Parameter(placed[name], requires_grad=before[name].requires_grad)
    placed |= {alias: placed[name] for alias, name in shared.items()}
    _load(model, placed, assign=True)


def _copy(model: nn.Module, tensors: Mapping[str, Tensor], shared: Mapping[str, str]) -> None:
    _load(model, {**tensors, **{alias: tensors[name] for alias, name in shared.items()}})


def _load(model: nn.Module, tensors: Mapping[str, Tensor], *, assign: bool = False) -> None:
    state = model.state_dict()  # with the versions of the modules, which some of them ask for
    state.update(tensors)
    model.load_state_dict(state, assign=assign)
