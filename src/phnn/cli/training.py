"""The commands that train networks, and use or compare trained networks."""

from __future__ import annotations

import csv
import os
import re
import shlex
import sys
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from phnn._names import printable
from phnn._screen import Screen, format_time
from phnn._tables import fit_lines
from phnn.cli.overview import Overview
from phnn.cli.streams import is_unread

if TYPE_CHECKING:
    from phnn.lab.comparison import Comparison
    from phnn.lab.runs import Run
    from phnn.lab.tasks import Answer, Task

Overrides = dict[str, Any]
FAILED_RUNS = 1
POWER = 300.0  # watts


def train(recipe: str, overrides: Overrides, out: Path | None = None, trust: bool = False) -> int:
    """Train and test a network, or continue a run that was stopped.

    Examples:
      phnn train digits --model.n 4
      phnn train digits --model.n 4 --trainer.max_epochs 6   # that run goes on
      phnn train digits --start small.safetensors --distill RUN   # fine-tunes

    Args:
        recipe: Name of a packaged recipe, or a YAML file. Every option of it can be replaced.
        overrides: Options of the recipe to replace.
        out: Folder of the run; by default runs/RECIPE-NETWORK-seedN, with what else differs from
            the recipe in its name. The same command continues from the last checkpoint there, and
            shows the result of a run that has ended; with more epochs, such a run goes on.
        trust: Whether a recipe file may name functions, package.module:function, whose code then
            runs. On the command line they need no trust.
    """
    with Screen(quiet=0.0) as screen:
        return _train(recipe, overrides, out, trust, screen)


def _train(recipe: str, overrides: Overrides, out: Path | None, trust: bool, screen: Screen) -> int:
    from phnn.lab.packaged import read_recipe
    from phnn.lab.recipe import FINE_TUNING, build_recipe, merge

    tree = read_recipe(recipe, trust=trust)
    from phnn.cli.folders import check_root, choose_folder
    from phnn.lab.runs import RESULT, read_json
    from phnn.lab.tasks import find_task
    from phnn.lab.training import train as run

    if overrides.get("distill") is not None and tree.get("distill") is None:
        sections = {name: FINE_TUNING[name] for name in ("optimizer", "schedule")}
        tree = {**merge(tree, FINE_TUNING), **sections}
    built = build_recipe(merge(tree, overrides))
    folder = out or choose_folder(Path("runs"), Path(recipe).stem, build_recipe(tree), built)
    before = read_json(folder / RESULT)
    if before is None:  # otherwise it is compared with where the data were
        check_root(built)
    result = run(built, folder, command=show_command(), progress=screen)
    if result:  # of several processes, the first one speaks
        print(_show_scores(find_task(built.task), result))
        epochs = "1 epoch" if result["epochs"] == 1 else f"{result['epochs']} epochs"
        trained = f"trained {epochs} in {format_time(result['train_seconds'])}"
        tested = f"tested in {format_time(result['test_seconds'])}"
        about = f"{trained}, {tested}; {result['parameters']:,} parameters; see {folder}"
        print(fit_lines(about))
        if result == before:
            print(
                "this run had ended before; more --trainer.max_epochs continue it, another --out "
                "trains again"
            )
    return 0


def test(checkpoint: Path, overrides: Overrides) -> int:
    """Test a trained network on the test split of its data.

    Example: phnn test runs/digits-n=4-seed0

    Args:
        checkpoint: Folder of a run, checkpoint (.ckpt) or saved model (.safetensors).
        overrides: Options of its recipe to replace, such as --data.root FOLDER.
    """
    from phnn.lab.trained import evaluate, load_trained

    trained = load_trained(checkpoint)
    scores = evaluate(trained, overrides)
    print(_show_scores(trained.task, scores))
    print(f"tested in {format_time(scores['test_seconds'])}")
    return 0


