"""Tensors in a file, guarded by a header that says what they belong to."""

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from phnn._kinds import KINDS
from phnn.functional._storage import decode
from phnn.io.atomic import replacing
from phnn.io.header import Header, check_fields, open_seal, parse_header, seal
from phnn.io.tensors import TensorSpec, enumerate_names

SUFFIX = ".safetensors"
LONGEST_HEADER = 2**25  # bytes; safetensors allows 100 MB, which take seconds to read
DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8,
    "U64": torch.uint64, "U32": torch.uint32, "U16": torch.uint16, "U8": torch.uint8,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
    "BOOL": torch.bool, "C64": torch.complex64,
}  # fmt: skip
SCALES = ".per_unit"  # behind the name of filters in int8: the steps that make 1, by filter
CODES = {dtype: code for code, dtype in DTYPES.items()}


class ModelFileError(ValueError):
    """A file that does not hold the model it should."""


def find_file(path: str | Path) -> Path:
    """Return the file with the tensors: the path itself, or the one in that folder."""
    path = Path(path)
    return path / f"model{SUFFIX}" if path.is_dir() else path


def write_tensors(path: Path, tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> None:
    """Write a safetensors file with a JSON header and a checksum, atomically.

    Args:
        path: The file; its folder must exist.
        tensors: Contiguous, on the CPU.
        header: Ready for JSON.
    """
    _write(path, tensors, json.dumps({**header, "sha256": _digest(tensors)}, sort_keys=True))


def read_sealed(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what `write_tensors` wrote, into memory of its own.

    Args:
        path: The file.

    Returns:
        The tensors, and the header.

    Raises:
        ModelFileError: The file is not as it was written.
    """
    specs, sealed = read_specs(path)
    try:
        header: dict[str, Any] = open_seal(sealed)
        check_fields(header, {"sha256": str})
    except ValueError as error:
        raise ModelFileError(f"{path} cannot be read: {error}") from None
    return _read_checked(path, specs, header["sha256"]), header


def write_model(path: Path, tensors: Mapping[str, Tensor], header: Header) -> Path:
    """Write the tensors of a model with their header, and make the folder for them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _write(path, tensors, replace(header, sha256=_digest(tensors)).to_json())
    return path


def _write(path: Path, tensors: Mapping[str, Tensor], header: str) -> None:
    # safetensors' own writer puts the header in random order: equal models would differ in bytes
    entries: dict[str, Any] = {"__metadata__": seal(header)}
    # large types first, as safetensors does: every tensor is aligned to its type
    names = sorted(tensors, key=lambda name: (-tensors[name].itemsize, name))
    offset = 0
    for name in names:
        tensor = tensors[name]
        end = offset + tensor.nbytes
        entries[name] = {
            "dtype": CODES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [offset, end]
        }  # fmt: skip
        offset = end
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > LONGEST_HEADER:
        raise ValueError(
            f"the header of {path} would have {len(text):,} bytes, at most {LONGEST_HEADER:,} can "
            "be read again; save less metadata"
        )
    with replacing(path) as temporary, temporary.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name in names:
            file.write(bytes_of(tensors[name]))


def read_header(path: Path) -> tuple[Header, dict[str, TensorSpec]]:
    """Read everything but the tensors: what the file says, and what tensors there are."""
    specs, sealed = read_specs(path)
    try:
        header = parse_header(
            sealed, {name: math.prod(shape) for name, (shape, _) in specs.items()}
        )
    except ValueError as error:
        raise ModelFileError(f"{path} cannot be read: {error}") from None
    specs = _restore_specs(path, header, specs)
    return header, specs | {alias: specs[name] for alias, name in header.shared.items()}


def _restore_specs(
    path: Path, header: Header, specs: Mapping[str, TensorSpec]
) -> dict[str, TensorSpec]:
    """Return the tensors as the model has them, where the file has filters in a smaller type."""
    found = dict(specs)
    for name, code in header.storage.items():
        shape, stored = specs[name]
        scales = found.pop(name + SCALES, None)
        wanted = ((shape[0], *(1,) * (len(shape) - 1)), torch.float32) if shape else None
        has_scales = scales is not None
        if (
            stored not in (torch.int8, torch.float16)
            or not DTYPES.get(code, torch.bool).is_floating_point
            or has_scales != (stored == torch.int8)
            or (has_scales and scales != wanted)
        ):
            raise ModelFileError(f"{path} cannot be read: {name} has an unknown storage type")
        found[name] = (shape, DTYPES[code])
    return found


def read_tensors(path: Path, header: Header) -> dict[str, Tensor]:
    """Read the tensors into memory of their own, and make sure that they are those of the header.

    A tensor that stays mapped to the file would change with the file, and lies there at any
    address: vector instructions round in another order when it is not aligned.
    """
    tensors = _read_checked(path, read_specs(path)[0], header.sha256)
    for name, code in header.storage.items():
        per_unit = tensors.pop(name + SCALES, None)
        tensors[name] = decode(tensors[name], per_unit, DTYPES[code])
    return tensors


def _read_checked(path: Path, specs: Mapping[str, TensorSpec], sha256: str) -> dict[str, Tensor]:
    """Read tensors in the order of the file, which has no gaps."""
    tensors = {}
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        file.seek(length, 1)
        for name, (shape, dtype) in specs.items():
            tensors[name] = torch.empty(shape, dtype=dtype)
            if file.readinto(bytes_of(tensors[name])) != tensors[name].nbytes:
                raise ModelFileError(f"{path} is truncated")
    if _digest(tensors) != sha256:
        raise ModelFileError(f"{path} is damaged or altered: its SHA-256 does not match")
    return tensors


def read_specs(path: Path) -> tuple[dict[str, TensorSpec], dict[str, str]]:
    """Return shape and type of each tensor, in the order of the file, and what lies beside them."""
    if not path.exists():
        folder = path.parent
        if path.name == f"model{SUFFIX}" and folder.is_dir() and folder != Path():
            raise FileNotFoundError(
                f"the folder {folder} holds no {path.name}; give the folder of a run that has "
                f"ended, or a {SUFFIX} file"
            )
        raise FileNotFoundError(f"there is no file {path}")
    if not path.is_file():
        raise ModelFileError(f"{path} is not a regular file")
    try:
        with path.open("rb") as file:
            start = file.read(8)
        if len(start) == 8 and LONGEST_HEADER < struct.unpack("<Q", start)[0] < path.stat().st_size:
            raise ModelFileError(f"{path} has a header of more than {LONGEST_HEADER:,} bytes")
        with safe_open(path, framework="pt") as file:
            slices = {name: file.get_slice(name) for name in file.offset_keys()}
            sealed = file.metadata() or {}
    except (SafetensorError, OSError) as error:
        if path.suffix in KINDS:
            raise ModelFileError(f"{path} {KINDS[path.suffix]}") from error
        raise ModelFileError(f"{path} is truncated or not a {SUFFIX} file: {error}") from error
    raw = {name: (tuple(s.get_shape()), s.get_dtype()) for name, s in slices.items()}
    unknown = [name for name, (_, dtype) in raw.items() if dtype not in DTYPES]
    if unknown:
        raise ModelFileError(f"{path} holds tensors of unknown types: {enumerate_names(unknown)}")
    return {name: (shape, DTYPES[dtype]) for name, (shape, dtype) in raw.items()}, sealed


def bytes_of(tensor: Tensor) -> memoryview:
    """Return the memory of a contiguous tensor, to be read or written."""
    return tensor.flatten().view(torch.uint8).numpy().data


def _digest(tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of name, type, shape and bytes of each tensor."""
    digest = sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"\0{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        digest.update(bytes_of(tensor))
    return digest.hexdigest()
