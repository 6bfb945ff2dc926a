"""The sections of a report that say where its results come from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from phnn.lab import pages
from phnn.lab.pages import Section
from phnn.lab.recipe import PRIVATE, Tree
from phnn.lab.reports.results import Results
from phnn.lab.runs import Run
from phnn.lab.tasks import Score
from phnn.lab.tasks.report import group_families


def show_runs(results: Results) -> Section:
    """Return the section with all runs: finished, failed and waiting."""
    head = ["recipe", "variant", "seed", "status", "outcome", "ended"]
    rows = [
        [
            run.family,
            run.variant,
            str(run.seed),
            run.status,
            _describe_outcome(run, results.task.primary),
            (run.result or {}).get("ended", ""),
        ]
        for run in results.runs
    ]
    counts = Counter(run.status for run in results.runs)
    statuses = ("finished", "failed", "waiting")
    summary = ", ".join(f"{counts[status]} {status}" for status in statuses if counts[status])
    return Section("runs", "Runs", [pages.paragraph(f"{summary}."), pages.table(head, rows)])


def _describe_outcome(run: Run, score: Score) -> str:
    if run.result is None:
        return run.error or ""
    return score.show(run.result[f"test_{score.name}"])


def show_provenance(results: Results) -> Section:
    """Return the section with the environment, the seeds, the recipes and the command."""
    ended = [run.result for run in results.runs if run.result is not None]
    known = [
        ("machine", _distinct(result["machine"] for result in ended)),
        ("device", _distinct(f"{r['device']} × {r['devices']}" for r in ended)),
        ("threads", _distinct(result["threads"] for result in ended)),
        ("precision", _distinct(result["precision"] for result in ended)),
        *(
            (name, _distinct(result["versions"].get(name, "") for result in ended))
            for name in dict.fromkeys(name for result in ended for name in result["versions"])
        ),
        ("seeds", _distinct(run.seed for run in results.runs)),
        ("selected", _distinct(result["selected"] for result in ended)),
    ]
    elements = [pages.facts((name, text) for name, text in known if text)]
    if results.command:
        about = pages.paragraph("The command that repeats the runs:")
        elements += [about, pages.code(results.command)]
    for family, (first, *_) in group_families(results.runs).items():
        recipe = first.recipe
        if recipe is not None:
            text = yaml.safe_dump(_hide(recipe), sort_keys=False, allow_unicode=True)
            summary = f"Recipe of the first run of {family}"
            elements.append(pages.fold(summary, pages.code(text)))
    return Section("provenance", "How to repeat it", elements)


def _hide(recipe: Tree) -> Tree:
    """Return a recipe with the names of files, without the folders of somebody's machine."""
    hidden = dict(recipe)
    for key in ("start", "distill"):
        if hidden.get(key) is not None:
            hidden[key] = Path(hidden[key]).name
    hidden["data"] = {
        key: Path(value).name if key in PRIVATE and value is not None else value
        for key, value in recipe.get("data", {}).items()
    }
    return hidden


def _distinct(values: Iterable[Any]) -> str:
    return ", ".join(str(value) for value in dict.fromkeys(values) if value is not None)
