"""Models as programs that run without this library."""

from __future__ import annotations

import importlib.util
import io
import logging
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from phnn.conversion import to_dense
from phnn.io.atomic import check_output, staging
from phnn.runtimes.nested import compare, leaves

if TYPE_CHECKING:
    from onnx_ir import Node
    from torch.export import ExportedProgram

SUFFIXES = {"onnx": ".onnx", "torch": ".pt2"}
PACKAGES = ("onnx", "onnxscript", "onnxruntime")

Shapes = tuple[dict[int, Any], ...] | None
Run = Callable[[tuple[Tensor, ...]], list[Tensor]]


class ExportError(RuntimeError):
    """A model that cannot become a program."""


@dataclass(frozen=True)
class Exported:
    """What `export` wrote; prints as one line.

    Attributes:
        path: The file to load.
        files: All files, with those of tensors too large for the first.
        size: Bytes of all files.
        max_difference: Largest difference between an output of the program and of the model.
    """

    path: Path
    files: tuple[Path, ...]
    size: int
    max_difference: float

    def __str__(self) -> str:
        names = ", ".join(str(file) for file in self.files)
        return (
            f"{names}: {self.size:,} bytes; the outputs differ from the model's by at most "
            f"{self.max_difference:.1e}"
        )


def export(
    model: nn.Module,
    path: str | Path,
    example_input: Tensor | Sequence[Tensor],
    *,
    format: str = "onnx",
    fold: bool = True,
    dynamic_batch: bool = True,
) -> Exported:
    """Write a model as a program that runs without this library.

    The program is run on the example, and with a dynamic batch on a larger one, and its outputs
    are compared with the model's before the files appear.

    Args:
        model: Any model, in evaluation mode.
        path: The file, `.onnx` or `.pt2`; tensors above 1.5 GB are put beside an `.onnx` file.
        example_input: An input of the model, or a sequence of its inputs.
        format: "onnx", or "torch" for a program of `torch.export`.
        fold: Hold the assembled weights H, as plain layers do. Otherwise hold A and F, which are n
            times smaller, and assemble H in the program; onnxruntime then does so once, when it
            loads the file, and is as fast as with the folded one.
        dynamic_batch: Leave the size of the first axis of every input open.

    Returns:
        The files, their size, and how close the program is to the model.

    Raises:
        ExportError: The model cannot be traced, or the program computes something else.

    Example:
        >>> import phnn
        >>> model = phnn.PHLinear(8, 8, n=4).eval()
        >>> print(export(model, "model.onnx", torch.randn(1, 8)))  # doctest: +SKIP
        model.onnx: 1,122 bytes; the outputs differ from the model's by at most 1.2e-07
    """
    path = Path(path)
    inputs = (example_input,) if isinstance(example_input, Tensor) else tuple(example_input)
    check_target(path, format)
    _check_model(model, inputs, format)
    batches = _batches(inputs) if dynamic_batch else [inputs]
    shapes = tuple({0: torch.export.Dim("batch")} for _ in inputs) if dynamic_batch else None
    with torch.no_grad(), _quiet():
        program = _trace(to_dense(model) if fold else model, batches[-1], shapes)
        path.parent.mkdir(parents=True, exist_ok=True)
        with staging(path) as folder:
            file = folder / path.name
            run = (
                _write_onnx(program, file, shapes, fold)
                if format == "onnx"
                else _write(program, file)
            )
            difference = max(_compare(model, run, batch) for batch in batches)
            files = _move(folder, path)
    return Exported(path, files, sum(file.stat().st_size for file in files), difference)


def check_target(path: Path, format: str) -> None:
    """Raise an error when a program cannot be written to a file, before the work.

    Raises:
        ValueError: The format is unknown, or the file is named as one of another format.
        OSError: The file cannot be written there.
        ModuleNotFoundError: The packages for ONNX are missing.
    """
    if format not in SUFFIXES:
        raise ValueError(f"format is one of {', '.join(SUFFIXES)}; got {format!r}")
    if path.suffix != SUFFIXES[format]:
        raise ValueError(
            f"a program of format {format!r} is a file that ends in {SUFFIXES[format]}, "
            f"got path={str(path)!r}"
        )
    missing = [package for package in PACKAGES if importlib.util.find_spec(package) is None]
    if format == "onnx" and missing:
        raise ModuleNotFoundError(
            f"{', '.join(missing)} not installed; "
            'pip install "phnn[export]", or use format="torch"',
            name=missing[0],
        )
    check_output(path)