def predict(
    checkpoint: Path,
    inputs: list[Path],
    out: Path | None = None,
    pictures: Path | None = None,
    corrupt: Literal["raise", "skip"] = "raise",
    threshold: float | None = None,
    merge: bool = False,
) -> int:
    """Print the class of an image, or the events of a sound, that a network finds.

    Examples:
      phnn predict runs/digits-n=4-seed0 photo.png more/ --out classes.csv
      phnn predict runs/sednet-short-n=4-seed0 scene_A.wav --threshold 0.3 --merge

    Args:
        checkpoint: Folder of a run, checkpoint (.ckpt) or saved model (.safetensors).
        inputs: Image files, or recordings (.wav), or folders of them. For a recording with two
            microphones, the file of the first: NAME_A.wav.
        out: A CSV file to write as well.
        pictures: A folder for a picture of each recording: its spectrogram, and its events.
        corrupt: Whether an image that cannot be read is an error, or left out.
        threshold: For sound: the probability from which on an event is active; 0.5 by default.
        merge: For sound: make one event of events of one class that overlap. Otherwise the second
            and third at a time are numbered.
    """
    from phnn.io.atomic import check_output, replacing
    from phnn.lab.trained import load_trained
    from phnn.lab.trained import predict as run

    if out is not None:
        check_output(out)
    if pictures is not None:
        check_output(pictures / "picture.png")
    trained = load_trained(checkpoint)
    options: dict[str, Any] = {} if corrupt == "raise" else {"corrupt": corrupt}
    options |= {} if threshold is None else {"threshold": threshold}
    options |= {"merge": True} if merge else {}
    answers = run(trained, inputs, **options)
    if pictures is not None:
        answers = _draw(trained.task, answers, pictures)
    rows = _show(answers)
    first = list(islice(rows, 1))  # a mistake shows before a file is replaced
    if out is None:
        for _ in chain(first, rows):
            if is_unread():
                break
        return 0
    out.parent.mkdir(parents=True, exist_ok=True)
    with replacing(out) as part, part.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(trained.task.columns)
        for batch in chain(first, rows):
            writer.writerows(batch)
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
    seeds: str | None = None,
    only: str | None = None,
    shard: str | None = None,
    trust: bool = False,
) -> int:
    """Train real, quaternion and PH networks, and print how they compare.

    Example: phnn compare cifar10-short --data.root FOLDER

    Args:
        overrides: Options of every recipe to replace.
        comparison: Name of a packaged comparison, or a YAML file.
        out: Folder of the results; by default runs/COMPARISON, with the options that change the
            results in its name. The same command continues where it was stopped.
        jobs: Runs at once. On CUDA, each has one device, and there are as many as devices by
            default. On a CPU, which they share, the default is two.
        power: Power of the hardware in watts, for the paper's estimate of CO2, hours × power ×
            0.445 kg/kWh.
        seeds: Seeds of all variants, such as 0,1,2, instead of those of the comparison.
        only: Patterns of what to train now, such as 'resnet18-*' or '* n=4', with commas between
            them: of recipes, of variants, or of both. The table has all runs that have ended.
        shard: The share of this process, such as 3/20, for as many machines with one --out on a
            shared disk. Each writes the table of all runs that have ended.
        trust: Whether files may name functions, package.module:function, whose code then
            runs. On the command line they need no trust.
    """
    return compare_all(overrides, comparison, out, jobs, power, seeds, only, shard, trust)


