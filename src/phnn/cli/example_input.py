"""The options --shape and --input: the input that a model is run on."""

from __future__ import annotations

from argparse import ArgumentTypeError
from pathlib import Path
from typing import TYPE_CHECKING

from phnn.cli.model_argument import FoundModel
from phnn.cli.parser import Parser

if TYPE_CHECKING:
    from torch import Tensor


def add_example(parser: Parser, default: str) -> None:
    """Add --shape and --input.

    Args:
        parser: The parser of the command.
        default: The shape without them, in words.
    """
    parser.add_argument(
        "--shape",
        type=parse_shape,
        help=f"shape of a random input, such as 1,3,32,32; by default {default}",
    )
    parser.add_argument(
        "--input",
        type=Path,
        help="instead of --shape: an array (.npy), or one for each input of the model (.npz)",
    )


def parse_shape(text: str) -> tuple[int, ...]:
    """Return the sizes in a text such as 1,3,32,32."""
    sizes = [size.strip() for size in text.split(",")]
    if not all(size.isdecimal() and int(size) > 0 for size in sizes):
        raise ArgumentTypeError(f"{text!r} is not a list of sizes such as 1,3,32,32")
    return tuple(map(int, sizes))


def make_example(
    found: FoundModel, shape: tuple[int, ...] | None, input: Path | None, batch: int
) -> tuple[Tensor, ...]:
    """Return inputs, after a test that the model takes them.

    Args:
        found: The model.
        shape: What the user gave by --shape.
        input: What the user gave by --input.
        batch: Number of samples, where only the shape of one is known.
    """
    import torch

    if shape is not None and input is not None:
        raise ValueError("give --shape or --input, not both")
    if shape is None:
        if found.shape is None and input is None:
            raise ValueError(
                "the input shape of this model is unknown; give --shape, such as "
                "--shape 1,3,32,32, or --input FILE.npy"
            )
        shape = (batch, *(found.shape or ()))
    try:
        inputs = (torch.randn(shape),) if input is None else read_arrays(input)
    except (RuntimeError, MemoryError) as error:
        raise ValueError(f"an input of shape {shape} does not fit in memory") from error
    first = next(found.model.parameters(), None)
    if first is not None and first.is_floating_point():
        inputs = tuple(x.to(first.dtype) if x.is_floating_point() else x for x in inputs)
    try:
        with torch.no_grad():
            found.model(*inputs)
    except Exception as error:  # torch raises its own, of many types
        shapes = " and ".join(",".join(map(str, tensor.shape)) for tensor in inputs)
        raise ValueError(
            f"the model does not take an input of shape {shapes}: {error}; give another --shape "
            "or --input"
        ) from error
    return inputs


def read_arrays(path: Path) -> tuple[Tensor, ...]:
    """Return the arrays in a file of NumPy, in their order."""
    import numpy as np
    import torch

    from phnn.io.arrays import read_arrays as read

    found = read(path)
    try:
        return tuple(torch.from_numpy(np.ascontiguousarray(array)) for array in found.values())
    except TypeError as error:  # such as texts
        raise ValueError(
            f"{path} does not hold arrays of numbers (.npy or .npz): {error}"
        ) from error
