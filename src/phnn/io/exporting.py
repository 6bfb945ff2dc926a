"""Models as programs that run without this library."""

from __future__ import annotations

import copy
import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from phnn._screen import Progress
from phnn.acceleration.accelerating import find_fastest
from phnn.acceleration.measuring import Clock
from phnn.acceleration.report import Acceleration
from phnn.conversion import to_dense
from phnn.conversion.sites import check_model
from phnn.forms.computed import store_filters
from phnn.functional._storage import check_storage
from phnn.io.atomic import check_output, staging
from phnn.io.quantizing import QUANTIZE, check_calibration, quantize_static
from phnn.runtimes import RUNTIMES, ExportError, GraphRuntime, OnnxRuntime, Runtime, find_runtime
from phnn.runtimes.graph_runtime import to_numpy
from phnn.runtimes.graphs import (
    PACKAGES,
    Axes,
    Shapes,
    convert_program,
    nest_shapes,
    quiet,
    require,
    trace,
)
from phnn.runtimes.nested import compare, leaves

if TYPE_CHECKING:
    from onnx_ir import Node
    from torch.export import ExportedProgram

SUFFIXES = {"onnx": ".onnx", "torch": ".pt2"}
ROUNDS = 7  # of acceleration

Run = Callable[[tuple[Tensor, ...]], list[Tensor]]


@dataclass(frozen=True)
class Exported:
    """What `export` wrote; prints as one line.

    Attributes:
        path: The file to load.
        files: All files, with those of tensors too large for the first.
        size: Bytes of all files.
        max_difference: Largest difference between an output of the program and of the model.
        relative_difference: The same, relative to the largest output.
        acceleration: What was made of the layers for a runtime; None without one.
    """

    path: Path
    files: tuple[Path, ...]
    size: int
    max_difference: float
    relative_difference: float = 0.0
    acceleration: Acceleration | None = None

    def __str__(self) -> str:
        names = ", ".join(str(file) for file in self.files)
        share = f", {self.relative_difference:.2g} of the largest" * (
            self.relative_difference > NOTABLE
        )
        return (
            f"{names}: {self.size:,} bytes; the outputs differ from the model's by at most "
            f"{self.max_difference:.1e}{share}"
        )


NOTABLE = 1e-4  # a relative difference that is more than rounding in float32


