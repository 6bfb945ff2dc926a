"""The command `phnn`: argv in, the functions of the library called."""

from __future__ import annotations

import csv
import difflib
import logging
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from inspect import getdoc, signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import phnn

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser

    from phnn.tasks.compare import Comparison, Outcome

Overrides = dict[str, Any]
USER_ERROR = 2
FAILED_RUNS = 1
# which extra brings a package that a command cannot do without
EXTRAS = dict.fromkeys(
    [
        "PIL",
        "datasets",
        "jsonargparse",
        "lightning",
        "matplotlib",
        "scipy",
        "sklearn",
        "tensorboard",
        "torchmetrics",
        "yaml",
    ],
    "train",
)


def train(recipe: str, overrides: Overrides, out: Path | None = None) -> int:
    """Train and test a network, or go on with a run that was stopped.

    Every part of the recipe can be replaced: phnn train digits --model.n 4 --seed 1

    Args:
        recipe: Name of a packaged recipe, or a YAML file.
        overrides: Parts of the recipe to replace.
        out: Folder of the run; runs/RECIPE-VARIANT-seedN by default. The same command again goes on
            from the last checkpoint there.
    """
    from phnn.tasks.recipe import build_recipe, merge, read_recipe
    from phnn.tasks.training import train as run

    built = build_recipe(merge(read_recipe(recipe), overrides))
    folder = out or Path("runs") / f"{Path(recipe).stem}-{_variant(built.model)}-seed{built.seed}"
    result = run(built, folder, command=shlex.join(["phnn", *sys.argv[1:]]))
    if result:  # of several processes, the first one speaks
        print(f"{_show_scores(result)}, {result['parameters']:,} parameters; see {folder}")
    return 0


def test(checkpoint: Path, overrides: Overrides) -> int:
    """Test a trained network on the test part of its data.

    Example: phnn test runs/digits-n=4-seed0

    Args:
        checkpoint: Folder of a run, checkpoint (.ckpt) or saved model (.safetensors).
        overrides: Parts of its recipe to replace, such as --data.root FOLDER.
    """
    from phnn.tasks.trained import evaluate

    print(_show_scores(evaluate(checkpoint, overrides)))
    return 0


def predict(
    checkpoint: Path,
    images: list[Path],
    out: Path | None = None,
    corrupt: Literal["raise", "skip"] = "raise",
) -> int:
    """Print the class of each image, and how likely it is.

    Example: phnn predict runs/digits-n=4-seed0 photo.png more/ --out classes.csv

    Args:
        checkpoint: Folder of a run, checkpoint (.ckpt) or saved model (.safetensors).
        images: Image files, or folders of them.
        out: A CSV file to write as well.
        corrupt: Whether an image that cannot be read is an error, or left out.
    """
    from phnn.tasks.trained import Prediction
    from phnn.tasks.trained import predict as run

    predictions = []
    for prediction in run(checkpoint, images, corrupt=corrupt):
        print(f"{prediction.image}: {prediction.label} ({100 * prediction.probability:.1f} %)")
        predictions.append(prediction)
    if out is not None:
        with out.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([Prediction._fields, *predictions])
        print(f"wrote {out}")
    return 0


