"""Sharded checkpoints of large models, converted tensor by tensor."""

from __future__ import annotations

import json
import math
import re
import shutil
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from hashlib import sha256
from pathlib import Path
from typing import Any

from phnn.conversion.specs import LayerSpec
from phnn.decompose import nearest
from phnn.io.atomic import replacing, write_text
from phnn.io.container import CODES, ModelFileError, bytes_of
from phnn.io.header import check_fields, check_strings
from phnn.io.shards import (
    FORMAT,
    INDEX,
    count_bytes,
    digest_index,
    read_index,
    read_json,
    read_shard,
    read_tensors,
    update_digest,
)
from phnn.io.tensors import TensorSpec
from phnn.structure import Dimension, Structure

PROGRESS = ".convert.json"  # in the output, until it is complete
KINDS = {2: "PHLinear", 3: "PHConv1d", 4: "PHConv2d", 5: "PHConv3d"}  # by the axes of a weight
# what the names of lookup tables look like, whose weights have two axes as well
EMBEDDING = re.compile(r"(^|[._])(\w*embed\w*|emb|wte|wpe)([._]|$)", re.IGNORECASE)
COPIED = (".json", ".txt", ".model")  # files that travel with the tensors, such as tokenizers

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Plan:
    """What becomes of the weights of a checkpoint.

    Attributes:
        n: Dimension of the algebras, or a pair.
        terms: Number of Kronecker terms, n by default.
        include: Patterns of the names of layers to convert; all that have a weight by default.
        exclude: Patterns of the names of layers to leave alone.
        embeddings: Patterns of the names of lookup tables to convert; none by default.
    """

    n: Dimension
    terms: int | None = None
    include: Sequence[str] | None = None
    exclude: Sequence[str] | None = None
    embeddings: Sequence[str] | None = None

    def find_layer(self, name: str, spec: TensorSpec) -> LayerSpec | None:
        """Return the PH layer that a tensor becomes; None if it stays as it is.

        Args:
            name: The name of the tensor.
            spec: Its shape and type.
        """
        shape, dtype = spec
        layer, _, kind = name.rpartition(".")
        if kind != "weight" or len(shape) not in KINDS or not dtype.is_floating_point:
            return None
        if dtype.itemsize < 2 or _matches(layer, self.exclude or ()):
            return None
        is_table = _matches(layer, self.embeddings or ())
        if not is_table and EMBEDDING.search(layer):
            return None
        if not is_table and self.include is not None and not _matches(layer, self.include):
            return None
        structure = Structure.of(self.n, terms=self.terms)
        if shape[0] % structure.n_out or shape[1] % structure.n_in:
            return None
        wanted = "PHEmbedding" if is_table and len(shape) == 2 else KINDS[len(shape)]
        return LayerSpec(wanted, self.n, structure.terms, None, learn_algebra=True)

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as JSON can hold it."""
        return json.loads(json.dumps(vars(self)))  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Converted:
    """What a conversion did.

    Attributes:
        layers: The PH layers by name.
        errors: The relative error of each weight.
        before: The bytes of all tensors before.
        after: The bytes of all tensors now.
    """

    layers: dict[str, LayerSpec]
    errors: dict[str, float]
    before: int
    after: int

    def __str__(self) -> str:
        errors = sorted(self.errors.values()) or [0.0]
        middle = errors[len(errors) // 2]
        return (
            f"{len(self.layers)} weights became PH layers; {self.before:,} bytes → "
            f"{self.after:,} bytes ({self.after / max(self.before, 1):.1%}); relative error of the "
            f"weights: median {middle:.3g}, largest {errors[-1]:.3g}"
        )


def convert_checkpoint(
    source: str | Path, out: str | Path, plan: Plan, progress: Progress | None = None
) -> Converted:
    """Convert the weights of a sharded checkpoint, tensor by tensor.

    One tensor at a time is in memory. The output has a file for each file of the source, and an
    index that `phnn.load(out, model=constructor)` reads. A conversion that was stopped continues
    with the first file that is not complete.

    The files do not tell groups from channels, or transposed weights from others; `load` compares
    with the modules, and refuses layers that were misread.

    Args:
        source: A folder with `model.safetensors.index.json`, as on the Hugging Face hub.
        out: The folder to write.
        plan: What becomes of the weights.
        progress: Called with what is done, how far, and of how much.

    Raises:
        ModelFileError: The index or a file is damaged.
        ValueError: The plan converts nothing, or the output holds something else.
    """
    source, out = Path(source), Path(out)
    if source.resolve() == out.resolve():
        raise ValueError(f"out={str(out)!r} is the source itself; give another folder")
    files = read_index(source)
    specs = {file: read_shard(source, file, names) for file, names in files.items()}
    layers = {
        name.removesuffix(".weight"): layer
        for found in specs.values()
        for name, spec in found.items()
        if (layer := plan.find_layer(name, spec)) is not None
    }
    _check_named(plan, [name for found in specs.values() for name in found])
    if not layers:
        raise ValueError(
            f"no weight of {source} is converted: n={plan.n} must divide both channel counts of "
            "one that the patterns leave"
        )
    out.mkdir(parents=True, exist_ok=True)
    state = _Progress(out, {"plan": plan.to_dict(), "source": _fingerprint(source, files)})
    total = sum(map(len, specs.values()))
    done = 0
    for file, found in specs.items():
        if not state.has(file):
            outcome = _convert_file(source / file, out / file, found, layers, plan)
            state.add(file, outcome)
        done += len(found)
        if progress is not None:
            progress("tensors", done, total)
    return _finish(source, out, specs, layers, state)


def _convert_file(
    source: Path,
    target: Path,
    specs: Mapping[str, TensorSpec],
    layers: Mapping[str, LayerSpec],
    plan: Plan,
) -> dict[str, Any]:
    """Write the converted tensors of one file, one after the other."""
    written: dict[str, TensorSpec] = {}
    for name, spec in specs.items():
        written |= _outline(name, spec, layers)
    digest, errors = sha256(), {}
    with replacing(target) as temporary, temporary.open("wb") as file:
        file.write(_render_header(written))
        for name, tensor in read_tensors(source, specs):
            layer = name.removesuffix(".weight")
            parts = {name: tensor}
            if layer in layers and name.endswith(".weight"):
                found = nearest(tensor, plan.n, terms=plan.terms)
                errors[layer] = found.error
                parts = {f"{layer}.A": found.A, f"{layer}.F": found.F}
            for part, values in parts.items():
                assert (tuple(values.shape), values.dtype) == written[part]
                values = values.contiguous()
                update_digest(digest, part, values)
                file.write(bytes_of(values))
    return {"sha256": digest.hexdigest(), "errors": errors, "names": list(written)}


def _outline(name: str, spec: TensorSpec, layers: Mapping[str, LayerSpec]) -> dict[str, TensorSpec]:
    """Return the tensors that one tensor becomes."""
    layer = layers.get(name.removesuffix(".weight")) if name.endswith(".weight") else None
    if layer is None:
        return {name: spec}
    (rows, columns, *kernel), dtype = spec
    structure = Structure.of(layer.n, terms=layer.terms)
    terms, n_out, n_in = structure.terms, structure.n_out, structure.n_in
    prefix = name.removesuffix("weight")
    return {
        f"{prefix}A": ((terms, n_out, n_in), dtype),
        f"{prefix}F": ((rows // n_out * terms, columns // n_in, *kernel), dtype),
    }


def _render_header(specs: Mapping[str, TensorSpec]) -> bytes:
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, (shape, dtype) in specs.items():
        end = offset + math.prod(shape) * dtype.itemsize
        entries[name] = {
            "dtype": CODES[dtype],
            "shape": list(shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


class _Progress:
    """Which files are complete, on disk."""

    def __init__(self, out: Path, about: dict[str, Any]) -> None:
        self.out, self.path = out, out / PROGRESS
        self.content = {**about, "files": {}}
        if (out / INDEX).exists() and not self.path.exists():
            raise ValueError(f"{out} holds a checkpoint already; give another --out, or delete it")
        if self.path.exists():
            known = _read_progress(self.path)
            changed = [key for key in about if known.get(key) != about[key]]
            if changed:
                raise ValueError(
                    f"{out} holds an unfinished conversion with another {' and '.join(changed)}; "
                    "give another --out, or delete it"
                )
            self.content = known
        elif any(path.suffix != ".tmp" for path in out.iterdir()):  # one is torn: it was killed
            raise ValueError(f"{out} is not empty; give another --out")
        self._write()

    def has(self, file: str) -> bool:
        return file in self.content["files"] and (self.out / file).is_file()

    def add(self, file: str, outcome: dict[str, Any]) -> None:
        self.content["files"][file] = outcome
        self._write()

    def _write(self) -> None:
        write_text(self.path, json.dumps(self.content))


def _read_progress(path: Path) -> dict[str, Any]:
    """Return what was done before, with every type checked."""
    try:
        known = check_fields(read_json(path), {"plan": dict, "source": dict, "files": dict})
        for outcome in known["files"].values():
            found = check_fields(outcome, {"sha256": str, "errors": dict, "names": list})
            check_strings("names", found["names"])
            check_fields(found["errors"], dict.fromkeys(found["errors"], float))
    except ValueError as error:
        raise ModelFileError(f"{path} is damaged ({error}); delete {path.parent}") from None
    return known


def _finish(
    source: Path,
    out: Path,
    specs: Mapping[str, Mapping[str, TensorSpec]],
    layers: dict[str, LayerSpec],
    state: _Progress,
) -> Converted:
    """Write the index, which makes the output complete."""
    files = state.content["files"]
    before = sum(count_bytes(found) for found in specs.values())
    after = sum(
        count_bytes(
            {k: v for name, spec in found.items() for k, v in _outline(name, spec, layers).items()}
        )
        for found in specs.values()
    )
    for path in sorted(source.iterdir()):
        if path.suffix in COPIED and path.name != INDEX and path.is_file():
            shutil.copyfile(path, out / path.name)
    index: dict[str, Any] = {
        "metadata": {"total_size": after},
        "weight_map": {name: file for file in specs for name in files[file]["names"]},
        "phnn": {
            "format": str(FORMAT),
            "layers": {name: layer.to_dict() for name, layer in layers.items()},
            "sha256": {file: files[file]["sha256"] for file in specs},
        },
    }
    index["phnn_sha256"] = digest_index(index)
    write_text(out / INDEX, json.dumps(index, indent=1) + "\n")
    state.path.unlink()
    errors = {name: error for file in specs for name, error in files[file]["errors"].items()}
    return Converted(layers, errors, before, after)


def _check_named(plan: Plan, names: Sequence[str]) -> None:
    """Raise an error for a pattern that no weight has."""
    layers = [name.removesuffix(".weight") for name in names if name.endswith(".weight")]
    for option in ("include", "exclude", "embeddings"):
        for pattern in getattr(plan, option) or ():
            if not any(fnmatchcase(layer, pattern) for layer in layers):
                raise ValueError(f"{option}={pattern!r} names no weight of the checkpoint")


def _matches(layer: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(layer, pattern) for pattern in patterns)


def _fingerprint(folder: Path, files: Mapping[str, Any]) -> dict[str, list[int]]:
    stats = {file: (folder / file).stat() for file in files}
    return {file: [stat.st_size, stat.st_mtime_ns] for file, stat in stats.items()}
