"""The commands that train networks, and use or compare what was trained."""

from __future__ import annotations

import csv
import os
import re
import shlex
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from phnn.lab.comparison import Comparison, Outcome
    from phnn.lab.recipe import Recipe
    from phnn.lab.tasks.detect import Heard
    from phnn.lab.tasks.task import Task
    from phnn.lab.trained import Trained

Overrides = dict[str, Any]
Rows = Iterator[tuple[Any, ...]]
FAILED_RUNS = 1
TERMINATED = 128 + signal.SIGTERM  # as shells say it


def train(recipe: str, overrides: Overrides, out: Path | None = None) -> int:
    """Train and test a network, or go on with a run that was stopped.

    Every part of the recipe can be replaced: phnn train digits --model.n 4 --seed 1

    Args:
        recipe: Name of a packaged recipe, or a YAML file.
        overrides: Parts of the recipe to replace.
        out: Folder of the run; runs/RECIPE-VARIANT-seedN by default. The same command again goes on
            from the last checkpoint there, and shows the result of a run that has ended.
    """
    from phnn.lab.recipe import build_recipe, merge, read_recipe
    from phnn.lab.tasks.task import TASKS
    from phnn.lab.training import train as run
    from phnn.lab.training.folder import read_result

    built = build_recipe(merge(read_recipe(recipe), overrides))
    folder = out or Path("runs") / f"{Path(recipe).stem}-{_variant(built)}-seed{built.seed}"
    ended_before = read_result(folder) is not None
    result = run(built, folder, command=_command())
    if result:  # of several processes, the first one speaks
        scores = _show_scores(TASKS[built.task], result)
        print(f"{scores}; {result['parameters']:,} parameters; see {folder}")
        if ended_before:
            print("this run had ended before; to train anew, give another --out")
    return 0


