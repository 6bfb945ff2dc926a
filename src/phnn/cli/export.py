"""The command that writes a model as a program."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from phnn.cli.example_input import add_example, make_example
from phnn.cli.model_argument import add_network_options, find_model
from phnn.cli.parser import Parser, speaking_of

if TYPE_CHECKING:
    from torch import nn

OPTIONS = {
    "format": "--format",
    "fold": "--fold",
    "dynamic_batch": "--dynamic-batch",
    "path": "--out",
}


def add_arguments(parser: Parser) -> None:
    """Add the arguments of the command."""
    parser.add_model()
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
        "hold plain weights; --no-fold holds algebras and filters, which are n times smaller",
        default=True,
    )
    parser.add_flag("dynamic-batch", "leave the size of the first axis open", default=True)


def run(
    model: str,
    out: Path,
    format: str,
    shape: tuple[int, ...] | None,
    input: Path | None,
    n: int | None,
    algebra: str | None,
    fold: bool,
    dynamic_batch: bool,
) -> int:
    """Write a model as a program that runs without this library.

    Example:
      phnn export small.safetensors --out small.onnx
    """
    from phnn.io import export
    from phnn.io.exporting import check_target

    with speaking_of(**OPTIONS):
        check_target(out, format)
    found = find_model(model, n=n, algebra=algebra)
    inputs = make_example(found, shape, input, batch=1)
    with speaking_of(**OPTIONS):
        written = export(
            found.model, out, inputs, format=format, fold=fold, dynamic_batch=dynamic_batch
        )
    print(f"wrote {written}")
    print(_weigh(found.model))
    return 0


def _weigh(model: nn.Module) -> str:
    """Say what folding costs."""
    from phnn.conversion import to_dense

    folded, unfolded = (
        sum(tensor.nbytes for tensor in (*weights.parameters(), *weights.buffers()))
        for weights in (to_dense(model), model)
    )
    return f"its tensors take {folded:,} bytes folded, {unfolded:,} bytes with --no-fold"
