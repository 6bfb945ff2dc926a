"""The commands that train networks, and use or compare trained networks."""

from __future__ import annotations

import csv
import os
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from phnn._names import printable

if TYPE_CHECKING:
    from phnn.lab.comparison import Comparison
    from phnn.lab.recipe import Recipe
    from phnn.lab.runs import Run
    from phnn.lab.tasks import Answer, Task

Overrides = dict[str, Any]
FAILED_RUNS = 1
POWER = 300.0  # watts


def train(recipe: str, overrides: Overrides, out: Path | None = None) -> int:
    """Train and test a network, or continue a run that was stopped.

    Every option of the recipe can be replaced: phnn train digits --model.n 4 --seed 1. After phnn
    convert, phnn train digits --start small.safetensors --distill RUN fine-tunes the small network
    in a few epochs to compute what the original computes.

    Args:
        recipe: Name of a packaged recipe, or a YAML file.
        overrides: Options of the recipe to replace.
        out: Folder of the run; runs/RECIPE-VARIANT-seedN by default. The same command continues
            from the last checkpoint there, and shows the result of a run that has ended.
    """
    with resumable():
        return _train(recipe, overrides, out)


def _train(recipe: str, overrides: Overrides, out: Path | None) -> int:
    from phnn.lab.recipe import FINE_TUNING, build_recipe, merge, read_recipe
    from phnn.lab.runs import RESULT
    from phnn.lab.tasks import find_task
    from phnn.lab.training import train as run

    tree = read_recipe(recipe)
    if overrides.get("distill") is not None and tree.get("distill") is None:
        sections = {name: FINE_TUNING[name] for name in ("optimizer", "schedule")}
        tree = {**merge(tree, FINE_TUNING), **sections}
    built = build_recipe(merge(tree, overrides))
    folder = out or Path("runs") / f"{Path(recipe).stem}-{_variant(built)}-seed{built.seed}"
    ended_before = (folder / RESULT).exists()
    result = run(built, folder, command=show_command())
    if result:  # of several processes, the first one speaks
        scores = _show_scores(find_task(built.task), result)
        print(f"{scores}; {result['parameters']:,} parameters; see {folder}")
        if ended_before:
            print("this run had ended before; to train again, give another --out")
    return 0


@contextmanager
def resumable() -> Iterator[None]:
    """End work with the exit code of a signal, and say how to continue it."""
    from phnn.lab.stopping import Stoppable, Stopped

    try:
        with Stoppable():
            yield
    except Stopped as stopped:
        hint = "give the same command again to continue"
        print(f"phnn: stopped by {stopped.name}; {hint}", file=sys.stderr)
        raise


def test(checkpoint: Path, overrides: Overrides) -> int:
    """Test a trained network on the test split of its data.

    Example: phnn test runs/digits-n=4-seed0

    Args:
        checkpoint: Folder of a run, checkpoint (.ckpt) or saved model (.safetensors).
        overrides: Options of its recipe to replace, such as --data.root FOLDER.
    """
    from phnn.lab.trained import evaluate, load_trained

    trained = load_trained(checkpoint)
    print(_show_scores(trained.task, evaluate(trained, overrides)))
    return 0


def predict(
    checkpoint: Path,
    inputs: list[Path],
    out: Path | None = None,
    pictures: Path | None = None,
    corrupt: Literal["raise", "skip"] = "raise",
) -> int:
    """Print the class of an image, or the events of a sound, that a network finds.

    Example: phnn predict runs/digits-n=4-seed0 photo.png more/ --out classes.csv

    Args:
        checkpoint: Folder of a run, checkpoint (.ckpt) or saved model (.safetensors).
        inputs: Image files, or recordings (.wav), or folders of them. For a recording with two
            microphones, the file of the first: NAME_A.wav.
        out: A CSV file to write as well.
        pictures: A folder for a picture of each recording: its spectrogram, and its events.
        corrupt: Whether an image that cannot be read is an error, or left out.
    """
    from phnn.lab.trained import load_trained
    from phnn.lab.trained import predict as run

    trained = load_trained(checkpoint)
    options = {} if corrupt == "raise" else {"corrupt": corrupt}
    answers = run(trained, inputs, **options)
    if pictures is not None:
        answers = _draw(trained.task, answers, pictures)
    rows = _show(answers)
    first = list(islice(rows, 1))  # a mistake shows before a file is replaced
    with ExitStack() as stack:
        if out is not None:
            out.parent.mkdir(parents=True, exist_ok=True)
            # line by line, as the answers come
            file = stack.enter_context(out.open("w", newline="", encoding="utf-8", buffering=1))
            writer = csv.writer(file)
            writer.writerow(trained.task.columns)
        for batch in chain(first, rows):
            if out is not None:
                writer.writerows(batch)
    if out is not None:
        print(f"wrote {out}")
    return 0


def _show(answers: Iterator[Answer]) -> Iterator[Any]:
    """Print answers, and yield their rows."""
    for answer in answers:
        print(*map(printable, answer.lines), sep="\n")
        yield answer.rows


