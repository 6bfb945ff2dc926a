"""Tensors in a file, guarded by a header that says what they belong to."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from phnn.conversion.specs import LayerSpec
from phnn.io.atomic import replacing
from phnn.io.tensors import TensorSpec, enumerate_names

FORMAT = 2  # raised when older versions can no longer read what is written
SUFFIX = ".safetensors"
DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8,
    "U64": torch.uint64, "U32": torch.uint32, "U16": torch.uint16, "U8": torch.uint8,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
    "BOOL": torch.bool, "C64": torch.complex64,
}  # fmt: skip


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
        layers: the PH layers that `config` does not make by itself, all of them without a config;
            None for a plain layer where it would make a PH layer.
        buffers: names of the tensors that are no parameters.
        sha256: of the tensors.
    """

    format: int
    config: dict[str, Any] | None
    metadata: dict[str, Any]
    shared: dict[str, str]
    layers: dict[str, LayerSpec | None] = field(default_factory=dict)
    buffers: list[str] = field(default_factory=list)
    sha256: str = ""


# format 1 could not hold converted models
_SINCE_FORMAT_2 = {"layers", "buffers"}


def find_file(path: str | Path) -> Path:
    """Returns the file with the tensors: the path itself, or the one in that folder."""
    path = Path(path)
    return path / f"model{SUFFIX}" if path.is_dir() else path


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


def write_model(path: Path, tensors: Mapping[str, Tensor], header: Header) -> Path:
    """Writes the tensors of a model with their header, and makes the folder for them."""
    header = replace(header, sha256=_digest(tensors))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_tensors(path, tensors, asdict(header))
    return path


def read_header(path: Path) -> tuple[Header, dict[str, TensorSpec]]:
    """Reads everything but the tensors: what the file says, and what tensors there are."""
    try:
        with safe_open(path, framework="pt") as file:
            sealed = file.metadata() or {}
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            raw = {name: (tuple(s.get_shape()), s.get_dtype()) for name, s in slices.items()}
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no file {path}") from None
    except (SafetensorError, OSError) as error:
        raise ModelFileError(f"{path} is truncated or not a {SUFFIX} file: {error}") from error
    header = _parse(path, sealed)
    unknown = [name for name, (_, dtype) in raw.items() if dtype not in DTYPES]
    if unknown:
        raise ModelFileError(f"{path} holds tensors of unknown types: {enumerate_names(unknown)}")
    specs = {name: (shape, DTYPES[dtype]) for name, (shape, dtype) in raw.items()}
    specs |= {alias: specs[name] for alias, name in header.shared.items() if name in specs}
    return header, specs


def read_tensors(path: Path, header: Header) -> dict[str, Tensor]:
    """Reads the tensors, and makes sure that they are those of the header."""
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    if _digest(tensors) != header.sha256:
        raise ModelFileError(f"{path} is damaged or altered: its SHA-256 does not match")
    return tensors


def _seal(header: Mapping[str, Any]) -> dict[str, str]:
    """Returns the strings that safetensors stores beside the tensors."""
    text = json.dumps(header)
    # "format" is what other libraries look for
    return {"format": "pt", "phnn": text, "phnn_sha256": hashlib.sha256(text.encode()).hexdigest()}


def _seal_holds(sealed: Mapping[str, str]) -> bool:
    return hashlib.sha256(sealed["phnn"].encode()).hexdigest() == sealed.get("phnn_sha256")


def _parse(path: Path, sealed: Mapping[str, str]) -> Header:
    if "phnn" not in sealed:
        raise ModelFileError(
            f"{path} was not written by phnn.save; safetensors.torch.load_file reads its tensors"
        )
    values = json.loads(sealed["phnn"]) if _seal_holds(sealed) else {}
    if not values.keys() >= {field.name for field in fields(Header)} - _SINCE_FORMAT_2:
        raise ModelFileError(f"the header of {path} is damaged or altered, or not of phnn.save")
    if values["format"] > FORMAT:
        raise ModelFileError(
            f"{path} has format {values['format']}, this version of phnn reads up to {FORMAT}; "
            "install a newer one"
        )
    layers = {
        name: None if spec is None else LayerSpec(**spec)
        for name, spec in values.pop("layers", {}).items()
    }
    return Header(**values, layers=layers)


def _digest(tensors: Mapping[str, Tensor]) -> str:
    """Returns the SHA-256 of name, type, shape and bytes of each tensor."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"\0{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
