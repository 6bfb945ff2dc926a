"""All tables of the paper: planned, estimated, run, judged."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from phnn.lab.comparison import (
    Comparison,
    check_folders,
    choose,
    hold,
    load_comparison,
    plan,
    run_all,
    with_seeds,
)
from phnn.lab.comparison.planning import matches, parse_shard
from phnn.lab.paper.sizes import derive_rows
from phnn.lab.recipe import Tree, build_recipe, merge
from phnn.lab.reports.printed import TABLES
from phnn.lab.reports.summaries import summarize
from phnn.lab.reports.tables import write_tables
from phnn.lab.reproduction.datasets import NAMES, find_datasets
from phnn.lab.reproduction.estimate import estimate_hours
from phnn.lab.reproduction.made import make_datasets
from phnn.lab.reproduction.page import write_page
from phnn.lab.reproduction.verdicts import judge_scores, judge_sizes
from phnn.lab.runs import Run
from phnn.lab.tables import render
from phnn.lab.training import check_recipe, train

TINY_TRAINER: Tree = {
    "max_epochs": 1,
    "max_steps": 4,
    "accelerator": "cpu",
    "threads": 1,
    "energy": False,
    "logger": "none",
}
# widths that 2, 3, 4 and 16 divide where the paper needs it
TINY_MODELS: dict[str, Tree] = {
    **{name: {"widths": [12] * 4} for name in ("resnet18", "resnet50", "resnet152")},
    **{name: {"widths": [12] * 3} for name in ("resnet20", "resnet56", "resnet110")},
    **{name: {"widths": [12] * 6} for name in ("vgg11", "vgg16", "vgg19")},
    "sednet": {"widths": [16] * 4, "hidden": 4, "dense": 8},
}
Say = Callable[[str], None]


class Part(NamedTuple):
    """One comparison of the paper.

    Attributes:
        comparison: What is compared.
        folder: The folder of its results.
        runs: All its runs.
        chosen: Those that are carried out now.
    """

    comparison: Comparison
    folder: Path
    runs: list[Run]
    chosen: list[Run]


def reproduce(
    data: Path | None,
    out: Path,
    *,
    tiny: bool = False,
    only: Sequence[str] = (),
    seeds: Sequence[int] | None = None,
    shard: str | None = None,
    jobs: int = 1,
    devices: Sequence[str] = (),
    overrides: Mapping[str, Any] | None = None,
    start: bool = True,
    command: str = "",
    say: Say = print,
) -> tuple[Path | None, int]:
    """Carry out the runs of the paper's tables, and write a page with every number beside ours.

    The same call continues where it was stopped.

    Args:
        data: The folder with the data sets, see `find_datasets`. Tables whose data are not there
            are not run. None with `tiny`, which makes its own.
        out: The folder of the results, one folder for each table in it.
        tiny: Few steps of tiny networks on made data, in this process: a dry run of everything.
        only: Patterns of runs, as in `choose`, or names of tables such as "vgg".
        seeds: The seeds of all runs; the paper's three by default, one in a dry run.
        shard: The share of this process, such as "3/20".
        jobs: How many runs go at once.
        devices: The CUDA devices, one for each job; ImageNet takes them all.
        overrides: Options of every recipe to replace.
        start: Whether to start at all, or only to estimate.
        command: The command, for the results.
        say: Called with messages.

    Returns:
        The page, None where nothing was started, and the number of runs that failed.
    """
    if data is None and not tiny:
        raise ValueError("give --data, the folder with the data sets, or --tiny")
    if shard is not None:
        parse_shard(shard)  # a mistake shows before data are made
    roots = make_datasets(out / "data") if data is None else find_datasets(data)
    missing = [name for name in NAMES if name not in roots]
    given = dict(overrides or {})
    if jobs > 1:
        given = merge({"trainer": {"threads": max(1, (os.cpu_count() or 1) // jobs)}}, given)
    if tiny and seeds is None:
        seeds = [0]
    parts = _plan(roots, out, given, tiny=tiny, only=only, seeds=seeds, shard=shard)
    if not parts:
        raise ValueError(f"only={','.join(only)} matches no table and no run; see phnn compare")
    say(_show_estimate(parts, missing, tiny=tiny))
    if not start:
        return None, 0
    for part in parts:
        distinct = {(run.family, run.variant): run for run in part.chosen}
        for run in distinct.values():  # a mistake shows now, not after weeks
            check_recipe(build_recipe(run.recipe or {}))
        check_folders(part.runs)
    failed = 0
    for part in parts:
        failed += _carry_out(part, jobs, devices, command, shard, tiny=tiny, say=say)
    page = _judge(parts, out, command, missing, tiny=tiny)
    return page, failed


def _plan(
    roots: Mapping[str, Path],
    out: Path,
    overrides: Mapping[str, Any],
    *,
    tiny: bool,
    only: Sequence[str],
    seeds: Sequence[int] | None,
    shard: str | None,
) -> list[Part]:
    parts = []
    for name in TABLES:
        comparison = load_comparison(name)
        if seeds is not None:
            comparison = with_seeds(comparison, seeds)
        # the paper trains one network for each row of this table: weeks of four GPUs
        if name == "imagenet" and seeds is None:
            comparison = with_seeds(comparison, [0])
        runs = plan(comparison, out / name, overrides, roots)
        if tiny:
            runs = [_make_tiny(run, overrides) for run in runs]
        runs = [run.refresh() for run in runs]
        usable = [run for run in runs if (run.recipe or {})["data"].get("root") is not None]
        patterns = () if name in only else only
        wanted = [run for run in usable if not patterns or matches(run, patterns)]
        chosen = choose(wanted, shard=shard) if wanted else []
        if wanted or not only:
            parts.append(Part(comparison, out / name, runs, chosen))
    return parts


def _make_tiny(run: Run, overrides: Mapping[str, Any]) -> Run:
    recipe = run.recipe or {}
    small = {
        "model": TINY_MODELS[recipe["model"]["name"]],
        "data": {"batch_size": 1 if recipe["task"] == "sound" else 2, "eval_batch_size": 2},
        "trainer": TINY_TRAINER,
    }
    return replace(run, recipe=build_recipe(merge(recipe, small, overrides)).to_dict())


def _show_estimate(parts: Sequence[Part], missing: Sequence[str], *, tiny: bool) -> str:
    rows, total = [], 0.0
    for part in parts:
        estimate = estimate_hours(part.chosen if not tiny else [])
        total += estimate.hours
        waiting = sum(run.result is None for run in part.chosen)
        rows.append(
            [part.comparison.name, f"{waiting} of {len(part.runs)}", f"{estimate.hours:.0f}"]
        )
    lines = [render(["table", "runs to do", "hours of a V100"], rows)]
    if not tiny:
        lines.append(
            f"about {total:.0f} hours of one Tesla V100, by the times that the paper prints for "
            "VGG16 and SEDnet; a newer GPU is several times faster, and jobs share the hours"
        )
    if missing:
        lines.append(f"without data, so not run: {', '.join(missing)}")
    return "\n".join(lines)


def _carry_out(
    part: Part,
    jobs: int,
    devices: Sequence[str],
    command: str,
    shard: str | None,
    *,
    tiny: bool,
    say: Say,
) -> int:
    name = part.comparison.name
    comparison = part.comparison
    if tiny:
        comparison = replace(comparison, title=f"A dry run, without scores: {comparison.title}")
    if not part.chosen:
        write_tables(comparison, part.runs, part.folder, command=command, scored=not tiny)
        return 0
    if tiny:
        runs = _run_here(part, command, say)
    else:
        whole = name == "imagenet" and len(devices) > 1
        chosen = _spread_over(part.chosen, len(devices)) if whole else part.chosen
        by_folder = {run.folder: run for run in chosen}
        runs = [by_folder.get(run.folder, run) for run in part.runs]

        def report(known: list[Run]) -> None:
            write_tables(comparison, known, part.folder, command=command)
            say(f"{name}: {sum(run.result is not None for run in known)} of {len(known)} runs")

        with hold(part.folder, shard):
            runs = run_all(
                runs,
                1 if whole else jobs,
                report,
                command,
                chosen=chosen,
                devices=() if whole else devices,
            )
    write_tables(comparison, runs, part.folder, command=command, scored=not tiny)
    mine = {run.folder for run in part.chosen}
    failed = [run for run in runs if run.error is not None and run.folder in mine]
    for run in failed:
        say(f"failed: {run.folder}: {run.error}")
    return len(failed)


def _spread_over(runs: Sequence[Run], devices: int) -> list[Run]:
    """Let each run take all devices, as many as share its batch equally."""
    return [
        replace(run, recipe=merge(run.recipe or {}, {"trainer": {"devices": _share(run, devices)}}))
        for run in runs
    ]


def _share(run: Run, devices: int) -> int:
    batch = (run.recipe or {})["data"]["batch_size"]
    return max(count for count in range(1, devices + 1) if batch % count == 0)


def _run_here(part: Part, command: str, say: Say) -> list[Run]:
    """Carry out tiny runs in this process: starting Python for each would take far longer."""
    chosen = {run.folder for run in part.chosen}
    done = []
    for run in part.runs:
        if run.folder in chosen and run.result is None:
            names = {key: getattr(run, key) for key in ("comparison", "family", "variant")}
            recipe = build_recipe(run.recipe or {})
            try:
                train(recipe, run.folder, command=command, names=names, progress=False)
            except (ValueError, RuntimeError, TypeError) as error:
                done.append(replace(run, error=f"{type(error).__name__}: {error}"))
                continue
            run = run.refresh()
        done.append(run)
    say(
        f"{part.comparison.name}: {sum(run.result is not None for run in done)} of {len(done)} runs"
    )
    return done


def _judge(
    parts: Sequence[Part], out: Path, command: str, missing: Sequence[str], *, tiny: bool
) -> Path:
    tables = {}
    for part in parts:
        runs = [run.refresh() for run in part.runs]
        tables[part.comparison.name] = (part.comparison, summarize(part.comparison, runs))
    scores = {
        name: list(judge_scores(summaries, tiny=tiny)) for name, (_, summaries) in tables.items()
    }
    sizes = list(judge_sizes(derive_rows(work=False)))
    return write_page(out, sizes, scores, tables, command=command, missing=missing, tiny=tiny)
