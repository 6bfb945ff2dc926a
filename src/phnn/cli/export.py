"""The command that writes a model as a program."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from phnn._screen import ProgressBar
from phnn._tables import fit_lines
from phnn.cli.example_input import add_example, make_example, read_arrays
from phnn.cli.model_argument import add_build_option, add_network_options, find_model
from phnn.cli.parser import Parser, parse_count, speaking_of

if TYPE_CHECKING:
    from torch import Tensor, nn

ROUNDS, SECONDS = 5, 0.5  # in which a program is timed

OPTIONS = {
    "format": "--format",
    "fold": "--fold",
    "dynamic_batch": "--dynamic-batch",
    "dynamic_size": "--dynamic-size",
    "runtime": "--runtime",
    "plan": "--plan",
    "storage": "--storage",
    "quantize": "--quantize",
    "calibration": "--calibration",
    "opset": "--opset",
    "path": "--out",
}


def add_arguments(parser: Parser) -> None:
    """Add the arguments of the command."""
    parser.add_model()
    add_build_option(parser)
    parser.add_out("the file to write, .onnx or .pt2", required=True)
    parser.add_argument(
        "--format",
        choices=["onnx", "torch"],
        default="onnx",
        help="ONNX (default), or a program of torch.export",
    )
    add_example(parser, "that of an image it was trained for")
    add_network_options(parser)
    parser.add_flag(
        "fold",
        "write assembled weights, as large as those of the real model, instead of A and F",
        default=False,
    )
    parser.add_flag("dynamic-batch", "allow any batch size", default=True)
    parser.add_flag("dynamic-size", "allow any height and width of images", default=False)
    parser.add_argument(
        "--runtime",
        help="accelerate for onnxruntime or openvino (.onnx), torch or compile (.pt2) first; the "
        "layers are timed there, on inputs of the given shape",
    )
    parser.add_argument(
        "--plan", type=Path, help="a JSON file of forms to repeat instead of timing them"
    )
    parser.add_argument(
        "--storage",
        choices=["float32", "float16", "int8"],
        default="float32",
        help="type of the filters in the file; the network still computes in float32",
    )
    parser.add_argument(
        "--quantize", choices=["static"], help="compute in int8; needs --calibration"
    )
    parser.add_argument(
        "--calibration",
        type=Path,
        help="inputs to read the ranges of activations from: a .npy array whose first axis counts "
        "the samples, or a .npz file with one array for each input",
    )
    parser.add_argument("--opset", type=parse_count, help="ONNX opset version")


def run(
    model: str,
    build: str | None,
    out: Path,
    format: str,
    shape: tuple[int, ...] | None,
    input: Path | None,
    n: int | None,
    algebra: str | None,
    fold: bool,
    dynamic_batch: bool,
    dynamic_size: bool,
    runtime: str | None,
    plan: Path | None,
    storage: str,
    quantize: str | None,
    calibration: Path | None,
    opset: int | None,
) -> int:
    """Write a model as a program that runs without this library.

    Examples:
      phnn export small.safetensors --out small.onnx
      phnn export small.safetensors --out small.onnx --runtime onnxruntime --storage int8
      phnn export small.safetensors --build mine:network --shape 1,3,32,32 --out small.onnx
    """
    from phnn.io import export
    from phnn.io.exporting import check_target

    with speaking_of(**OPTIONS):
        check_target(out, format)
    found = find_model(model, build=build, n=n, algebra=algebra)
    inputs = make_example(found, shape, input, batch=1)
    batches = None if calibration is None else _split(read_arrays(calibration), len(inputs[0]))
    with speaking_of(**OPTIONS), ProgressBar() as bar:
        written = export(
            found.model,
            out,
            inputs,
            format=format,
            fold=fold,
            dynamic_batch=dynamic_batch,
            dynamic_size=dynamic_size,
            runtime=runtime,
            plan=plan,
            storage=storage,
            quantize=quantize,
            calibration=batches,
            opset=opset,
            progress=bar,
        )
    if written.acceleration is not None:
        print(fit_lines(str(written.acceleration)))
    print(f"wrote {written}")
    print(_weigh(found.model))
    if format == "onnx":
        print(_time(out, found.model, inputs))
    return 0


def _time(file: Path, model: nn.Module, inputs: tuple[Tensor, ...]) -> str:
    """Return a sentence about the time of a call, in onnxruntime and in torch, by turns."""
    import torch

    from phnn.runtimes import find_runtime
    from phnn.runtimes.graph_runtime import GraphRuntime
    from phnn.runtimes.timing import interleave

    runtime = find_runtime("onnxruntime")
    assert isinstance(runtime, GraphRuntime)
    program, arrays = runtime.load(file), [x.detach().numpy() for x in inputs]
    with torch.inference_mode():
        calls = {"file": lambda: program(arrays), "torch": lambda: model(*inputs)}
        times = interleave(calls, ROUNDS, seconds=SECONDS)
    sizes = " and ".join(",".join(map(str, x.shape)) for x in inputs)
    return (
        f"a call with {sizes} takes {1e3 * times['file']:.2f} ms in {runtime.name} "
        f"{runtime.version}, and {1e3 * times['torch']:.2f} ms in torch"
    )


def _split(arrays: tuple[Tensor, ...], size: int) -> list[tuple[Tensor, ...]]:
    """Return batches of arrays whose first axis counts the samples."""
    count = min(map(len, arrays))
    return [tuple(x[i : i + size] for x in arrays) for i in range(0, count - size + 1, size)]


def _weigh(model: nn.Module) -> str:
    """Return a sentence about the size with and without folding."""
    from phnn.conversion import to_dense

    folded, unfolded = (
        sum(tensor.nbytes for tensor in (*weights.parameters(), *weights.buffers()))
        for weights in (to_dense(model), model)
    )
    return f"its tensors take {unfolded:,} bytes, or {folded:,} bytes with --fold"
