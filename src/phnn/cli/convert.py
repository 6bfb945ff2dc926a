"""The command that makes a model smaller."""

from __future__ import annotations

from argparse import ArgumentTypeError
from pathlib import Path

from phnn._names import parse_dimension
from phnn.cli.example_input import read_arrays
from phnn.cli.model_argument import find_model
from phnn.cli.parser import Parser, UsageError, parse_count, speaking_of

NAMES = ("n", "budget", "compute", "terms", "algebra", "learn_algebra", "indivisible", "start")
OPTIONS = {name: f"--{name.replace('_', '-')}" for name in NAMES}


def add_arguments(parser: Parser) -> None:
    """Add the arguments of the command."""
    parser.add_model()
    parser.add_out("the file (.safetensors) or folder to write", required=True)
    parser.add_argument(
        "--n", type=parse_n, help="dimension of the algebras, or a pair such as 16x4 (out x in)"
    )
    parser.add_argument(
        "--budget",
        type=float,
        help="instead of --n: the share of its parameters that the model may keep, such as 0.3",
    )
    parser.add_argument(
        "--compute",
        type=float,
        help="the share of its multiplications that the model may keep; needs --calibration",
    )
    parser.add_argument(
        "--calibration",
        type=Path,
        help="inputs of the model to fit the layers to, without labels: a .npy array whose first "
        "axis counts the samples, or a .npz file with one array for each argument",
    )
    parser.add_argument(
        "--cache", type=Path, help="a folder that keeps what was measured, to go on from"
    )
    parser.add_argument("--terms", type=parse_count, help="number of Kronecker terms, n by default")
    parser.add_argument("--algebra", help="instead of --n: a known algebra, such as quaternion")
    parser.add_flag("learn-algebra", "let training change the known algebra", default=False)
    parser.add_flag("share-algebra", "one algebra for all layers of a size", default=False)
    parser.add_argument(
        "--include",
        type=split_patterns,
        help="patterns of the names to convert, with commas between them; all by default",
    )
    parser.add_argument(
        "--exclude", type=split_patterns, help="patterns of the names to leave alone"
    )
    parser.add_argument(
        "--indivisible",
        choices=["skip", "raise", "shrink"],
        default="skip",
        help="what to do with a layer that n does not divide; skip it by default",
    )
    parser.add_argument(
        "--start",
        choices=["nearest", "random"],
        default="nearest",
        help="begin nearest to the weights of the model (default), or at random",
    )


def parse_n(text: str) -> int | tuple[int, int]:
    """Return the dimension in a text such as 4 or 16x4."""
    try:
        return parse_dimension(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None


def split_patterns(text: str) -> list[str]:
    """Return the patterns in a text such as layer1.*,fc."""
    return [pattern.strip() for pattern in text.split(",")]


def run(
    model: str,
    out: Path,
    n: int | tuple[int, int] | None,
    budget: float | None,
    compute: float | None,
    calibration: Path | None,
    cache: Path | None,
    terms: int | None,
    algebra: str | None,
    learn_algebra: bool,
    share_algebra: bool,
    include: list[str] | None,
    exclude: list[str] | None,
    indivisible: str,
    start: str,
) -> int:
    """Make a model smaller: its layers become the nearest PH layers.

    Fine-tuning is part of the job. For a network of phnn:
      phnn convert runs/digits-real-seed0 --n 4 --out small.safetensors
      phnn train digits --start small.safetensors
    """
    import phnn
    from phnn.io.saving import check_target

    if all(choice is None for choice in (budget, compute, n, algebra)):
        raise UsageError("give --n, --algebra, --budget or --compute")
    if (budget, compute) != (None, None) and (n, terms, algebra) != (None, None, None):
        option = "--budget" if budget is not None else "--compute"
        raise UsageError(f"{option} chooses n and terms; leave --n, --terms and --algebra out")
    if compute is not None and calibration is None:
        raise UsageError("--compute counts multiplications for real inputs; give --calibration")
    with speaking_of(path="--out"):
        check_target(out)
    known = None if algebra is None else phnn.algebra.get(algebra)
    data = None if calibration is None else tuple(read_arrays(calibration))
    found = find_model(model)
    with speaking_of(**OPTIONS):
        converted = phnn.convert(
            found.model,
            n,
            terms=terms,
            algebra=known,
            learn_algebra=learn_algebra or None,
            budget=budget,
            compute=compute,
            calibration=data,
            cache=cache,
            include=include,
            exclude=exclude,
            indivisible=indivisible,
            start=start,
            share_algebra=share_algebra,
        )
    file = phnn.save(converted, out, metadata=found.metadata)
    print(converted.phnn_report)
    print(f"wrote {file}, {file.stat().st_size:,} bytes")
    return 0
