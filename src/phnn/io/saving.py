"""Models to files."""

import copy
import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from phnn.conversion.sites import check_model, check_whole
from phnn.conversion.specs import LayerSpec, describe_layers, find_changes, install_layers
from phnn.forms.computed import filters_of, store_filters
from phnn.functional._storage import check_storage, encode
from phnn.io.atomic import check_output, write_text
from phnn.io.card import render_card, write_card
from phnn.io.container import CODES, SCALES, SUFFIX, write_model
from phnn.io.header import Header
from phnn.io.tensors import enumerate_names, list_differences, names_on_meta, specs_of
from phnn.models import create_model, list_models
from phnn.nn.delta import AdaptedLayer
from phnn.runtimes.nested import compare, leaves, split_arguments

OTHER_SUFFIXES = {".pt", ".pth", ".bin", ".ckpt", ".onnx", ".pkl", ".h5"}


def save(
    model: nn.Module,
    path: str | Path,
    *,
    metadata: Mapping[str, Any] | None = None,
    storage: str = "float32",
    example_input: Any = None,
) -> Path:
    """Save a model in one file, or in a folder laid out as on the Hugging Face hub.

    The file holds each tensor once, even if it is shared, and says how to rebuild a model that
    `create_model` made. For any model it says which layers are PH layers, so that a converted model
    is loaded with the constructor of the original one. The file appears when it is complete: an
    interrupted save leaves what was there before. Equal models give equal files.

    Args:
        model: What to save.
        path: A file that ends in `.safetensors`; anything else is a folder, for `config.json`,
            `model.safetensors` and a model card with a table of the parameters.
        metadata: What else travels with the model, ready for JSON, such as
            `ImageData.metadata()`; by default what the model was loaded with.
        storage: The type of the filters in the file: "float32" leaves them as they are, "float16"
            and "int8" (with a scale for each filter) make the file smaller. `load` restores them.
        example_input: An input of the model. The file then says how much a smaller type changes
            the outputs, and `phnn.io.inspect` shows it.

    Returns:
        The file with the tensors.
    """
    check_model(model, "save")
    file = check_target(path)
    check_storage(storage)
    if metadata is None:
        metadata = getattr(model, "phnn_metadata", {})
    state = _state_of(model)
    tensors, shared = _store_once(state)
    config, layers = _describe(model)
    buffers = [name for name, _ in model.named_buffers() if name in state]
    stored = _store_filters(model, tensors, storage)
    error = _measure(model, storage, example_input)
    header = Header(config, _as_json(metadata), shared, layers, buffers, stored, error)
    if file != Path(path):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text(file.with_name("config.json"), _render_config(header))
        write_card(file.with_name("README.md"), render_card(model, header))
    return write_model(file, tensors, header)


def check_target(path: str | Path) -> Path:
    """Return the file that `save` writes for a path.

    Raises:
        ValueError: The path ends as a file of another format does.
        OSError: The file cannot be written there.
    """
    path = Path(path)
    if path.suffix in OTHER_SUFFIXES and not path.is_dir():
        raise ValueError(f"path={str(path)!r} must end in {SUFFIX}, or be a folder")
    file = path if path.suffix == SUFFIX else path / f"model{SUFFIX}"
    check_output(file)
    return file


def _state_of(model: nn.Module) -> dict[str, Tensor]:
    if any(isinstance(module, AdaptedLayer) for module in model.modules()):
        raise ValueError(
            "the model has an adapter: phnn.save_adapter writes it alone, and phnn.merge folds it "
            "in before save"
        )
    state = model.state_dict()
    check_whole(model)
    for name, value in state.items():
        if not isinstance(value, Tensor):
            raise ValueError(f"{name} is a {type(value).__name__}; only tensors can be saved")
        if value.dtype not in CODES:
            raise ValueError(f"{name} is of {value.dtype}, which {SUFFIX} files cannot hold")
    empty = names_on_meta(state)
    if empty:
        raise ValueError(
            f"{enumerate_names(empty)} on the meta device: there are no values to save"
        )
    return state


def _store_once(state: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Separate tensors from names that stand for one of them."""
    tensors: dict[str, Tensor] = {}
    shared: dict[str, str] = {}
    first: dict[tuple[object, ...], str] = {}
    for name, tensor in state.items():
        memory = (tensor.device, tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
        if tensor.numel() and memory in first:
            shared[name] = first[memory]
        else:
            first[memory] = name
            # clone: tensors that overlap in memory become tensors of their own
            tensors[name] = tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
    return tensors, shared


def _store_filters(model: nn.Module, tensors: dict[str, Tensor], storage: str) -> dict[str, str]:
    """Encode the filters among the tensors, in place; return the codes of the types they had."""
    if storage == "float32":
        return {}
    names = {module: name for name, module in model.named_modules()}
    stored = {}
    for module, parameter in filters_of(model):
        name = f"{names[module]}.{parameter}".lstrip(".")
        if name not in tensors:  # shared with one that is
            continue
        stored[name] = CODES[tensors[name].dtype]
        tensors[name], per_unit = encode(tensors[name], storage)
        if per_unit is not None:
            tensors[name + SCALES] = per_unit
    return stored


def _measure(model: nn.Module, storage: str, example: Any) -> float | None:
    """Return how much a storage type changes the outputs, relative to the largest."""
    if example is None:
        return None
    args, kwargs = split_arguments(example)
    twin = store_filters(copy.deepcopy(model), storage)
    with torch.no_grad():
        expected, actual = (leaves(m(*args, **kwargs)) for m in (model, twin))
    error = 0.0
    for ours, theirs in zip(expected, actual, strict=True):
        difference, scale = compare(theirs, ours)
        error = max(error, difference / scale if scale else 0.0)
    return error


def _as_json(metadata: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return json.loads(json.dumps(dict(metadata), allow_nan=False))  # type: ignore[no-any-return]
    except (TypeError, ValueError) as error:
        raise ValueError(f"metadata must be ready for JSON: {error}") from error


def _describe(model: nn.Module) -> tuple[dict[str, Any] | None, dict[str, LayerSpec | None]]:
    """Return the config of a model of the zoo with the layers that it does not make by itself.

    For any other model there is no config, and all PH layers are returned.
    """
    config = getattr(model, "config", None)
    if isinstance(config, dict) and config.get("name") in list_models():
        try:
            return config, _changes(config, model)
        except (TypeError, ValueError) as error:
            # no error: a model that was trained for hours is saved
            warnings.warn(
                f"the model is no longer the {config['name']} of its config ({error}), so the "
                "file does not say how to rebuild it; load it with phnn.load(path, model=...)",
                stacklevel=3,
            )
    return None, dict(describe_layers(model))


def _changes(config: dict[str, Any], model: nn.Module) -> dict[str, LayerSpec | None]:
    """Return the layers that turn what the config builds into the model.

    Raises:
        ValueError: They differ in more than their layers.
    """
    with torch.device("meta"):
        built = create_model(**config)
    changes = find_changes(built, model)
    rebuilt = install_layers(built, changes)
    differences = list_differences(specs_of(rebuilt), specs_of(model), exact=False)
    if differences:
        raise ValueError(differences[0])
    return changes


def _render_config(header: Header) -> str:
    layers = {name: spec and spec.to_dict() for name, spec in header.layers.items()}
    described = {
        "library_name": "phnn",
        "config": header.config,
        "layers": layers,
        "metadata": header.metadata,
    }
    return json.dumps(described, indent=2) + "\n"
