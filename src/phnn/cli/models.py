"""The commands that take a saved model and make something else of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import nn

    from phnn.lab.trained import Trained


def convert(
    checkpoint: Path,
    out: Path,
    n: int | None = None,
    budget: float | None = None,
    terms: int | None = None,
    algebra: str | None = None,
    learn_algebra: bool = False,
    share_algebra: bool = False,
    include: str | None = None,
    exclude: str | None = None,
    indivisible: Literal["skip", "raise", "shrink"] = "skip",
    start: Literal["nearest", "random"] = "nearest",
) -> int:
    """Make a trained network smaller: its layers become the nearest PH layers.

    Example: phnn convert runs/digits-real-seed0 --n 4 --out small.safetensors, and then phnn train
    digits --start small.safetensors

    Args:
        checkpoint: Folder of a run, checkpoint (.ckpt) or saved model (.safetensors).
        out: The file (.safetensors) or folder to write.
        n: Dimension of the algebras.
        budget: Instead of n: the share of its parameters that the network may keep, such as 0.3.
        terms: Number of Kronecker terms, n by default.
        algebra: Name of a known algebra, such as quaternion, instead of n.
        learn_algebra: Whether a known algebra is only where learning starts.
        share_algebra: Whether all layers of a size have one algebra together.
        include: Patterns of the names to convert, with commas between them; all by default.
        exclude: Patterns of the names to leave alone.
        indivisible: What to do with a layer that n does not divide.
        start: Begin nearest to the trained weights, or at random.
    """
    from phnn import algebra as algebras
    from phnn.conversion import convert as run
    from phnn.io import save
    from phnn.lab.trained import load_trained

    trained = load_trained(checkpoint)
    model = run(
        trained.model,
        n,
        terms=terms,
        algebra=None if algebra is None else algebras.get(algebra),
        learn_algebra=learn_algebra or None,
        budget=budget,
        include=_split(include),
        exclude=_split(exclude),
        indivisible=indivisible,
        start=start,
        share_algebra=share_algebra,
    )
    file = save(model, out, metadata=trained.metadata)
    print(model.phnn_report)
    print(f"wrote {file}, {file.stat().st_size:,} bytes")
    return 0


def inspect(checkpoint: Path) -> int:
    """Print the layers of a saved model, their parameters and their sizes.

    Example: phnn inspect small.safetensors

    Args:
        checkpoint: Folder of a run, or saved model (.safetensors).
    """
    from phnn.io import inspect as run

    print(run(checkpoint))
    return 0


def export(
    checkpoint: Path,
    out: Path,
    format: Literal["onnx", "torch"] = "onnx",
    shape: str | None = None,
    fold: bool = True,
    dynamic_batch: bool = True,
) -> int:
    """Write a network as a program that runs without this library.

    Example: phnn export small.safetensors --out small.onnx

    Args:
        checkpoint: Folder of a run, checkpoint (.ckpt) or saved model (.safetensors).
        out: The file to write, .onnx or .pt2.
        format: ONNX, or a program of torch.export.
        shape: Of an input, such as 1,3,32,32; by default that of an image it was trained for.
        fold: Hold plain weights; otherwise the algebras and filters, which are n times smaller.
        dynamic_batch: Leave the size of the first axis open.
    """
    import torch

    from phnn.io import export as run
    from phnn.lab.trained import load_trained

    trained = load_trained(checkpoint)
    example = torch.randn(_image_shape(trained) if shape is None else parse_shape(shape))
    exported = run(
        trained.model, out, example, format=format, fold=fold, dynamic_batch=dynamic_batch
    )
    print(f"wrote {exported}")
    print(_weigh(trained.model))
    return 0


def _split(patterns: str | None) -> list[str] | None:
    return None if patterns is None else [pattern.strip() for pattern in patterns.split(",")]


def parse_shape(text: str) -> tuple[int, ...]:
    """Returns the sizes in a text such as 1,3,32,32."""
    try:
        shape = tuple(int(size) for size in text.split(","))
    except ValueError:
        shape = ()
    if not shape or min(shape) < 1:
        raise ValueError(f"shape={text!r} must be sizes with commas between them: 1,3,32,32")
    return shape


def _image_shape(trained: Trained) -> tuple[int, ...]:
    if "image_size" not in trained.metadata:
        raise ValueError("the file does not say the size of an input; give --shape, as 1,3,32,32")
    return (1, trained.model.config["in_channels"], *trained.metadata["image_size"])


def _weigh(model: nn.Module) -> str:
    """Tells what folding costs."""
    from phnn.conversion import to_dense

    sizes = [
        sum(tensor.nbytes for tensor in (*weights.parameters(), *weights.buffers()))
        for weights in (to_dense(model), model)
    ]
    return f"its tensors take {sizes[0]:,} bytes folded, {sizes[1]:,} bytes with --no-fold"
