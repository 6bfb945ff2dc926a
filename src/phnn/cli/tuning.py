"""The command that tunes the options of a recipe."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from phnn._screen import ProgressBar
from phnn.cli.training import compare_all, count_jobs, show_command

if TYPE_CHECKING:
    from phnn.lab.tuning.searching import Found

Overrides = dict[str, Any]
TRIALS = 20


def tune(
    recipe: str,
    overrides: Overrides,
    space: list[str] | None = None,
    objectives: str | None = None,
    trials: int | None = None,
    minutes: float | None = None,
    out: Path | None = None,
    storage: str | None = None,
    name: str | None = None,
    pruner: Literal["asha", "median", "none"] | None = None,
    jobs: int | None = None,
    confirm: int = 0,
    trust: bool = False,
) -> int:
    """Search n, the rank and the rates, or other options of a recipe, by trials.

    Trials are judged by the validation split; the test split is not read before --confirm. The same
    command continues a study that was stopped. Given on several machines with one --storage, it
    lets them share the study.

    Example: phnn tune digits --space "model.n=[1,2,4]" "optimizer.lr=log(0.01,1)" --trials 10

    Args:
        recipe: Name of a packaged recipe, or a YAML file.
        overrides: Options of the recipe to replace.
        space: What to search: OPTION=VALUES, several of them, with a list such as [1,2,4],
            log(0.01,1), uniform(0,1) or integers(1,8), or a YAML file. By default n, the rank, and
            the rates of filters and algebras.
        objectives: What to optimize, separated by commas: scores of the task, loss, parameters,
            time. By default the task's first score. With several, the search finds the Pareto
            front.
        trials: Trials of the whole study, over all machines; 20 by default, if --minutes is not
            given.
        minutes: Minutes after which this command ends. The same command continues its trials.
        out: Folder of the results; runs/tune-NAME by default.
        storage: Where the study is: a URL for Optuna, such as postgresql+psycopg://HOST/DATABASE,
            or a file. By default study.journal in the folder.
        name: Name of the study; that of the recipe by default.
        pruner: Which trials are given up before their end: asha, median or none. By default median
            for one score, and none otherwise.
        jobs: Trials at once; by default two on a CPU, which they share, and one on other devices.
        confirm: Train the best recipes again with this many new seeds, and test them.
        trust: Whether files may name functions, package.module:function, whose code then
            runs. On the command line they need no trust.
    """
    return _tune(
        recipe,
        overrides,
        space or [],
        jobs=count_jobs(jobs, overrides)[0],
        confirm=confirm,
        trust=trust,
        objectives=objectives,
        trials=TRIALS if trials is None and minutes is None else trials,
        minutes=minutes,
        out=out or Path("runs") / f"tune-{name or Path(recipe).stem}",
        storage=storage,
        name=name or Path(recipe).stem,
        pruner=pruner,
    )


def _tune(
    recipe: str,
    overrides: Overrides,
    space: list[str],
    jobs: int,
    confirm: int,
    trust: bool,
    **options: Any,
) -> int:
    from phnn.lab.packaged import read_recipe
    from phnn.lab.recipe import merge
    from phnn.lab.tuning.searching import Search, search
    from phnn.lab.tuning.space import read_space
    from phnn.lab.tuning.study import hide
    from phnn.lab.tuning.summary import write_confirmation

    if confirm < 0:
        raise ValueError(f"confirm={confirm} must not be negative")
    threads = max(1, (os.cpu_count() or 1) // max(jobs, 1))
    shared = {"trainer": {"threads": threads}} if jobs > 1 else {}
    out = options["out"]
    what = Search(
        recipe=merge(shared, read_recipe(recipe, trust=trust), overrides),
        family=Path(recipe).stem,
        space=read_space(space, trust=trust),
        jobs=jobs,
        command=hide(show_command()),
        **options,
    )
    with ProgressBar() as bar:
        # with --minutes alone nobody knows how many there will be
        found = search(what, lambda done, total, best: bar(f"trials, {best}", done, total or done))
    _show(found, out)
    if not confirm or not found.best:
        return 0
    if any(trial.state.name == "RUNNING" for trial in found.trials):
        print(
            "some trials still run and may become the best: for --confirm, give the command again"
        )
        return 0
    path = write_confirmation(found.best, found.about, confirm, out)
    return compare_all({}, str(path), out / "confirm", jobs, trust=trust)


def _show(found: Found, out: Path) -> None:
    """Print the best trials, and where their recipes are."""
    from phnn.lab.tables import render

    objectives = [objective.score for objective in found.about.objectives]
    options = [dimension.key for dimension in found.about.space]
    head = ["trial", *(f"{s.label} {s.unit}".strip() for s in objectives), *options]
    rows = [
        [
            str(trial.number),
            *(f"{s.scale * v:.{s.digits}f}" for s, v in zip(objectives, trial.values, strict=True)),
            *(_show_value(trial.params[key]) for key in options),
        ]
        for trial in found.best
    ]
    states = [trial.state.name for trial in found.trials]
    counts = {"COMPLETE": "finished", "PRUNED": "given up", "FAIL": "failed", "RUNNING": "open"}
    listed = ", ".join(f"{states.count(s)} {word}" for s, word in counts.items() if s in states)
    print(f"{len(states)} trials: {listed}")
    if found.note:
        print(found.note)
    if rows:
        print(f"\n{render(head, rows)}\n\nscores are of the validation split\nwrote")
        print(*(f"  {out / 'best' / f'trial-{t.number}.yaml'}" for t in found.best), sep="\n")
    print(f"next: phnn report {out}")


def _show_value(value: Any) -> str:
    return "none" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)