def compare(
    overrides: Overrides,
    comparison: str = "digits",
    out: Path | None = None,
    jobs: int | None = None,
    power: float = 300.0,
) -> int:
    """Train real, quaternion and PH networks, and print how they compare.

    Example: phnn compare cifar10-short --data.root FOLDER

    Args:
        overrides: Parts of every recipe to replace.
        comparison: Name of a packaged comparison, or a YAML file.
        out: Folder of the results; results/COMPARISON by default. The same command again goes on
            where it stopped.
        jobs: Runs at once; by default two on the CPU, which they share, and one on anything else.
        power: Of the hardware in watts, for the paper's estimate of CO2, hours × power × 0.445
            kg/kWh.
    """
    from phnn import reports
    from phnn.tasks.compare import load_comparison, plan, run_all
    from phnn.tasks.recipe import build_recipe, merge
    from phnn.tasks.training import check_recipe

    loaded = load_comparison(comparison)
    folder = out or Path("results") / loaded.name
    jobs = _count_jobs() if jobs is None else jobs
    if jobs < 1:
        raise ValueError(f"jobs={jobs} must be at least 1")
    shared = {"trainer": {"threads": max(1, (os.cpu_count() or 1) // jobs)}} if jobs > 1 else {}
    runs = plan(loaded, folder, merge(shared, overrides))
    for run in runs:
        check_recipe(build_recipe(run.recipe))  # a mistake shows now, not after hours

    def report(outcomes: Sequence[Outcome]) -> None:
        reports.write_tables(loaded, outcomes, folder, power)
        ended = sum(outcome.result is not None for outcome in outcomes)
        print(f"{ended} of {len(outcomes)} runs have ended; {jobs} at once, in {folder / 'runs'}")

    outcomes = run_all(runs, jobs, report)
    return _conclude(loaded, outcomes, folder, power)


def _conclude(
    comparison: Comparison, outcomes: Sequence[Outcome], folder: Path, power: float
) -> int:
    from phnn import reports

    lines = reports.summarize(comparison, outcomes, power)
    print(f"\n{comparison.title}\n\n{reports.render_text(lines)}")
    failed = [outcome for outcome in outcomes if outcome.error is not None]
    for outcome in failed:
        print(f"failed: {outcome.run.folder}: {outcome.error}")
    tables = reports.write_tables(comparison, outcomes, folder, power)
    pictures = reports.draw_bubbles(comparison, lines, folder)
    print("\nwrote", *tables, *pictures, sep="\n  ")
    return FAILED_RUNS if failed else 0


def _count_jobs() -> int:
    """Two on a CPU of two cores or more: one network of this size leaves half of it idle."""
    import torch

    on_cpu = torch.accelerator.current_accelerator() is None
    return 2 if on_cpu and (os.cpu_count() or 1) > 1 else 1


def tables(format: Literal["text", "markdown", "csv"] = "text", only: str = "*") -> int:
    """Print the sizes of the paper's networks beside those that the paper prints.

    Args:
        format: Of the table.
        only: Pattern of the labels wanted, such as tab:sed_*.
    """
    from phnn.models import paper

    print(paper.render(paper.rows(only), format), end="")
    return 0


def _variant(model: dict[str, Any]) -> str:
    if model.get("algebra") is not None:
        return str(model["algebra"])
    return "real" if model.get("n") is None else f"n={model['n']}"


def _show_scores(scores: dict[str, Any]) -> str:
    accuracy, seconds = scores["test_accuracy"], scores["test_seconds"]
    return f"test accuracy {100 * accuracy:.2f} % in {seconds:.1f} s"


COMMANDS: dict[str, Callable[..., int]] = {
    function.__name__: function for function in (train, test, predict, compare, tables)
}


def _make_parser() -> ArgumentParser:
    from jsonargparse import ArgumentParser

    parser = ArgumentParser(
        prog="phnn",
        description="Parameterized hypercomplex networks: train, compare and use them.",
        version=f"phnn {phnn.__version__}",
        exit_on_error=False,
        allow_abbrev=False,
    )
    commands = parser.add_subcommands(dest="command")
    for name, function in COMMANDS.items():
        summary = (getdoc(function) or "").split("\n", 1)[0]
        commands.add_subcommand(name, _make_command(function), help=summary)
    return parser


# arguments that are not declared from the function's signature: those given by their place in spite
# of a default or of their number, and those with a short name
BY_HAND: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "images": (("images",), {"type": Path, "nargs": "+"}),
    "comparison": (("comparison",), {"type": str, "nargs": "?"}),
    "out": (("-o", "--out"), {"type": Path}),
}
PLACES = {
    "recipe": "RECIPE",
    "checkpoint": "CHECKPOINT",
    "images": "IMAGES...",
    "comparison": "[COMPARISON]",
}


def _make_command(function: Callable[..., int]) -> ArgumentParser:
    from jsonargparse import ArgumentParser

    from phnn.tasks.recipe import Recipe

    parameters = signature(function).parameters
    places = [place for name, place in PLACES.items() if name in parameters]
    parser = ArgumentParser(
        usage=" ".join(["phnn", function.__name__, *places, "[options]"]),
        description=_describe(function),
        exit_on_error=False,
        allow_abbrev=False,
    )
    parser.add_function_arguments(function, as_positional=True, skip={"overrides", *BY_HAND})
    for name, (names, options) in BY_HAND.items():
        if name in parameters:
            parser.add_argument(*names, help=_describe_argument(function, name), **options)
    if "overrides" in parameters:
        parser.add_class_arguments(Recipe, None)
    return parser


def _describe(function: Callable[..., int]) -> str:
    """Returns what a function does, and the names that it knows."""
    from phnn.tasks.recipe import list_comparisons, list_recipes

    about, _, _ = (getdoc(function) or "").partition("\nArgs:")
    words = about.split()
    if "recipe" in signature(function).parameters:
        words.append(f"Recipes: {', '.join(list_recipes())}.")
    if "comparison" in signature(function).parameters:
        words.append(f"Comparisons: {', '.join(list_comparisons())}.")
    return " ".join(words)


def _describe_argument(function: Callable[..., int], name: str) -> str:
    found = re.search(rf"^ {{4}}{name}: (.*(?:\n {{8}}.*)*)", getdoc(function) or "", re.MULTILINE)
    assert found is not None
    return " ".join(found[1].split())


def _parse(argv: Sequence[str]) -> tuple[Callable[..., int], dict[str, Any]]:
    """Returns the function that argv asks for, and its arguments."""
    from phnn.tasks.recipe import Recipe

    given = _make_parser().parse_args(list(argv), defaults=False)
    function = COMMANDS[given["command"]]
    arguments = given.as_dict().get(given["command"]) or {}
    parts = {field.name for field in fields(Recipe)} & arguments.keys()
    overrides = {part: arguments.pop(part) for part in parts}
    if "overrides" in signature(function).parameters:
        arguments["overrides"] = overrides
    # a place that was left empty has the function's own default
    return function, {name: value for name, value in arguments.items() if value is not None}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line.

    Args:
        argv: What follows the command's name; of the process by default.

    Returns:
        0; 1 when runs of a comparison failed; 2 after an error that is the user's to mend, told in
        one line unless the environment has PHNN_DEBUG, which shows where it happened.
    """
    argv = sys.argv[1:] if argv is None else list(argv)
    if "--version" in argv[:1]:  # works without the extra, too
        print(f"phnn {phnn.__version__}")
        return 0
    logging.basicConfig(format="%(message)s")
    try:
        function, arguments = _parse(argv or ["--help"])
        return function(**arguments)
    except Exception as error:
        message = _explain(error, argv)
        if message is None or os.environ.get("PHNN_DEBUG"):
            raise
        print(f"phnn: {message}", file=sys.stderr)
        return USER_ERROR


def _explain(error: Exception, argv: Sequence[str]) -> str | None:
    """Returns what the user should read of an error; None for a mistake of ours."""
    if isinstance(error, ModuleNotFoundError):
        extra = EXTRAS.get((error.name or "").partition(".")[0])
        return extra and f'this command needs {error.name}; pip install "phnn[{extra}]"'
    from jsonargparse import ArgumentError
    from lightning.fabric.utilities.exceptions import MisconfigurationException

    from phnn.tasks.training import NonFiniteLossError

    if isinstance(error, ArgumentError):
        return _explain_arguments(" ".join(str(error).split()), argv)
    if isinstance(
        error, ValueError | TypeError | OSError | NonFiniteLossError | MisconfigurationException
    ):
        return str(error)
    return None


def _explain_arguments(message: str, argv: Sequence[str]) -> str:
    """Returns a parser's error in plain words, with the nearest of the names that exist."""
    unknown = re.match(r"unrecognized arguments: (-[\w.-]+)", message)
    if unknown is not None:
        actions = _make_command(COMMANDS[argv[0]])._actions if argv[0] in COMMANDS else []
        options = [option for action in actions for option in action.option_strings]
        return f"there is no option {unknown[1]}; {_suggest(unknown[1], options)}"
    if argv and "invalid choice" in message and not argv[0].startswith("-"):
        return f"there is no command {argv[0]}; {_suggest(argv[0], COMMANDS)}"
    return re.sub(r"<class '(\w+)'>", r"\1", message.replace("Parser key ", ""))


def _suggest(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=2)
    return f"did you mean {' or '.join(near)}?" if near else "see phnn --help"


if __name__ == "__main__":
    sys.exit(main())
