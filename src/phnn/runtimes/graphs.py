"""Modules as ONNX graphs."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import inspect
import logging
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from onnx_ir import Model, Node
    from torch.export import ExportedProgram
    from torch.onnx import ONNXProgram

PACKAGES = {"onnx": "1.17", "onnxscript": "0.3"}  # with the oldest version that works

Axes = dict[int, Any]  # the names of the open axes of an input
Shapes = tuple[Axes | tuple[Axes, ...], ...] | None


class ExportError(RuntimeError):
    """A model that cannot become a graph, or a graph that a runtime cannot run."""


def require(packages: dict[str, str], extra: str, otherwise: str = "") -> None:
    """Raise an error unless packages are installed, and new enough.

    Args:
        packages: The oldest version that works, by the name of the package.
        extra: The extra of this library that installs them.
        otherwise: What else there is to do.

    Raises:
        ModuleNotFoundError: One is not installed.
        ImportError: One is too old.
    """
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    if missing:
        raise ModuleNotFoundError(
            f'{", ".join(missing)} not installed; pip install "phnn[{extra}]"{otherwise}',
            name=missing[0],
        )
    for package, oldest in packages.items():
        found = importlib.metadata.version(package)
        if _numbers(found) < _numbers(oldest):
            raise ImportError(
                f"{package} {found} is too old, phnn needs {oldest} or newer; "
                f'pip install -U "phnn[{extra}]"{otherwise}',
                name=package,
            )


def _numbers(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)[:2]]


def nest_shapes(model: nn.Module, shapes: tuple[Axes, ...] | None) -> Shapes:
    """Return the open axes as torch wants them: those of `*args` in a tuple of their own."""
    parameters = inspect.signature(model.forward).parameters.values()
    kinds = [parameter.kind for parameter in parameters]
    if shapes is None or inspect.Parameter.VAR_POSITIONAL not in kinds:
        return shapes
    named = kinds.index(inspect.Parameter.VAR_POSITIONAL)
    return (*shapes[:named], shapes[named:]) if len(shapes) > named else shapes


def trace(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None = None,
    shapes: Shapes = None,
    hint: str = "",
) -> ExportedProgram:
    """Return a model as a program of `torch.export`, without paths of this machine.

    Args:
        model: The model, in evaluation mode.
        args: Its arguments by order.
        kwargs: Its arguments by name.
        shapes: Which axes of the arguments are open.
        hint: What may help, for the error.

    Raises:
        ExportError: It cannot be traced.
    """
    try:
        with torch.no_grad(), quiet():
            program = torch.export.export(model, args, kwargs, dynamic_shapes=shapes)
    except Exception as error:  # torch raises its own, of many types
        raise ExportError(f"torch.export cannot trace this model{hint}: {error}") from error
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # paths of this machine
    return program


def convert_program(
    program: ExportedProgram,
    shapes: Shapes = None,
    opset: int | None = None,
    may_fold: Callable[[Node], bool | None] | None = None,
) -> ONNXProgram:
    """Return a program of torch as an optimized ONNX graph.

    Args:
        program: The program.
        shapes: Those that it was traced with; they only name the axes here.
        opset: Version of the operators; torch's choice by default.
        may_fold: Says of a node of constants whether it is computed now; None leaves it to the
            optimizer.

    Raises:
        ExportError: It has an operation that ONNX lacks, or one that the opset lacks.
    """
    from onnx_ir.passes.common import ClearMetadataAndDocStringPass
    from onnxscript.optimizer import optimize_ir

    try:
        with quiet():
            converted = torch.onnx.export(
                program,
                dynamo=True,
                dynamic_shapes=shapes,
                opset_version=opset,
                optimize=False,
                verbose=False,
            )
    except Exception as error:  # torch raises its own, of many types
        raise ExportError(f"ONNX cannot hold this model: {_last_line(error)}") from error
    assert converted is not None
    written = converted.model.opset_imports[""]
    if opset is not None and written != opset:  # which torch only logs
        raise ExportError(
            f"torch cannot write this model with opset={opset}, but with opset={written}"
        )
    if may_fold is None:
        optimize_ir(converted.model)
    else:
        optimize_ir(converted.model, should_fold=may_fold)
    _drop_expands(converted.model)
    ClearMetadataAndDocStringPass()(converted.model)  # paths of this machine, on every node
    return converted


def _drop_expands(model: Model) -> None:
    """Let products of matrices broadcast by themselves: no copy of a matrix for each sample."""
    from onnx_ir.passes.common import RemoveUnusedNodesPass

    for node in model.graph:
        first = node.inputs[0] if node.op_type == "MatMul" else None
        expand = None if first is None else first.producer()
        if expand is None or expand.op_type != "Expand":
            continue
        matrix = expand.inputs[0]
        # of one matrix to a batch, nothing else
        if matrix is not None and matrix.shape is not None and len(matrix.shape) == 2:
            node.replace_input_with(0, matrix)
    RemoveUnusedNodesPass()(model)


def _last_line(error: Exception) -> str:
    """Return the cause that torch names at the end of many lines."""
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    lines = [line for line in str(cause).splitlines() if line.strip()]
    return lines[0] if lines else type(cause).__name__


@contextmanager
def quiet() -> Iterator[None]:
    """Silence what torch says of its own code and of packages that a model has no use for."""
    silent = {"torch.onnx": logging.ERROR, "onnxscript.version_converter": logging.CRITICAL}
    levels = {name: logging.getLogger(name).level for name in silent}
    for name, level in silent.items():
        logging.getLogger(name).setLevel(level)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            warnings.simplefilter("ignore", DeprecationWarning)
            # one name for the first axis of several inputs, which is what is meant
            warnings.filterwarnings("ignore", "# The axis name", UserWarning)
            # said of weights with channels last; what is written is compared all the same
            warnings.filterwarnings("ignore", "No complete tensor found", UserWarning)
            yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
