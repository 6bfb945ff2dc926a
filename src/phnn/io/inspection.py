"""What is in a file of `save`, read from its header alone."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path

import torch

from phnn.conversion.specs import describe_layers, install_layers
from phnn.io.container import Header, find_file, read_header
from phnn.models import create_model


@dataclass(frozen=True)
class StoredLayer:
    """One layer in a file.

    Attributes:
        name: Its name in the model.
        kind: What it is, such as "PHConv2d n=4"; empty where the file does not say it.
        parameters: Number of its parameters; those shared with an earlier layer do not count.
        size: Bytes of its tensors.
    """

    name: str
    kind: str
    parameters: int
    size: int


@dataclass(frozen=True)
class StoredModel:
    """The contents of a file; prints as a table.

    Attributes:
        path: The file.
        name: The registered name of a model of the zoo; None for any other model.
        layers: Those with tensors of their own, in natural order of their names.
        metadata: What the model was saved with.
        size: Bytes of the whole file.
    """

    path: Path
    name: str | None
    layers: tuple[StoredLayer, ...]
    metadata: dict[str, object]
    size: int

    @property
    def parameters(self) -> int:
        """Number of parameters of the whole model."""
        return sum(layer.parameters for layer in self.layers)

    def __str__(self) -> str:
        rows = [("layer", "kind", "parameters", "bytes")]
        rows += [(x.name, x.kind, f"{x.parameters:,}", f"{x.size:,}") for x in self.layers]
        name, kind, parameters, size = (max(map(len, column)) for column in zip(*rows, strict=True))
        lines = [f"{a:{name}}  {b:{kind}}  {c:>{parameters}}  {d:>{size}}" for a, b, c, d in rows]
        title = self.name or "a model that phnn.create_model did not make"
        lines.append(f"{title}: {self.parameters:,} parameters, {self.size:,} bytes in {self.path}")
        return "\n".join(lines)


def inspect(path: str | Path) -> StoredModel:
    """Says what is in a file, without reading its tensors.

    Args:
        path: The file or the folder of `save`.

    Raises:
        ModelFileError: The file is damaged, or not a file of `save`.
    """
    file = find_file(path)
    header, specs = read_header(file)
    kinds, buffers = _describe(header)
    counts: dict[str, int] = {}
    sizes: dict[str, int] = {}
    for tensor in specs.keys() - header.shared.keys():
        layer = tensor.rpartition(".")[0]
        shape, dtype = specs[tensor]
        count = math.prod(shape)
        counts[layer] = counts.get(layer, 0) + (tensor not in buffers) * count
        sizes[layer] = sizes.get(layer, 0) + dtype.itemsize * count
    layers = [
        StoredLayer(name, kinds.get(name, ""), counts[name], sizes[name])
        for name in sorted(counts, key=_natural)
    ]
    name = None if header.config is None else header.config["name"]
    return StoredModel(file, name, tuple(layers), dict(header.metadata), file.stat().st_size)


def _describe(header: Header) -> tuple[dict[str, str], set[str]]:
    """Returns what the layers are, as far as it is known, and the names of the buffers."""
    if header.config is None:
        return {name: str(spec) for name, spec in header.layers.items()}, set(header.buffers)
    with torch.device("meta"):
        model = install_layers(create_model(**header.config), header.layers)
    kinds = {name: type(module).__name__ for name, module in model.named_modules()}
    kinds |= {name: str(spec) for name, spec in describe_layers(model).items()}
    return kinds, set(dict(model.named_buffers()))


def _natural(name: str) -> list[str | int]:
    """A sort key that puts layer 10 behind layer 9; words and numbers alternate in it."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]
