"""The command that makes a model smaller."""

from __future__ import annotations

from argparse import ArgumentTypeError
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from phnn._names import parse_dimension
from phnn._screen import ProgressBar
from phnn._tables import fit_lines
from phnn.cli import curves
from phnn.cli.calibration import SAMPLES, Score, find_score, read_calibration
from phnn.cli.model_argument import add_build_option, find_model
from phnn.cli.parser import Parser, UsageError, parse_count, speaking_of

if TYPE_CHECKING:
    from torch import nn

NAMES = (
    "n",
    "budget",
    "compute",
    "calibration",
    "evaluate",
    "tolerance",
    "relative",
    "lower_is_better",
    "kinds",
    "refine",
    "cache",
    "terms",
    "algebra",
    "learn_algebra",
    "include",
    "exclude",
    "indivisible",
    "start",
    "share_algebra",
)
INDEX = "model.safetensors.index.json"  # of a sharded checkpoint
OPTIONS = {name: f"--{name.replace('_', '-')}" for name in NAMES}


def add_arguments(parser: Parser) -> None:
    """Add the arguments of the command."""
    parser.add_model()
    add_build_option(parser)
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
        help="inputs to fit the layers to, without labels: arrays (.npy, or .npz with one for each "
        "argument) whose first axis counts the samples; for a run or a file of phnn also images or "
        "recordings, or training for its own training data; or package.module:function",
    )
    parser.add_argument(
        "--samples",
        type=parse_count,
        default=SAMPLES,
        help=f"most samples of the calibration data that are used; {SAMPLES:,} by default",
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="seed for sampling the calibration data"
    )
    parser.add_argument(
        "--evaluate",
        help="find the smallest model by a score: package.module:function, which takes a "
        "model and returns its score; or validation, the score of a run on its validation split, "
        "which is the default with --tolerance",
    )
    parser.add_argument("--tolerance", type=float, help="by how much the score may fall")
    parser.add_flag("relative", "take the tolerance as a share of the score", default=False)
    parser.add_argument(
        "--lower-is-better",
        action="store_true",
        default=None,
        help="a lower score is better, for example a loss",
    )
    parser.add_argument(
        "--kinds",
        type=split_patterns,
        help="structures that a budget may choose, with commas between them: square, rectangular, "
        "low rank; all by default",
    )
    parser.add_argument(
        "--refine",
        type=int,
        help="passes over the calibration data in which all layers learn together; 4 by default",
    )
    parser.add_argument(
        "--cache", type=Path, help="a folder that keeps what was measured, to go on from"
    )
    parser.add_argument(
        "--curve",
        type=Path,
        help="a file (.csv, .png or .svg) for the curve of score, or of the distance of the "
        "outputs, against size and multiplications; with --budget other budgets are fitted for it",
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
        "--embeddings",
        type=split_patterns,
        help="for a sharded checkpoint: patterns of the names of lookup tables to convert as well",
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
    build: str | None,
    out: Path,
    n: int | tuple[int, int] | None,
    budget: float | None,
    compute: float | None,
    calibration: str | None,
    samples: int,
    seed: int,
    evaluate: str | None,
    tolerance: float | None,
    relative: bool,
    lower_is_better: bool | None,
    kinds: list[str] | None,
    refine: int | None,
    cache: Path | None,
    curve: Path | None,
    terms: int | None,
    algebra: str | None,
    learn_algebra: bool,
    share_algebra: bool,
    include: list[str] | None,
    exclude: list[str] | None,
    embeddings: list[str] | None,
    indivisible: str,
    start: str,
) -> int:
    """Make a model smaller: its layers become PH layers, fitted to data where there are any.

    A folder with model.safetensors.index.json, as large models have it on the Hugging Face hub, is
    converted tensor by tensor, with the memory of a few tensors: --n, --terms, --include, --exclude
    and --embeddings apply. The same command continues a conversion that was stopped.

    Example, and the fine-tuning that follows:
      phnn convert runs/digits-real-seed0 --budget 0.3 --calibration training -o small.safetensors
      phnn train digits --start small.safetensors --distill runs/digits-real-seed0
    """
    import torch

    import phnn
    from phnn.io.saving import check_target

    others = {
        "budget": budget, "compute": compute, "calibration": calibration, "evaluate": evaluate,
        "tolerance": tolerance, "algebra": algebra, "curve": curve, "cache": cache,
        "kinds": kinds, "refine": refine,
    }  # fmt: skip
    if (Path(model) / INDEX).is_file():
        refused = [f"--{name}" for name, value in others.items() if value is not None]
        refused += ["--start random"] * (start == "random") + ["--share-algebra"] * share_algebra
        refused += [f"--indivisible {indivisible}"] * (indivisible != "skip")
        return _convert_shards(Path(model), out, n, terms, include, exclude, embeddings, refused)
    if embeddings is not None:
        raise UsageError(
            "--embeddings is for a sharded checkpoint, whose files do not tell lookup tables from "
            "linear layers; leave it out"
        )
    by_score = evaluate is not None or tolerance is not None
    given = {"n": n, "terms": terms, "algebra": algebra, "budget": budget, "compute": compute}
    _check(given, calibration, tolerance, by_score=by_score, curve=curve)
    with speaking_of(path="--out"):
        check_target(out)
    if curve is not None:
        curves.check_target(curve)
    known = None if algebra is None else phnn.algebra.get(algebra)
    found = find_model(model, build=build)
    torch.manual_seed(seed)
    options: dict[str, Any] = {"include": include, "exclude": exclude, "cache": cache, "seed": seed}
    options |= {
        name: value for name, value in (("kinds", kinds), ("refine", refine)) if value is not None
    }
    with speaking_of(**OPTIONS), ProgressBar() as bar, ExitStack() as stack:
        if curve is not None and cache is None:  # the layers are measured once for all budgets
            options["cache"] = stack.enter_context(TemporaryDirectory())
        score = find_score(evaluate, model) if by_score else None
        if calibration is not None:
            options["calibration"] = read_calibration(
                calibration, model, found.model, samples, seed
            )
        converted = phnn.convert(
            found.model,
            n,
            terms=terms,
            algebra=known,
            learn_algebra=learn_algebra or None,
            budget=budget,
            compute=compute,
            **_search(score, tolerance, relative, lower_is_better),
            **options,
            indivisible=indivisible,
            start=start,
            share_algebra=share_algebra,
            progress=bar,
        )
        file = phnn.save(converted, out, metadata=found.metadata)
        if curve is not None:
            _write_curve(curve, found.model, converted, score, budget, {**options, "progress": bar})
    print(fit_lines(str(converted.phnn_report)))
    print(f"wrote {file}, {file.stat().st_size:,} bytes")
    if curve is not None:
        print(f"wrote {curve}")
    return 0


