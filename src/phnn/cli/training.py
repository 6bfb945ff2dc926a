"""The commands that train networks, and use or compare what was trained."""

from __future__ import annotations

import csv
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from phnn.tasks.compare import Comparison, Outcome

Overrides = dict[str, Any]
FAILED_RUNS = 1


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

    command = shlex.join(["phnn", *sys.argv[1:]])

    def report(outcomes: Sequence[Outcome]) -> None:
        reports.write_tables(loaded, outcomes, folder, power, command)
        ended = sum(outcome.result is not None for outcome in outcomes)
        print(f"{ended} of {len(outcomes)} runs have ended; {jobs} at once, in {folder / 'runs'}")

    outcomes = run_all(runs, jobs, report)
    return _conclude(loaded, outcomes, folder, power, command)


def _conclude(
    comparison: Comparison, outcomes: Sequence[Outcome], folder: Path, power: float, command: str
) -> int:
    from phnn import reports

    lines = reports.summarize(comparison, outcomes, power)
    print(f"\n{comparison.title}\n\n{reports.render_text(lines)}")
    failed = [outcome for outcome in outcomes if outcome.error is not None]
    for outcome in failed:
        print(f"failed: {outcome.run.folder}: {outcome.error}")
    tables = reports.write_tables(comparison, outcomes, folder, power, command)
    pictures = []
    if any(line.seeds for line in lines):
        bubbles = reports.draw_bubbles(comparison.title, lines)
        pictures = reports.save_figure(bubbles, folder, "bubble")
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