def compare_all(
    overrides: Overrides,
    comparison: str,
    out: Path | None,
    jobs: int | None,
    power: float = POWER,
    seeds: str | None = None,
    only: str | None = None,
    shard: str | None = None,
    trust: bool = False,
) -> int:
    """Carry out a comparison; see `compare`."""
    from phnn.cli.folders import check_root, name_comparison
    from phnn.lab.comparison import (
        check_folders,
        choose,
        hold,
        load_comparison,
        plan,
        run_all,
        with_seeds,
    )
    from phnn.lab.packaged import read_recipe
    from phnn.lab.recipe import build_recipe, merge
    from phnn.lab.training import check_recipe

    loaded = load_comparison(comparison, trust=trust)
    if seeds is not None:
        loaded = with_seeds(loaded, parse_seeds(seeds))
    tree = read_recipe(loaded.variants[0].recipe, trust=trust)
    names = (loaded.name, build_recipe(tree), build_recipe(merge(tree, overrides)))
    folder = out or Path("runs") / name_comparison(*names)
    jobs, devices = count_jobs(jobs, overrides)
    shared = {"trainer": {"threads": max(1, (os.cpu_count() or 1) // jobs)}} if jobs > 1 else {}
    runs = plan(loaded, folder, merge(shared, overrides))
    chosen = choose(runs, only.split(",") if only else (), shard)
    # a mistake shows now, not after hours
    for run in {(run.family, run.variant): run for run in chosen}.values():
        check_recipe(build_recipe(run.recipe or {}))
        check_root(build_recipe(run.recipe or {}))
    check_folders(runs)
    command = show_command()

    def report(runs: list[Run]) -> None:
        from phnn.lab import reports

        reports.write_tables(loaded, runs, folder, power, command)
        overview.report(runs)

    with hold(folder, shard), Screen() as screen:
        count = f"{len(chosen)} of " if len(chosen) < len(runs) else ""
        screen.say(
            f"{loaded.title}: {count}{len(runs)} runs, {jobs} at once, each with a folder in "
            f"{folder / 'runs'}"
        )
        overview = Overview(screen, loaded.task.primary)
        runs = run_all(runs, jobs, report, command, overview.watch, chosen=chosen, devices=devices)
        screen.close()
        mine = {run.folder for run in chosen}
        return _conclude(loaded, runs, folder, power, command, mine)


def _conclude(
    comparison: Comparison,
    runs: list[Run],
    folder: Path,
    power: float,
    command: str,
    mine: set[Path],
) -> int:
    from phnn.lab import reports
    from phnn.lab.drawing import save_figure

    summaries = reports.summarize(comparison, runs, power)
    seen = {(run.family, run.variant) for run in runs if run.folder in mine or run.result}
    shown = [each for each in summaries if (each.family, each.variant) in seen]
    print(f"{fit_lines(comparison.title)}\n\n{reports.render_text(shown)}")
    failed = [run for run in runs if run.error is not None and run.folder in mine]
    for run in failed:
        print(printable(f"failed: {run.folder}: {run.error}"))
    tables = reports.write_tables(comparison, runs, folder, power, command)
    pictures = []
    if any(summary.seeds for summary in summaries):
        bubbles = reports.draw_bubbles(comparison.title, summaries)
        pictures = save_figure(bubbles, folder, "bubble")
    print("\nwrote", *tables, *pictures, sep="\n  ")
    return FAILED_RUNS if failed else 0


def parse_seeds(text: str) -> list[int]:
    """Return the seeds that a text such as "0,1,2" names."""
    try:
        return [int(seed) for seed in text.split(",")]
    except ValueError:
        raise ValueError(f"seeds={text} must be numbers with commas, such as 0,1,2") from None


def count_jobs(jobs: int | None, overrides: Overrides) -> tuple[int, tuple[str, ...]]:
    """Return how many runs go at once, and the CUDA devices that they have, one each.

    On a CPU of two cores or more it is two: one network of this size leaves half of it idle. Runs
    that take several devices each go one after the other.

    Args:
        jobs: What the user wants; None for the default.
        overrides: Options of every recipe to replace.
    """
    import torch

    from phnn.lab.comparison import find_devices

    if jobs is not None and jobs < 1:
        raise ValueError(f"jobs={jobs} must be at least 1")
    trainer = overrides.get("trainer", {})
    alone = trainer.get("devices", 1) == 1 and trainer.get("num_nodes", 1) == 1
    on_cuda = trainer.get("accelerator", "auto") in ("auto", "gpu", "cuda")
    devices = find_devices() if alone and on_cuda else ()
    if jobs is not None:
        return jobs, devices
    if devices:
        return len(devices), devices
    on_cpu = torch.accelerator.current_accelerator() is None
    return (2 if alone and on_cpu and (os.cpu_count() or 1) > 1 else 1), devices


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
    return f"test {scores}"