def _check_model(model: nn.Module, inputs: tuple[Tensor, ...], format: str) -> None:
    if model.training:
        raise ValueError("a model is exported in evaluation mode; call model.eval() first")
    tensors = [*inputs, *model.parameters(), *model.buffers()]
    if format == "onnx" and any(tensor.dtype == torch.bfloat16 for tensor in tensors):
        raise ValueError(
            "what onnxruntime computes in bfloat16 cannot be compared with the model; export "
            'model.float(), or use format="torch"'
        )


def _batches(inputs: tuple[Tensor, ...]) -> list[tuple[Tensor, ...]]:
    """Return the example, and one twice as large."""
    sizes = {len(tensor) if tensor.dim() else None for tensor in inputs}
    if len(sizes) != 1 or None in sizes:
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in inputs)
        raise ValueError(
            f"a dynamic batch is the first axis of every input, got shapes {shapes}; "
            "use dynamic_batch=False"
        )
    return [inputs, tuple(torch.cat([tensor, tensor]) for tensor in inputs)]


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence what torch says of its own code and of packages that a model has no use for."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
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
        logger.setLevel(level)


def _trace(model: nn.Module, inputs: tuple[Tensor, ...], shapes: Shapes) -> ExportedProgram:
    try:
        program = torch.export.export(model, inputs, dynamic_shapes=shapes)
    except Exception as error:  # torch raises its own, of many types
        hint = "" if shapes is None else "; dynamic_batch=False may help"
        raise ExportError(f"torch.export cannot trace this model{hint}: {error}") from error
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # paths of this machine
    return program


def _write(program: ExportedProgram, file: Path) -> Run:
    """Write a program of torch, and return what it computes when it is loaded again."""
    program._example_inputs = None  # nobody's data in the file; before torch 2.7 only so
    content = io.BytesIO()  # torch's own writer ends the process when the disk is full
    torch.export.save(program, content)
    file.write_bytes(content.getbuffer())
    loaded = torch.export.load(file).module()
    return lambda inputs: leaves(loaded(*inputs))


def _write_onnx(program: ExportedProgram, file: Path, shapes: Shapes, fold: bool) -> Run:
    """Write an ONNX file, and return what it computes in onnxruntime."""
    import onnxruntime
    from onnx_ir.passes.common import ClearMetadataAndDocStringPass
    from onnxscript.optimizer import optimize_ir

    # the shapes only name the axis; they are those that the program was traced with
    converted = torch.onnx.export(
        program, dynamo=True, dynamic_shapes=shapes, optimize=False, verbose=False
    )
    assert converted is not None
    optimize_ir(converted.model, should_fold=lambda node: None if fold else _may_fold(node))
    ClearMetadataAndDocStringPass()(converted.model)  # paths of this machine, on every node
    converted.save(file)
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    names = [argument.name for argument in session.get_inputs()]

    def run(inputs: tuple[Tensor, ...]) -> list[Tensor]:
        arrays = (tensor.detach().cpu().numpy() for tensor in inputs)
        outputs = session.run(None, dict(zip(names, arrays, strict=True)))
        return [torch.from_numpy(output) for output in outputs]

    return run


def _may_fold(node: Node) -> bool | None:
    """Keep the optimizer from assembling H, an Einsum of the constants A and F."""
    return False if node.op_type == "Einsum" else None


def _compare(model: nn.Module, run: Run, inputs: tuple[Tensor, ...]) -> float:
    """Return the largest difference between the outputs of a program and of the model.

    Raises:
        ExportError: They agree in less than half of the digits of their type.
    """
    expected, actual = leaves(model(*inputs)), run(inputs)
    if len(expected) != len(actual):
        raise ExportError(
            f"the exported program has {len(actual)} outputs, the model has {len(expected)}"
        )
    largest = 0.0
    for ours, theirs in zip(expected, actual, strict=True):
        difference, scale = compare(theirs, ours)
        allowed = math.sqrt(torch.finfo(ours.dtype).eps) if ours.is_floating_point() else 0.0
        if not difference <= allowed * scale:  # nan is no agreement either
            raise ExportError(
                f"the exported program differs from the model by {difference:.2g}, "
                f"in outputs of up to {scale:.2g}"
            )
        largest = max(largest, difference)
    return largest


def _move(folder: Path, path: Path) -> tuple[Path, ...]:
    """Move the files of a folder beside `path`; the one that refers to the others comes last."""
    files = sorted(folder.iterdir(), key=lambda file: file.name == path.name)
    return tuple(file.replace(path.parent / file.name) for file in files)[::-1]
