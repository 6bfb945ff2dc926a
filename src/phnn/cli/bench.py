"""The command that times a model."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from phnn._tables import align
from phnn.cli.example_input import add_example, make_example
from phnn.cli.model_argument import find_model
from phnn.cli.parser import Parser, parse_count, speaking_of

if TYPE_CHECKING:
    from phnn.acceleration.contest import Result

BATCH = 16
IMAGE = (3, 32, 32)  # an input of a model that does not say its own
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


def add_arguments(parser: Parser) -> None:
    """Add the arguments of the command."""
    parser.add_model()
    parser.add_out("a CSV file for the table", required=False)
    add_example(parser, "16 images it was trained for, or 16,3,32,32")
    parser.add_argument(
        "--n",
        type=parse_count,
        default=4,
        help="dimension of the algebras, 4 by default; a model that has PH layers keeps its own",
    )
    parser.add_flag("training", "also time forward and backward in training mode", default=True)
    parser.add_flag("compile", "compile every form by torch.compile first", default=False)
    parser.add_argument(
        "--rounds",
        type=parse_count,
        default=7,
        help="how often each form runs, 7 by default; they take turns, and the least time counts",
    )
    parser.add_argument(
        "--threads", type=parse_count, help="threads of the processor; torch's choice by default"
    )


def run(
    model: str,
    out: Path | None,
    shape: tuple[int, ...] | None,
    input: Path | None,
    n: int,
    training: bool,
    compile: bool,
    rounds: int,
    threads: int | None,
) -> int:
    """Time a model as it is, with PH layers, folded and accelerated, side by side.

    Examples:
      phnn bench vgg16 --n 4
      phnn bench package.module:make_network --shape 8,3,224,224
    """
    import torch

    from phnn.acceleration.contest import compete, make_contestants
    from phnn.io import check_output

    if out is not None:
        check_output(out)
    if threads is not None:
        torch.set_num_threads(threads)
    runtime = "compile" if compile else "torch"
    found = find_model(model)
    example, *others = make_example(
        replace(found, shape=found.shape or IMAGE), shape, input, batch=BATCH
    )
    if others:
        raise ValueError(f"phnn bench times models of one input, {input} holds {1 + len(others)}")
    with speaking_of(n="--n", rounds="--rounds"):
        models = make_contestants(found.model, example, n, rounds, runtime)
    trained = ("real", "assembled") if training else ()
    results = compete(models, example, trained, rounds, runtime)
    print(_render(results))
    mode = f"{'compiled' if compile else 'eager'}, {torch.get_num_threads()} threads"
    sizes = ",".join(map(str, example.shape))
    print(f"{model}, input {sizes}, {mode}, torch {torch.__version__}")
    if out is not None:
        _write(results, out)
        print(f"wrote {out}")
    return 0


def _rows(results: list[Result]) -> list[tuple[str | float | None, ...]]:
    """Return the fields of each form."""
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
    return "\n".join(align(cells, right=range(1, len(HEAD))))


def _write(results: list[Result], out: Path) -> None:
    from phnn.io.atomic import write_text

    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([FIELDS, *_rows(results)])
    out.parent.mkdir(parents=True, exist_ok=True)
    write_text(out, text.getvalue())
