"""Models in files: their tensors, and how to build what the tensors belong to."""

import hashlib
import json
import os
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from phnn.models import create_model, list_models

FORMAT = 1  # raised when older versions can no longer read what is written
SUFFIX = ".safetensors"
OTHER_SUFFIXES = {".pt", ".pth", ".bin", ".ckpt", ".onnx", ".pkl", ".h5"}
CARD_MARK = "<!-- written by phnn.save -->"
SHOWN = 10  # names listed in one error
DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8,
    "U8": torch.uint8, "BOOL": torch.bool, "C64": torch.complex64,
}  # fmt: skip

Build = Callable[[], nn.Module]
Spec = tuple[tuple[int, ...], torch.dtype]


class ModelFileError(ValueError):
    """A file that does not hold the model it should."""


@dataclass(frozen=True)
class Header:
    """What a file says about its tensors.

    Attributes:
        format: the version of this layout.
        config: the arguments of `create_model` that build the model; None for any other model.
        metadata: what the user wants to travel with the model.
        shared: names of tensors that are another tensor, with that tensor's name.
        sha256: of the tensors.
    """

    format: int
    config: dict[str, Any] | None
    metadata: dict[str, Any]
    shared: dict[str, str]
    sha256: str = ""


def save(model: nn.Module, path: str | Path, *, metadata: Mapping[str, Any] | None = None) -> Path:
    """Saves a model in one file, or in a folder laid out as on the Hugging Face hub.

    The file holds each tensor once, even if it is shared, and says how to rebuild a model that
    `create_model` made. It takes its place when it is complete: an interrupted save leaves what
    was there before.

    Args:
        model: what to save.
        path: a file that ends in `.safetensors`; anything else is a folder, for `config.json`,
            `model.safetensors` and a model card with a table of the parameters.
        metadata: what else travels with the model, ready for JSON, such as
            `ImageData.metadata()`; by default what the model was loaded with.

    Returns:
        The file with the tensors.
    """
    path = Path(path)
    if path.suffix in OTHER_SUFFIXES and not path.is_dir():
        raise ValueError(f"path={str(path)!r} must end in {SUFFIX}, or be a folder")
    if metadata is None:
        metadata = getattr(model, "phnn_metadata", {})
    tensors, shared = _store_once(_state_of(model))
    header = Header(FORMAT, _config_of(model), _as_json(metadata), shared)
    if path.suffix == SUFFIX:
        return _write_model(path, tensors, header)
    path.mkdir(parents=True, exist_ok=True)
    _write_text(path / "config.json", json.dumps(_describe(header), indent=2) + "\n")
    _write_card(path / "README.md", model, header)
    return _write_model(path / f"model{SUFFIX}", tensors, header)