def export(
    model: nn.Module,
    path: str | Path,
    example_input: Tensor | Sequence[Tensor],
    *,
    format: str = "onnx",
    fold: bool = False,
    dynamic_batch: bool = True,
    dynamic_size: bool = False,
    runtime: str | Runtime | None = None,
    plan: Mapping[str, Any] | str | Path | None = None,
    storage: str = "float32",
    quantize: str | None = None,
    calibration: Iterable[Any] | None = None,
    opset: int | None = None,
    progress: Progress | None = None,
) -> Exported:
    """Write a model as a program that runs without this library.

    A PH layer is written in the computation with the fewest multiplications: two smaller layers, as
    those of low rank, or one with the assembled weight H. The file holds A and F, so it is as small
    as the model. onnxruntime and OpenVINO assemble H once, when they load the file; a program of
    torch does so in each call.

    With a runtime, the model is accelerated for it first. The file still holds F, and the runtime
    mixes the filters when it loads the file.

    The program is run on the example, and where axes are open on a larger one, and its outputs
    are compared with the model's before the files appear.

    Args:
        model: Any model, in evaluation mode.
        path: The file, `.onnx` or `.pt2`; tensors above 1.5 GB are put beside an `.onnx` file.
        example_input: An input of the model, or a sequence of its inputs.
        format: "onnx", or "torch" for a program of `torch.export`.
        fold: Hold the assembled weights H, as plain layers do. The file is as large as that of the
            real model, and so is the work.
        dynamic_batch: Leave the size of the first axis of every input open.
        dynamic_size: Leave the height and width of images open, as far as the model can.
        runtime: Where the program will run: the model is accelerated for it first, as
            `phnn.accelerate` does, for the sizes of the example. "onnxruntime" or "openvino" for
            ONNX, "torch" or "compile" for the other format.
        plan: Forms of the layers to repeat, instead of timing them; see `phnn.accelerate`.
        storage: The type of the filters in an ONNX file: "float32", "float16", or "int8" with a
            scale for each filter. The network computes in its own type all the same.
        quantize: "static" computes in int8: weights and activations of the folded network, by
            onnxruntime's quantizer.
        calibration: Batches of inputs, such as a `DataLoader`, from which static quantization
            reads the ranges of activations.
        opset: Version of the operators of ONNX; torch's choice by default.
        progress: Called with what is done, how far, and of how much.

    Returns:
        The files, their size, and how close the program is to the model.

    Raises:
        ExportError: The model cannot be traced, or the program computes something else.

    Example:
        >>> import phnn
        >>> model = phnn.PHLinear(8, 8, n=4).eval()
        >>> print(export(model, "model.onnx", torch.randn(1, 8)))  # doctest: +SKIP
        model.onnx: 1,180 bytes; the outputs differ from the model's by at most 1.2e-07
    """
    check_model(model, "export")
    path = Path(path)
    inputs = (example_input,) if isinstance(example_input, Tensor) else tuple(example_input)
    check_target(path, format)
    _check_model(model, inputs, format)
    _check_options(format, fold, runtime, storage, quantize, calibration, opset)
    target = _find_runtime(runtime, plan, format)
    batches = _find_batches(inputs, dynamic_batch, dynamic_size)
    shapes = nest_shapes(model, _open_axes(inputs, dynamic_batch, dynamic_size))
    ranges = check_calibration(calibration, inputs, dynamic_batch) if quantize else []
    acceleration: Acceleration | None = None
    if runtime is not None:
        if dynamic_size or opset is not None:  # which may fail, before the work of acceleration
            program = _trace(model, batches[-1], shapes)
            if opset is not None:
                convert_program(program, shapes, opset)
        clock = Clock(target, ROUNDS, progress)
        fastest = find_fastest(model, inputs, clock, plan, winograd=not dynamic_size)
        acceleration = fastest.report
        written = fastest.model if fold else fastest.shrink(storage)
    elif fold or quantize:
        written = store_filters(to_dense(model), storage)
    else:
        written = model if storage == "float32" else store_filters(copy.deepcopy(model), storage)
    path.parent.mkdir(parents=True, exist_ok=True)
    if progress is not None:
        progress("writing and checking the program", 0, 1)
    with torch.no_grad(), staging(path) as folder:
        program = _trace(written, batches[-1], shapes)
        file = folder / path.name
        if format == "onnx":
            assert isinstance(target, GraphRuntime)
            keeps = None if fold or quantize else _may_fold
            converted = convert_program(program, shapes, opset, keeps)
            with quiet():
                converted.save(file)
            if quantize:
                quantize_static(file, ranges)
            run = _load(target, file)
        else:
            with quiet():
                run = _write(program, file)
        if not quantize:  # what is written is what was traced, up to rounding
            exact = model if storage == "float32" else written
            for batch in batches:
                _check_equal(exact, run, batch)
        differences = [_compare(model, run, batch) for batch in batches]
        difference, relative = map(max, zip(*differences, strict=True))
        files = _move(folder, path)
    size = sum(file.stat().st_size for file in files)
    return Exported(path, files, size, difference, relative, acceleration)


def check_target(path: Path, format: str) -> None:
    """Raise an error when a program cannot be written to a file, before the work.

    Raises:
        ValueError: The format is unknown, or the file is named as one of another format.
        OSError: The file cannot be written there.
        ModuleNotFoundError: The packages for ONNX are missing.
    """
    if format not in SUFFIXES:
        raise ValueError(f"format must be one of {', '.join(SUFFIXES)}; got {format!r}")
    if path.suffix != SUFFIXES[format]:
        raise ValueError(
            f"the file of format {format!r} must end in {SUFFIXES[format]}, got path={str(path)!r}"
        )
    if format == "onnx":
        packages = {**PACKAGES, OnnxRuntime.package: OnnxRuntime.oldest}
        require(packages, OnnxRuntime.extra, ', or use format="torch"')
    check_output(path)