def test(checkpoint: Path, overrides: Overrides) -> int:
    """Test a trained network on the test part of its data.

    Example: phnn test runs/digits-n=4-seed0

    Args:
        checkpoint: Folder of a run, checkpoint (.ckpt) or saved model (.safetensors).
        overrides: Parts of its recipe to replace, such as --data.root FOLDER.
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
    """Print the class of each image, or the events of each recording, and how likely they are.

    Example: phnn predict runs/digits-n=4-seed0 photo.png more/ --out classes.csv

    Args:
        checkpoint: Folder of a run, checkpoint (.ckpt) or saved model (.safetensors).
        inputs: Image files, or recordings (.wav), or folders of them. Of a recording with two
            microphones the file of the first, NAME_A.wav.
        out: A CSV file to write as well.
        pictures: A folder for a picture of each recording: its spectrogram, and its events.
        corrupt: Whether an image that cannot be read is an error, or left out.
    """
    from phnn.lab.trained import load_trained

    trained = load_trained(checkpoint)
    if trained.task.name == "sound":
        rows = _predict_events(trained, inputs, pictures)
    elif pictures is None:
        rows = _predict_classes(trained, inputs, corrupt)
    else:
        raise ValueError("--pictures is for networks that hear; this one sees images")
    first = list(islice(rows, 2))  # a mistake shows before a file is written over
    if out is None:
        for _ in rows:
            pass
        return 0
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("w", newline="", encoding="utf-8", buffering=1) as file:  # as they come
        csv.writer(file).writerows(chain(first, rows))
    print(f"wrote {out}")
    return 0


def _predict_classes(
    trained: Trained, images: Sequence[Path], corrupt: Literal["raise", "skip"]
) -> Rows:
    from phnn.lab.trained import Prediction
    from phnn.lab.trained import predict as run

    yield Prediction._fields
    for prediction in run(trained, images, corrupt=corrupt):
        print(f"{prediction.image}: {prediction.label} ({100 * prediction.probability:.1f} %)")
        yield prediction


def _predict_events(trained: Trained, recordings: Sequence[Path], pictures: Path | None) -> Rows:
    from phnn.lab.tasks.detect import Event, detect

    yield "recording", *Event._fields
    for heard in detect(trained, recordings):
        for event in heard.events:
            times = f"{event.start:.1f} to {event.end:.1f} s"
            print(f"{heard.file}: {times}: {event.label} ({100 * event.probability:.1f} %)")
            yield str(heard.file), *event
        if not heard.events:
            print(f"{heard.file}: nothing was heard")
        if pictures is not None:
            _draw(heard, pictures)


def _draw(heard: Heard, folder: Path) -> None:
    from phnn.lab.drawing import save_figure
    from phnn.lab.tasks.sound.report import draw_heard

    print("wrote", *save_figure(draw_heard(heard), folder, f"{heard.file.stem}-events"))


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
        out: Folder of the results; runs/COMPARISON by default. The same command again goes on where
            it stopped.
        jobs: Runs at once; by default two on the CPU, which they share, and one on anything else.
        power: Of the hardware in watts, for the paper's estimate of CO2, hours × power × 0.445
            kg/kWh.
    """
    from phnn.lab import reports
    from phnn.lab.comparison import check_folders, load_comparison, plan, run_all
    from phnn.lab.recipe import build_recipe, merge
    from phnn.lab.training import check_recipe

    loaded = load_comparison(comparison)
    folder = out or Path("runs") / loaded.name
    jobs = _count_jobs() if jobs is None else jobs
    if jobs < 1:
        raise ValueError(f"jobs={jobs} must be at least 1")
    shared = {"trainer": {"threads": max(1, (os.cpu_count() or 1) // jobs)}} if jobs > 1 else {}
    runs = plan(loaded, folder, merge(shared, overrides))
    for run in runs:  # a mistake shows now, not after hours
        check_recipe(build_recipe(run.recipe))
    check_folders(runs)
    command = _command()

    def report(outcomes: Sequence[Outcome]) -> None:
        made = [reports.record_outcome(outcome) for outcome in outcomes]
        reports.write_tables(loaded, made, folder, power, command)
        ended = sum(outcome.result is not None for outcome in outcomes)
        print(f"{ended} of {len(outcomes)} runs have ended; {jobs} at once, in {folder / 'runs'}")

    with _ending_when_told():
        outcomes = run_all(runs, jobs, report)
    return _conclude(loaded, outcomes, folder, power, command)


@contextmanager
def _ending_when_told() -> Iterator[None]:
    """Makes SIGTERM end a block as Ctrl-C does, so that it can end its processes."""
    if threading.current_thread() is not threading.main_thread():  # which alone may be told
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _conclude(
    comparison: Comparison, outcomes: Sequence[Outcome], folder: Path, power: float, command: str
) -> int:
    from phnn.lab import reports
    from phnn.lab.drawing import save_figure

    runs = [reports.record_outcome(outcome) for outcome in outcomes]
    lines = reports.summarize(comparison, runs, power)
    print(f"\n{comparison.title}\n\n{reports.render_text(lines)}")
    failed = [outcome for outcome in outcomes if outcome.error is not None]
    for outcome in failed:
        print(f"failed: {outcome.run.folder}: {outcome.error}")
    tables = reports.write_tables(comparison, runs, folder, power, command)
    pictures = []
    if any(line.seeds for line in lines):
        bubbles = reports.draw_bubbles(comparison.title, lines)
        pictures = save_figure(bubbles, folder, "bubble")
    print("\nwrote", *tables, *pictures, sep="\n  ")
    return FAILED_RUNS if failed else 0


def _count_jobs() -> int:
    """Two on a CPU of two cores or more: one network of this size leaves half of it idle."""
    import torch

    on_cpu = torch.accelerator.current_accelerator() is None
    return 2 if on_cpu and (os.cpu_count() or 1) > 1 else 1


def _variant(recipe: Recipe) -> str:
    from phnn.lab.training.folder import name_start

    model = recipe.model
    name = "real" if model.get("n") is None else f"n={model['n']}"
    if model.get("algebra") is not None:
        name = str(model["algebra"])
    return name if recipe.start is None else f"{name}-from-{name_start(recipe.start)}"


def _command() -> str:
    """What was typed, of absolute paths the last part alone: results are shown to others."""
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