def _draw(task: Task, answers: Iterator[Answer], folder: Path) -> Iterator[Answer]:
    """Draw answers, and yield them."""
    from phnn.lab.drawing import save_figure
    from phnn.lab.tasks.task import resolve

    if task.picture is None:
        raise ValueError(f"the task {task.name} draws no pictures; leave --pictures out")
    for answer in answers:
        yield answer
        figure = resolve(task.picture)(answer.detail)
        print("wrote", *save_figure(figure, folder, answer.name))


def compare(
    overrides: Overrides,
    comparison: str = "digits",
    out: Path | None = None,
    jobs: int | None = None,
    power: float = POWER,
) -> int:
    """Train real, quaternion and PH networks, and print how they compare.

    Example: phnn compare cifar10-short --data.root FOLDER

    Args:
        overrides: Options of every recipe to replace.
        comparison: Name of a packaged comparison, or a YAML file.
        out: Folder of the results; runs/COMPARISON by default. The same command continues where it
            was stopped.
        jobs: Runs at once; by default two on a CPU, which they share, and one on other devices.
        power: Power of the hardware in watts, for the paper's estimate of CO2, hours × power ×
            0.445 kg/kWh.
    """
    with resumable():
        return compare_all(overrides, comparison, out, jobs, power)


def compare_all(
    overrides: Overrides,
    comparison: str,
    out: Path | None,
    jobs: int | None,
    power: float = POWER,
) -> int:
    """Carry out a comparison; see `compare`."""
    from phnn.lab.comparison import check_folders, hold, load_comparison, plan, run_all
    from phnn.lab.recipe import build_recipe, merge
    from phnn.lab.training import check_recipe

    loaded = load_comparison(comparison)
    folder = out or Path("runs") / loaded.name
    jobs = count_jobs() if jobs is None else jobs
    if jobs < 1:
        raise ValueError(f"jobs={jobs} must be at least 1")
    shared = {"trainer": {"threads": max(1, (os.cpu_count() or 1) // jobs)}} if jobs > 1 else {}
    runs = plan(loaded, folder, merge(shared, overrides))
    # a mistake shows now, not after hours
    for run in {(run.family, run.variant): run for run in runs}.values():
        check_recipe(build_recipe(run.recipe or {}))
    check_folders(runs)
    command = show_command()

    def report(runs: list[Run]) -> None:
        from phnn.lab import reports

        reports.write_tables(loaded, runs, folder, power, command)
        ended = sum(run.result is not None for run in runs)
        print(f"{ended} of {len(runs)} runs have ended; {jobs} at once, in {folder / 'runs'}")

    with hold(folder):
        runs = run_all(runs, jobs, report, command)
        return _conclude(loaded, runs, folder, power, command)


def _conclude(
    comparison: Comparison, runs: list[Run], folder: Path, power: float, command: str
) -> int:
    from phnn.lab import reports
    from phnn.lab.drawing import save_figure

    summaries = reports.summarize(comparison, runs, power)
    print(f"\n{comparison.title}\n\n{reports.render_text(summaries)}")
    failed = [run for run in runs if run.error is not None]
    for run in failed:
        print(f"failed: {run.folder}: {run.error}")
    tables = reports.write_tables(comparison, runs, folder, power, command)
    pictures = []
    if any(summary.seeds for summary in summaries):
        bubbles = reports.draw_bubbles(comparison.title, summaries)
        pictures = save_figure(bubbles, folder, "bubble")
    print("\nwrote", *tables, *pictures, sep="\n  ")
    return FAILED_RUNS if failed else 0


def count_jobs() -> int:
    """Return two on a CPU of two cores or more: one network of this size leaves half of it idle."""
    import torch

    on_cpu = torch.accelerator.current_accelerator() is None
    return 2 if on_cpu and (os.cpu_count() or 1) > 1 else 1


def _variant(recipe: Recipe) -> str:
    from phnn.lab.runs import describe_layers, name_start

    name = describe_layers(recipe.model)
    if recipe.start is not None:
        name += f"-from-{name_start(recipe.start)}"
    return name if recipe.distill is None else f"{name}-distilled"


def show_command() -> str:
    """Return what was typed, with file names alone for absolute paths: results are shared."""
    return shlex.join(["phnn", *map(_shorten, sys.argv[1:])])


def _shorten(word: str) -> str:
    option = re.match(r"--[\w.]+=|-\w|", word)
    assert option is not None  # the last alternative is empty
    value = word[option.end() :]
    if Path(value).is_absolute():
        return option[0] + Path(value).name
    return option[0] + re.sub(r"(?<![\w.:/])/[^\s,\"'\[\]{}]*/", "", value)


def _show_scores(task: Task, result: dict[str, Any]) -> str:
    scores = ", ".join(score.show(result[f"test_{score.name}"]) for score in task.scores)
    return f"test {scores} in {result['test_seconds']:.1f} s"
