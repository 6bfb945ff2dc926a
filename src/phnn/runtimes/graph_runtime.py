"""Runtimes that run ONNX graphs."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from phnn.runtimes.base import Arguments, Key, Runtime
from phnn.runtimes.graphs import PACKAGES, ExportError, convert_program, quiet, require, trace
from phnn.runtimes.nested import leaves

if TYPE_CHECKING:
    from onnx import ModelProto
    from torch.onnx import ONNXProgram

Run = Callable[[Sequence[np.ndarray[Any, Any]]], list[np.ndarray[Any, Any]]]


@dataclass(frozen=True)
class GraphRuntime(Runtime):
    """Where ONNX graphs run, on the CPU.

    Attributes:
        threads: Threads of the processor; as many as torch has by default.
    """

    has_formats = False
    # in none of ten layers, from 64 channels of 32×32 to 512 of 2×2 with batch 1 and 16, they beat
    # grouped products: both runtimes are slow with batches of small matrices
    has_winograd = False
    trains = False
    package: ClassVar[str]
    oldest: ClassVar[str]
    extra: ClassVar[str]

    threads: int | None = None

    @abstractmethod
    def load(self, graph: bytes | Path) -> Run:
        """Return a function from the inputs of a graph, in order, to its outputs.

        The outputs may change when the function is called again.

        Raises:
            ExportError: The runtime cannot run it.
        """

    def check(self) -> None:
        """Raise an ImportError unless the runtime and the packages for graphs are new enough."""
        if self.threads is not None and self.threads < 1:
            raise ValueError(f"threads must be at least 1, got threads={self.threads}")
        require({**PACKAGES, self.package: self.oldest}, self.extra)

    def count_threads(self) -> int:
        """Return how many threads a graph has."""
        return torch.get_num_threads() if self.threads is None else self.threads

    def prepare(
        self, module: nn.Module, calls: Sequence[Arguments]
    ) -> Callable[[], list[list[Tensor]]]:
        """Return a function that runs the module as a graph for each size of its inputs."""
        self.check()
        graphs = {
            kind: self.load(write_graph(module, *call)) for kind, call in _find_kinds(calls).items()
        }
        return _run_all(graphs, calls)

    def prepare_all(
        self, modules: Mapping[Key, nn.Module], calls: Sequence[Arguments]
    ) -> dict[Key, Callable[[], object]]:
        """Return the functions; all modules are written together, which takes seconds less."""
        self.check()
        first, *_ = modules
        found: dict[Key, dict[object, Run]] = {key: {} for key in modules}
        for kind, (args, _) in _find_kinds(calls).items():
            for key, graph in write_together(modules, *args).items():
                try:
                    found[key][kind] = self.load(graph)
                except ExportError:  # a form that the runtime lacks
                    if key == first:
                        raise
                    found.pop(key)
        return {key: _run_all(graphs, calls) for key, graphs in found.items()}


def _find_kinds(calls: Sequence[Arguments]) -> dict[object, Arguments]:
    """Return one call of each size, by what a graph is written for."""
    kinds: dict[object, Arguments] = {}
    for call in calls:
        kinds.setdefault(_kind_of(call), call)
    return kinds


def _kind_of(call: Arguments) -> object:
    args, kwargs = call
    return tuple((tensor.shape, tensor.dtype) for tensor in leaves([list(args), dict(kwargs)]))


def _run_all(
    graphs: Mapping[object, Run], calls: Sequence[Arguments]
) -> Callable[[], list[list[Tensor]]]:
    runs = [
        (graphs[_kind_of((args, kwargs))], list(map(to_numpy, leaves([list(args), dict(kwargs)]))))
        for args, kwargs in calls
    ]

    is_shared = len(runs) > len(graphs)  # then the next run of a graph overwrites its outputs

    def run() -> list[list[Tensor]]:
        outputs = []
        for graph, inputs in runs:
            found = [torch.from_numpy(output) for output in graph(inputs)]
            outputs.append([output.clone() for output in found] if is_shared else found)
        return outputs

    return run


def write_graph(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    """Return a module as an ONNX graph for the sizes of these arguments."""
    return _serialize(_to_message(convert_program(trace(module, args, kwargs))))


class _SideBySide(nn.Module):
    """Several modules on one input."""

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        super().__init__()
        self.sides = nn.ModuleList(modules)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return tuple(side(x) for side in self.sides)


def write_together(modules: Mapping[Key, nn.Module], x: Tensor) -> dict[Key, bytes]:
    """Return an ONNX graph of each of several modules, for the size of an input.

    Torch takes seconds for an export, mostly for reading what operators there are.
    """
    converted = convert_program(trace(_SideBySide(modules.values()), (x,)))
    model = _to_message(converted)
    return {
        key: _serialize(_cut_out(model, output.name))
        for key, output in zip(modules, model.graph.output, strict=True)
    }


def _to_message(converted: ONNXProgram) -> ModelProto:
    with quiet():
        return converted.model_proto


def _cut_out(model: ModelProto, output: str) -> ModelProto:
    """Return the part of a graph that computes one of its outputs."""
    needed, nodes = {output}, []
    for node in reversed(model.graph.node):
        if needed.intersection(node.output):
            nodes.append(node)
            needed.update(node.input)
    part = type(model)(ir_version=model.ir_version)
    part.opset_import.extend(model.opset_import)
    part.functions.extend(model.functions)
    part.graph.name = model.graph.name
    part.graph.node.extend(reversed(nodes))
    part.graph.input.extend(model.graph.input)
    part.graph.output.extend(out for out in model.graph.output if out.name == output)
    part.graph.initializer.extend(
        tensor for tensor in model.graph.initializer if tensor.name in needed
    )
    return part


def _serialize(model: ModelProto) -> bytes:
    try:
        return bytes(model.SerializeToString())
    except ValueError as error:
        raise ExportError(f"the graph of the model is too large for one message: {error}") from None


def to_numpy(tensor: Tensor) -> np.ndarray[Any, Any]:
    """Return a tensor as a graph takes it."""
    if tensor.dtype == torch.bfloat16:
        raise ExportError(
            "the outputs of a bfloat16 graph cannot be compared with the model; use model.float()"
        )
    # in torch's order of axes: channels last is unknown to graphs
    array: np.ndarray[Any, Any] = tensor.detach().cpu().contiguous().numpy()
    return array