def _check_options(
    format: str,
    fold: bool,
    runtime: str | Runtime | None,
    storage: str,
    quantize: str | None,
    calibration: Iterable[Any] | None,
    opset: int | None,
) -> None:
    """Refuse options that do not go together, before the work."""
    check_storage(storage)
    if quantize is not None and quantize not in QUANTIZE:
        raise ValueError(f"quantize must be one of {', '.join(QUANTIZE)} or None; got {quantize!r}")
    if calibration is not None and quantize is None:
        raise ValueError('calibration= is for quantize="static"')
    if format != "onnx" and (storage != "float32" or quantize or opset is not None):
        raise ValueError(
            'storage=, quantize= and opset= are for format="onnx": a program of torch would '
            "restore its filters in every call"
        )
    if quantize and (storage != "float32" or runtime is not None):
        raise ValueError(
            f"quantize={quantize!r} folds the network and stores its weights in int8 by itself; "
            "leave out storage= and runtime="
        )
    if fold and storage != "float32" and runtime is not None:
        raise ValueError(
            f"storage={storage!r} stores filters, and with fold=True and a runtime there "
            "are none; leave out fold="
        )


def _find_runtime(
    runtime: str | Runtime | None, plan: Mapping[str, Any] | str | Path | None, format: str
) -> Runtime:
    """Return where a program is accelerated and compared."""
    if runtime is None:
        if plan is not None:
            raise ValueError("plan= holds forms for one runtime; give runtime= as well")
        return OnnxRuntime() if format == "onnx" else find_runtime("torch")
    found = find_runtime(runtime)
    if isinstance(found, GraphRuntime) != (format == "onnx"):
        fitting = [
            name
            for name, kind in RUNTIMES.items()
            if issubclass(kind, GraphRuntime) == (format == "onnx")
        ]
        raise ValueError(
            f"runtime={found.name!r} does not run programs of format={format!r}; "
            f"{' and '.join(fitting)} do"
        )
    return found


def _check_model(model: nn.Module, inputs: tuple[Tensor, ...], format: str) -> None:
    if model.training:
        raise ValueError("export needs a model in evaluation mode; call model.eval() first")
    tensors = [*inputs, *model.parameters(), *model.buffers()]
    if format == "onnx" and any(tensor.dtype == torch.bfloat16 for tensor in tensors):
        raise ValueError(
            "outputs of onnxruntime in bfloat16 cannot be compared with the model; export "
            'model.float(), or use format="torch"'
        )


def _find_batches(
    inputs: tuple[Tensor, ...], dynamic_batch: bool, dynamic_size: bool
) -> list[tuple[Tensor, ...]]:
    """Return the example, and one twice as large along every open axis."""
    shapes = ", ".join(str(tuple(tensor.shape)) for tensor in inputs)
    sizes = {len(tensor) if tensor.dim() else None for tensor in inputs}
    if dynamic_batch and (len(sizes) != 1 or None in sizes):
        raise ValueError(
            f"a dynamic batch must be the first axis of every input, got shapes {shapes}; "
            "use dynamic_batch=False"
        )
    if dynamic_size and not any(tensor.dim() > 2 for tensor in inputs):
        raise ValueError(
            f"a dynamic size needs images as (batch, channels, height, width), got {shapes}; "
            "use dynamic_size=False"
        )
    found = [inputs]
    if dynamic_batch:
        found.append(tuple(torch.cat([tensor, tensor]) for tensor in inputs))
    if dynamic_size:
        found.append(tuple(map(_enlarge, found[-1])))
    return found


def _enlarge(tensor: Tensor) -> Tensor:
    for axis in range(2, tensor.dim()):
        tensor = torch.cat([tensor, tensor], axis)
    return tensor