def load(
    path: str | Path,
    *,
    model: nn.Module | Build | None = None,
    device: torch.device | str = "cpu",
) -> nn.Module:
    """Loads a model that `save` wrote.

    The model is built without memory and compared with the file before any tensor is read. Nothing
    in the file is executed.

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
    path = Path(path)
    path = path / f"model{SUFFIX}" if path.is_dir() else path
    header, specs = _inspect(path)
    build = _builder(path, header, model)
    with torch.device("meta"):
        target = build()
    in_place = target is model and not _names_on_meta(target.state_dict())
    _compare(path, target, specs, exact=in_place)
    tensors = _read_tensors(path, header)
    try:
        if in_place:
            _copy(target, tensors, header.shared)
        else:
            target = _complete(build, target, device)
            _assign(target, tensors, header.shared, device)
    except (
        RuntimeError
    ) as error:  # a layer refused its tensor, such as another algebra than its own
        raise ModelFileError(f"{path} is for another model: {error}") from error
    target.phnn_metadata = header.metadata  # type: ignore[assignment]
    return target.eval()


# --- writing -----------------------------------------------------------------------------------


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Gives a temporary file that takes the place of `path` when the block ends without an error.

    Whoever reads `path` sees the old contents or the new, also after a crash or on a full disk.

    Args:
        path: the file to write; its folder must exist.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        temporary.touch()
        mode = temporary.stat().st_mode
        yield temporary
        temporary.chmod(mode)  # safetensors replaces the file by one that only its owner can read
        _sync(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    if os.name == "posix":  # elsewhere a folder cannot be opened
        _sync(path.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_tensors(path: Path, tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> None:
    """Writes a safetensors file with a JSON header, atomically.

    Args:
        path: the file.
        tensors: contiguous, none sharing memory with another.
        header: ready for JSON.

    Raises:
        OSError: it cannot be written.
    """
    with replacing(path) as temporary:
        try:
            save_file(dict(tensors), temporary, metadata=_seal(header))
        except SafetensorError as error:
            raise OSError(f"{path} cannot be written: {error}") from error


def _seal(header: Mapping[str, Any]) -> dict[str, str]:
    """Returns the strings that safetensors stores beside the tensors."""
    text = json.dumps(header)
    # "format" is what other libraries look for
    return {"format": "pt", "phnn": text, "phnn_sha256": hashlib.sha256(text.encode()).hexdigest()}


def _write_text(path: Path, text: str) -> None:
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _write_model(path: Path, tensors: Mapping[str, Tensor], header: Header) -> Path:
    header = replace(header, sha256=_digest(tensors))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_tensors(path, tensors, asdict(header))
    return path


def _state_of(model: nn.Module) -> dict[str, Tensor]:
    state = model.state_dict()
    for name, value in state.items():
        if not isinstance(value, Tensor):
            raise ValueError(f"{name} is a {type(value).__name__}; only tensors can be saved")
    empty = _names_on_meta(state)
    if empty:
        raise ValueError(f"{_list(empty)} on the meta device: without values, nothing to save")
    return state


def _store_once(state: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Separates tensors from names that stand for one of them."""
    tensors: dict[str, Tensor] = {}
    shared: dict[str, str] = {}
    first: dict[tuple[object, ...], str] = {}
    for name, tensor in state.items():
        place = (tensor.device, tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
        if tensor.numel() and place in first:
            shared[name] = first[place]
        else:
            first[place] = name
            # clone: overlapping parts of one memory become tensors of their own
            tensors[name] = tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
    return tensors, shared


def _as_json(metadata: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return json.loads(json.dumps(dict(metadata), allow_nan=False))  # type: ignore[no-any-return]
    except (TypeError, ValueError) as error:
        raise ValueError(f"metadata must be ready for JSON: {error}") from error


def _config_of(model: nn.Module) -> dict[str, Any] | None:
    """Returns the config of a model of the zoo, if it still describes the model."""
    config = getattr(model, "config", None)
    if not isinstance(config, dict) or config.get("name") not in list_models():
        return None
    with torch.device("meta"):
        described = create_model(**config)
    differences = _differences(_specs_of(described), _specs_of(model), exact=False)
    if not differences:
        return config
    # no error: a model that was trained for hours is saved
    warnings.warn(
        f"the model is no longer the {config['name']} of its config ({differences[0]}), so the "
        "file does not say how to rebuild it; load it with phnn.load(path, model=...)",
        stacklevel=3,
    )
    return None


# --- reading -----------------------------------------------------------------------------------


def _inspect(path: Path) -> tuple[Header, dict[str, Spec]]:
    """Reads everything but the tensors."""
    try:
        with safe_open(path, framework="pt") as file:
            sealed = file.metadata() or {}
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            raw = {name: (tuple(s.get_shape()), s.get_dtype()) for name, s in slices.items()}
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no file {path}") from None
    except (SafetensorError, OSError) as error:
        raise ModelFileError(f"{path} is truncated or not a {SUFFIX} file: {error}") from error
    header = _parse_header(path, sealed)
    unknown = [name for name, (_, dtype) in raw.items() if dtype not in DTYPES]
    if unknown:
        raise ModelFileError(f"{path} holds tensors of unknown types: {_list(unknown)}")
    specs = {name: (shape, DTYPES[dtype]) for name, (shape, dtype) in raw.items()}
    specs |= {alias: specs[name] for alias, name in header.shared.items() if name in specs}
    return header, specs


def _parse_header(path: Path, sealed: Mapping[str, str]) -> Header:
    if "phnn" not in sealed:
        raise ModelFileError(
            f"{path} was not written by phnn.save; safetensors.torch.load_file reads its tensors"
        )
    values = json.loads(sealed["phnn"]) if _seal_holds(sealed) else {}
    if not values.keys() >= {field.name for field in fields(Header)}:
        raise ModelFileError(f"the header of {path} is damaged or altered, or not of phnn.save")
    if values["format"] > FORMAT:
        raise ModelFileError(
            f"{path} has format {values['format']}, this version of phnn reads up to {FORMAT}; "
            "install a newer one"
        )
    return Header(**values)


def _seal_holds(sealed: Mapping[str, str]) -> bool:
    return hashlib.sha256(sealed["phnn"].encode()).hexdigest() == sealed.get("phnn_sha256")


def _read_tensors(path: Path, header: Header) -> dict[str, Tensor]:
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    if _digest(tensors) != header.sha256:
        raise ModelFileError(f"{path} is damaged or altered: its SHA-256 does not match")
    return tensors


def _digest(tensors: Mapping[str, Tensor]) -> str:
    """Returns the SHA-256 of name, type, shape and bytes of each tensor."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"\0{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _builder(path: Path, header: Header, model: nn.Module | Build | None) -> Build:
    if isinstance(model, nn.Module):
        return lambda: model
    if model is not None:
        return model
    if header.config is None:
        raise ModelFileError(
            f"{path} does not say how to build its model, which phnn.create_model did not make; "
            "pass model=, a module or a function that builds it"
        )
    return partial(create_model, **header.config)


# --- comparing ---------------------------------------------------------------------------------


def _specs_of(model: nn.Module) -> dict[str, Spec]:
    return {name: (tuple(t.shape), t.dtype) for name, t in model.state_dict().items()}


def _compare(path: Path, model: nn.Module, found: Mapping[str, Spec], *, exact: bool) -> None:
    differences = _differences(_specs_of(model), found, exact=exact)
    if differences:
        shown = "\n  ".join(differences[:SHOWN])
        more = len(differences) - SHOWN
        raise ModelFileError(
            f"{path} does not fit the model:\n  {shown}" + (f"\n  and {more} more" * (more > 0))
        )


def _differences(
    expected: Mapping[str, Spec], found: Mapping[str, Spec], *, exact: bool
) -> list[str]:
    """Lists what is missing, unexpected or different.

    Args:
        expected: the tensors of the model.
        found: the tensors of the file.
        exact: whether a floating type differs from another.
    """
    lines = [f"missing: {name}" for name in expected if name not in found]
    lines += [f"unexpected: {name}" for name in found if name not in expected]
    for name in expected.keys() & found.keys():
        (shape, dtype), (other_shape, other_dtype) = expected[name], found[name]
        if shape != other_shape:
            lines.append(f"shape of {name}: {other_shape} in the file, {shape} in the model")
        elif dtype != other_dtype and (
            exact or not (dtype.is_floating_point and other_dtype.is_floating_point)
        ):
            lines.append(f"type of {name}: {other_dtype} in the file, {dtype} in the model")
    return sorted(lines)


def _names_on_meta(tensors: Mapping[str, Tensor]) -> list[str]:
    return [name for name, tensor in tensors.items() if tensor.is_meta]


def _list(names: list[str]) -> str:
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" * (len(names) > SHOWN))


# --- filling -----------------------------------------------------------------------------------


def _complete(build: Build, model: nn.Module, device: torch.device | str) -> nn.Module:
    """Builds the model in memory if it has buffers that only its constructor can fill."""
    computed = dict(model.named_buffers()).keys() - model.state_dict().keys()
    if not computed:
        return model
    with torch.device(device):
        model = build()
    empty = _names_on_meta(dict(model.named_buffers()))
    lost = sorted(computed.intersection(empty))
    if lost:
        raise ModelFileError(
            f"the file does not hold {_list(lost)}, which model= has on the meta device; "
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


# --- describing --------------------------------------------------------------------------------


def _describe(header: Header) -> dict[str, Any]:
    return {"library_name": "phnn", "config": header.config, "metadata": header.metadata}


def _write_card(path: Path, model: nn.Module, header: Header) -> None:
    """Writes a model card, unless there is one that somebody else wrote."""
    if path.exists() and CARD_MARK not in path.read_text(encoding="utf-8"):
        return
    title = header.config["name"] if header.config else type(model).__name__
    classes = header.metadata.get("classes")
    lines = [
        "---", "library_name: phnn", "tags:", "- phnn", "- hypercomplex", "---", CARD_MARK,
        f"# {title}", "",
        "| part | parameters | share |", "|---|---:|---:|", *_parameter_rows(model), "",
    ]  # fmt: skip
    if header.config:
        lines += ["Built by", "", "```python", _call(header.config), "```", ""]
    if classes:
        lines += [f"Classes: {', '.join(map(str, classes))}.", ""]
    lines += ["Load it with `phnn.load(folder)`.", ""]
    _write_text(path, "\n".join(lines))


def _parameter_rows(model: nn.Module) -> list[str]:
    """Returns a table row for each child; a tensor of several children counts in the first."""
    total = sum(parameter.numel() for parameter in model.parameters())
    counts: dict[str, int] = {}
    for name, parameter in model.named_parameters():
        child = name.partition(".")[0]
        counts[child] = counts.get(child, 0) + parameter.numel()
    rows = [f"| {child} | {n:,} | {n / total:.1%} |" for child, n in counts.items()]
    return [*rows, f"| **all** | **{total:,}** | |"]


def _call(config: Mapping[str, Any]) -> str:
    arguments = [f"{key}={value!r}" for key, value in config.items() if key != "name"]
    return f"phnn.create_model({', '.join([repr(config['name']), *arguments])})"
