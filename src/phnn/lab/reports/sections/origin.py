"""Where the results come from, and how to have them again."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from phnn.lab.recipe import PRIVATE, Tree
from phnn.lab.reports import page
from phnn.lab.reports.page import Section
from phnn.lab.reports.results import Results


def show_runs(results: Results) -> Section:
    """Returns the section with all runs: finished, failed and waiting."""
    rows = [
        [
            run.family,
            run.variant,
            str(run.seed),
            run.status,
            run.error or results.task.primary.show((run.result or {}).get(_key(results), 0.0))
            if run.status != "waiting"
            else "",
            (run.result or {}).get("ended", ""),
        ]
        for run in results.runs
    ]
    head = ["recipe", "variant", "seed", "status", "outcome", "ended"]
    counts = ", ".join(
        f"{sum(run.status == status for run in results.runs)} {status}"
        for status in ("finished", "failed", "waiting")
        if any(run.status == status for run in results.runs)
    )
    return Section("runs", "Runs", [page.paragraph(f"{counts}."), page.table(head, rows)])


def _key(results: Results) -> str:
    return f"test_{results.task.primary.name}"


def show_origin(results: Results) -> Section:
    """Returns the section with the environment, the seeds, the recipes and the command."""
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
    parts = [page.facts((name, text) for name, text in known if text)]
    if results.command:
        parts += [page.paragraph("The command that repeats it:"), page.code(results.command)]
    for family in dict.fromkeys(run.family for run in results.runs):
        recipe = next((run.recipe for run in results.runs if run.family == family), None)
        if recipe is not None:
            text = yaml.safe_dump(_hide(recipe), sort_keys=False, allow_unicode=True)
            parts.append(page.fold(f"Recipe of the first run of {family}", page.code(text)))
    return Section("origin", "How to repeat it", parts)


def _hide(recipe: Tree) -> Tree:
    """A recipe with the names of files alone, not where they are on somebody's machine."""
    hidden = dict(recipe)
    if hidden.get("start") is not None:
        hidden["start"] = Path(hidden["start"]).name
    hidden["data"] = {
        key: Path(value).name if key in PRIVATE and value is not None else value
        for key, value in recipe.get("data", {}).items()
    }
    return hidden


def _distinct(values: Iterable[Any]) -> str:
    return ", ".join(str(value) for value in dict.fromkeys(values) if value is not None)
