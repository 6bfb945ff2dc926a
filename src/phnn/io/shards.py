"""A checkpoint in several files with an index, read tensor by tensor."""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from phnn.io.container import SUFFIX, ModelFileError, bytes_of, read_specs
from phnn.io.header import Version
from phnn.io.tensors import TensorSpec, enumerate_names

INDEX = f"model{SUFFIX}.index.json"
LONGEST_INDEX = 2**28  # bytes
FORMAT = Version(1, 1)  # of what phnn adds to an index; 1.0 had no checksum of the index itself


def is_sharded(path: str | Path) -> bool:
    """Return whether a path is a folder with an index of tensors in several files."""
    return (Path(path) / INDEX).is_file()


def read_index(folder: Path) -> dict[str, list[str]]:
    """Return the names of the tensors of each file."""
    return list_files(folder, read_json(folder / INDEX))


def list_files(folder: Path, content: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the names of the tensors of each file, as an index has them."""
    weight_map = content.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelFileError(f"{folder / INDEX} has no weight_map")
    files: dict[str, list[str]] = {}
    for name, file in weight_map.items():
        # never outside of the folder
        if not isinstance(file, str) or Path(file).name != file or not file.endswith(SUFFIX):
            raise ModelFileError(f"{folder / INDEX} names {file!r}, which is not in this folder")
        files.setdefault(file, []).append(name)
    return dict(sorted(files.items()))


def read_json(path: Path) -> dict[str, Any]:
    """Return the mapping in a JSON file."""
    if not path.is_file() or path.stat().st_size > LONGEST_INDEX:
        raise ModelFileError(f"{path} is not a regular file of at most {LONGEST_INDEX:,} bytes")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{path} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise ModelFileError(f"{path} is no mapping")
    return content


def read_shard(folder: Path, file: str, names: Sequence[str]) -> dict[str, TensorSpec]:
    """Return shape and type of each tensor of a file, in its order, compared with the index."""
    specs, _ = read_specs(folder / file)
    if set(specs) != set(names):
        differ = sorted(set(specs) ^ set(names))
        raise ModelFileError(f"{folder / file} and the index differ in {enumerate_names(differ)}")
    return specs


def read_tensors(path: Path, specs: Mapping[str, TensorSpec]) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of a file one by one, each in memory of its own."""
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        file.seek(length, 1)
        for name, (shape, dtype) in specs.items():
            tensor = torch.empty(shape, dtype=dtype)
            if tensor.nbytes and file.readinto(bytes_of(tensor)) != tensor.nbytes:
                raise ModelFileError(f"{path} is truncated")
            yield name, tensor
            del tensor  # before the next one is made


def digest_index(content: Mapping[str, Any]) -> str:
    """Return the SHA-256 of what an index says about tensors and layers."""
    said = {name: content[name] for name in ("weight_map", "phnn")}
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def digest_file(path: Path, specs: Mapping[str, TensorSpec]) -> str:
    """Return the SHA-256 of the tensors of a file, one of which is in memory at a time."""
    digest = hashlib.sha256()
    for name, tensor in read_tensors(path, specs):
        update_digest(digest, name, tensor)
    return digest.hexdigest()


def update_digest(digest: Any, name: str, tensor: Tensor) -> None:
    """Add the name, the type, the shape and the bytes of a tensor to a checksum."""
    digest.update(f"\0{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
    digest.update(bytes_of(tensor))


def count_bytes(specs: Mapping[str, TensorSpec]) -> int:
    """Return the bytes of tensors."""
    return sum(math.prod(shape) * dtype.itemsize for shape, dtype in specs.values())
