"""What is in a model: its layers, their parameters and their sizes."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from phnn._names import printable
from phnn._tables import align
from phnn.conversion.specs import describe_layers
from phnn.io.container import find_file, read_header
from phnn.io.header import Header
from phnn.io.loading import build_model
from phnn.io.tensors import TensorSpec, specs_of


@dataclass(frozen=True)
class InspectedLayer:
    """One layer of a model.

    Attributes:
        name: Its name in the model.
        kind: What it is, such as "PHConv2d n=4"; empty where a file does not say it.
        parameters: Number of its parameters; those shared with an earlier layer do not count.
        size: Bytes of its tensors.
    """

    name: str
    kind: str
    parameters: int
    size: int


@dataclass(frozen=True)
class Inspection:
    """The layers of a model; prints as a table.

    Attributes:
        path: Its file; None for a model in memory.
        name: The registered name of a model of the zoo; None for any other model.
        layers: Those with tensors of their own, in natural order of their names.
        metadata: What the model was saved with.
        size: Bytes of the whole file, or of all tensors in memory.
        storage: How filters are stored in a smaller type; empty where none are.
    """

    path: Path | None
    name: str | None
    layers: tuple[InspectedLayer, ...]
    metadata: dict[str, object]
    size: int
    storage: str = ""

    @property
    def parameters(self) -> int:
        """Number of parameters of the whole model."""
        return sum(layer.parameters for layer in self.layers)

    def __str__(self) -> str:
        rows = [("layer", "kind", "parameters", "bytes")]
        rows += [(x.name, x.kind, f"{x.parameters:,}", f"{x.size:,}") for x in self.layers]
        rows = [(printable(a), printable(b), c, d) for a, b, c, d in rows]
        lines = align(rows, right={2, 3})
        title = self.name or "a model that phnn.create_model did not make"
        home = "memory" if self.path is None else self.path
        lines.append(f"{title}: {self.parameters:,} parameters, {self.size:,} bytes in {home}")
        if self.storage:
            lines.append(self.storage)
        return "\n".join(lines)


def inspect(source: str | Path | nn.Module) -> Inspection:
    """Say what is in a model, without reading its tensors.

    Args:
        source: The file or the folder of `save`, or a model in memory.

    Raises:
        ModelFileError: The file is damaged, or not a file of `save`.
    """
    if isinstance(source, nn.Module):
        return _inspect_model(source)
    file = find_file(source)
    header, specs = read_header(file)
    if header.config is None:
        kinds, buffers = {name: str(spec) for name, spec in header.layers.items()}, header.buffers
    else:
        model = build_model(file, header)
        kinds, buffers = _describe(model), [name for name, _ in model.named_buffers()]
    own = {name: spec for name, spec in specs.items() if name not in header.shared}
    name = None if header.config is None else header.config["name"]
    layers = _tabulate(own, kinds, set(buffers))
    size, storage = file.stat().st_size, _describe_storage(header)
    return Inspection(file, name, layers, dict(header.metadata), size, storage)


def _describe_storage(header: Header) -> str:
    """Say which filters are stored in a smaller type, and what it changes."""
    if not header.storage:
        return ""
    text = f"{len(header.storage)} filters are stored in a smaller type"
    if header.output_error is None:
        return text
    return f"{text}, which changes outputs by at most {header.output_error:.2g} of the largest"


def _inspect_model(model: nn.Module) -> Inspection:
    state = model.state_dict(keep_vars=True)
    first = {id(tensor): name for name, tensor in reversed(state.items())}
    specs = {name: spec for name, spec in specs_of(model).items() if name in first.values()}
    layers = _tabulate(specs, _describe(model), set(dict(model.named_buffers())))
    config = getattr(model, "config", None)
    name = config.get("name") if isinstance(config, dict) else None
    metadata = getattr(model, "phnn_metadata", {})
    return Inspection(None, name, layers, dict(metadata), sum(layer.size for layer in layers))


def _describe(model: nn.Module) -> dict[str, str]:
    """Return what each layer is."""
    kinds = {name: type(module).__name__ for name, module in model.named_modules()}
    return kinds | {name: str(spec) for name, spec in describe_layers(model).items()}


def _tabulate(
    specs: Mapping[str, TensorSpec], kinds: Mapping[str, str], buffers: set[str]
) -> tuple[InspectedLayer, ...]:
    """Count parameters and bytes of each layer."""
    counts: dict[str, int] = {}
    sizes: dict[str, int] = {}
    for tensor, (shape, dtype) in specs.items():
        layer = tensor.rpartition(".")[0]
        count = math.prod(shape)
        counts[layer] = counts.get(layer, 0) + (tensor not in buffers) * count
        sizes[layer] = sizes.get(layer, 0) + dtype.itemsize * count
    return tuple(
        InspectedLayer(name, kinds.get(name, ""), counts[name], sizes[name])
        for name in sorted(counts, key=_natural)
    )


def _natural(name: str) -> list[str | int]:
    """Return a sort key that puts layer 10 behind layer 9; words and numbers alternate in it."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]
