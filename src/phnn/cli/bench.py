"""The command that times a network."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

    from phnn.acceleration.contest import Result

HEAD = ("form", "parameters", "multiplications", "inference ms", "/ real", "training ms", "/ real")
FIELDS = (
    "form",
    "parameters",
    "multiplications",
    "inference_seconds",
    "inference_ratio",
    "training_seconds",
    "training_ratio",
)


def bench(
    network: str,
    shape: str = "16,3,32,32",
    n: int = 4,
    training: bool = True,
    compile: bool = False,
    rounds: int = 7,
    threads: int | None = None,
    out: Path | None = None,
) -> int:
    """Time a network as it is, with PH layers, folded and accelerated, side by side.

    Example: phnn bench vgg16 --n 4, or phnn bench package.module:make_network --shape 8,3,224,224

    Args:
        network: Name of a network, such as vgg16, or module:function of one that makes yours.
        shape: Of an input, with commas between the sizes.
        n: Dimension of the algebras; of no use to a network that has PH layers already.
        training: Whether forward and backward in training mode are timed, too.
        compile: Whether every form is compiled by torch.compile before.
        rounds: How often each form runs; they take turns, and the least time of each counts.
        threads: Of the processor; torch's own choice by default.
        out: A CSV file for the table.
    """
    import torch

    from phnn.acceleration.contest import compete, make_contestants
    from phnn.cli.models import parse_shape

    if threads is not None:
        torch.set_num_threads(threads)
    example = torch.randn(parse_shape(shape))
    if out is not None:  # an error here costs nothing yet
        if out.is_dir():
            raise IsADirectoryError(f"{out} is a folder; name a file for the table")
        out.parent.mkdir(parents=True, exist_ok=True)
    runtime = "compile" if compile else "torch"
    models = make_contestants(_make_network(network), example, n, rounds, runtime)
    trained = ("real", "assembled") if training else ()
    results = compete(models, example, trained, rounds, runtime)
    print(_render(results))
    mode = f"{'compiled' if compile else 'eager'}, {torch.get_num_threads()} threads"
    print(f"{network}, input {shape}, {mode}, torch {torch.__version__}")
    if out is not None:
        _write(results, out)
        print(f"wrote {out}")
    return 0


def _make_network(name: str) -> nn.Module:
    """The network by its name, or what a function of the user's returns."""
    import importlib
    import sys

    from torch import nn

    from phnn.models import create_model

    if ":" not in name:
        return create_model(name)
    module, _, function = name.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    try:
        make = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{name} does not name a function: {error}") from error
    finally:
        sys.path.pop(0)
    made = make if isinstance(make, nn.Module) else make()
    if not isinstance(made, nn.Module):
        raise TypeError(f"{name} returns {type(made).__name__}, not a torch.nn.Module")
    return made


def _rows(results: list[Result]) -> list[tuple[str | float | None, ...]]:
    """The fields of each form."""
    real = results[0]
    return [
        (
            result.name,
            result.parameters,
            result.multiplications,
            result.inference,
            result.inference / real.inference,
            result.training,
            None if not (result.training and real.training) else result.training / real.training,
        )
        for result in results
    ]


def _render(results: list[Result]) -> str:
    cells = [HEAD]
    for name, parameters, multiplications, *times in _rows(results):
        texts = [
            "" if value is None else f"{value:.2f}" if i % 2 else f"{1e3 * float(value):.2f}"
            for i, value in enumerate(times)
        ]
        cells.append((str(name), f"{parameters:,}", f"{multiplications:,}", *texts))  # type: ignore[arg-type]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join(
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in cells
    )


def _write(results: list[Result], out: Path) -> None:
    import csv

    with out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(FIELDS)
        writer.writerows(_rows(results))