def _open_axes(
    inputs: tuple[Tensor, ...], dynamic_batch: bool, dynamic_size: bool
) -> tuple[Axes, ...] | None:
    """Return the names of the open axes of each input; None where there are none."""
    if not (dynamic_batch or dynamic_size):
        return None
    names = {1: ("length",), 2: ("height", "width"), 3: ("depth", "height", "width")}
    dims = {name: torch.export.Dim(name) for name in ("batch", "length", *names[3])}
    shapes = []
    for tensor in inputs:
        axes = {0: dims["batch"]} if dynamic_batch else {}
        if dynamic_size:
            space = names.get(tensor.dim() - 2, ())
            axes |= {axis: dims[name] for axis, name in enumerate(space, 2)}
        shapes.append(axes)
    return tuple(shapes)


def _trace(model: nn.Module, inputs: tuple[Tensor, ...], shapes: Shapes) -> ExportedProgram:
    """Return a program of torch."""
    flat = [
        axes for part in shapes or () for axes in (part if isinstance(part, tuple) else (part,))
    ]
    open_axes = {axis for axes in flat for axis in axes}
    hints = ["dynamic_batch=False"] * (0 in open_axes) + ["dynamic_size=False"] * (2 in open_axes)
    return trace(
        model, inputs, shapes=shapes, hint="".join(f"; {' or '.join(hints)} may help" * bool(hints))
    )


def _write(program: ExportedProgram, file: Path) -> Run:
    """Write a program of torch, and return what it computes when it is loaded again."""
    program._example_inputs = None  # nobody's data in the file; before torch 2.7 only so
    content = io.BytesIO()  # torch's own writer ends the process when the disk is full
    torch.export.save(program, content)
    file.write_bytes(content.getbuffer())
    loaded = torch.export.load(file).module()
    return lambda inputs: leaves(loaded(*inputs))


def _load(runtime: GraphRuntime, file: Path) -> Run:
    """Return what a file computes in a runtime."""
    run = runtime.load(file)
    return lambda inputs: [
        torch.from_numpy(output) for output in run([to_numpy(tensor) for tensor in inputs])
    ]


def _may_fold(node: Node) -> bool | None:
    """Keep the optimizer from computing weights: sums of F, and filters of a smaller type."""
    if node.op_type == "Einsum":
        return False
    if node.op_type == "Cast" and node.inputs[0] is not None:
        stored = node.inputs[0].dtype
        return False if stored is not None and stored.name in ("INT8", "FLOAT16") else None
    return None


def _check_equal(model: nn.Module, run: Run, inputs: tuple[Tensor, ...]) -> None:
    """Raise an error where a program and a model agree in less than half of their digits."""
    for ours, theirs in _pair_outputs(model, run, inputs):
        difference, scale = compare(theirs, ours)
        allowed = math.sqrt(torch.finfo(ours.dtype).eps) if ours.is_floating_point() else 0.0
        if not difference <= allowed * scale:  # nan is no agreement either
            raise ExportError(
                f"the exported program differs from the model by {difference:.2g}, "
                f"in outputs of up to {scale:.2g}"
            )


def _compare(model: nn.Module, run: Run, inputs: tuple[Tensor, ...]) -> tuple[float, float]:
    """Return the largest difference of the outputs, and the largest relative one."""
    largest = relative = 0.0
    for ours, theirs in _pair_outputs(model, run, inputs):
        difference, scale = compare(theirs, ours)
        if not math.isfinite(difference):
            raise ExportError("the exported program computes values that are not finite")
        largest = max(largest, difference)
        relative = max(relative, difference / scale if scale else 0.0)
    return largest, relative


def _pair_outputs(
    model: nn.Module, run: Run, inputs: tuple[Tensor, ...]
) -> list[tuple[Tensor, Tensor]]:
    expected, actual = leaves(model(*inputs)), run(inputs)
    if len(expected) != len(actual):
        raise ExportError(
            f"the exported program has {len(actual)} outputs, the model has {len(expected)}"
        )
    return list(zip(expected, actual, strict=True))


def _move(folder: Path, path: Path) -> tuple[Path, ...]:
    """Move the files of a folder beside `path`; the one that refers to the others comes last."""
    files = sorted(folder.iterdir(), key=lambda file: file.name == path.name)
    return tuple(file.replace(path.parent / file.name) for file in files)[::-1]