def _convert_shards(
    source: Path,
    out: Path,
    n: int | tuple[int, int] | None,
    terms: int | None,
    include: list[str] | None,
    exclude: list[str] | None,
    embeddings: list[str] | None,
    refused: list[str],
) -> int:
    """Convert a sharded checkpoint."""
    from phnn.io.checkpoints import Plan, convert_checkpoint

    if refused:
        raise UsageError(
            f"a sharded checkpoint is converted by its weights alone, tensor by tensor; leave "
            f"{', '.join(refused)} out"
        )
    if n is None:
        raise UsageError("a sharded checkpoint needs --n")
    options = {**OPTIONS, "embeddings": "--embeddings", "out": "--out"}
    with speaking_of(**options), ProgressBar() as bar:
        plan = Plan(n, terms, include, exclude, embeddings)
        converted = convert_checkpoint(source, out, plan, progress=bar)
    print(converted)
    print(f"wrote {out}; load it with phnn.load({str(out)!r}, model=CONSTRUCTOR)")
    return 0


def _check(
    given: dict[str, Any],
    calibration: str | None,
    tolerance: float | None,
    *,
    by_score: bool,
    curve: Path | None,
) -> None:
    """Raise an error for options that do not belong together, before anything is read."""
    if not by_score and all(value is None for value in given.values()):
        raise UsageError("give --n, --algebra, --budget, --compute or --tolerance")
    structure = (given["n"], given["terms"], given["algebra"])
    for option in ("budget", "compute"):
        if given[option] is not None and structure != (None, None, None):
            raise UsageError(
                f"--{option} chooses n and terms; leave --n, --terms and --algebra out"
            )
    if given["compute"] is not None and calibration is None:
        raise UsageError("--compute counts multiplications for real inputs; give --calibration")
    if by_score:
        sizes = [f"--{name}" for name, value in given.items() if value is not None]
        if sizes:
            raise UsageError(f"a search by score finds the size; leave {' and '.join(sizes)} out")
        if tolerance is None:
            raise UsageError("--evaluate searches for the smallest model; give --tolerance as well")
        if calibration is None:
            raise UsageError("--tolerance searches among fitted models; give --calibration as well")
    elif curve is not None and (given["budget"] is None or calibration is None):
        raise UsageError(
            "--curve needs sizes to compare; give --calibration, and --budget or --tolerance"
        )


def _search(
    score: Score | None, tolerance: float | None, relative: bool, lower_is_better: bool | None
) -> dict[str, Any]:
    """Return the arguments of a search by score."""
    if score is None:
        return {}
    if score.lower_is_better is not None and lower_is_better is not None:
        direction = "lower" if score.lower_is_better else "higher"
        raise UsageError(f"a {direction} {score.name} is better; leave --lower-is-better out")
    return {
        "evaluate": score.evaluate,
        "tolerance": tolerance,
        "relative": relative,
        "lower_is_better": bool(lower_is_better or score.lower_is_better),
    }


def _write_curve(
    path: Path,
    model: nn.Module,
    converted: nn.Module,
    score: Score | None,
    budget: float | None,
    options: dict[str, Any],
) -> None:
    """Write the points that a search tried, or fit other budgets."""
    from phnn.conversion import Report, tradeoff
    from phnn.conversion.tradeoffs import BUDGETS

    report = converted.phnn_report
    assert isinstance(report, Report)
    points = report.curve
    if score is None:
        assert budget is not None
        points = list(tradeoff(model, [*{*BUDGETS, budget}], **options))
        points = [curves.choose(point, budget) for point in points]
    curves.write(path, points, "score" if score is None else score.name)
