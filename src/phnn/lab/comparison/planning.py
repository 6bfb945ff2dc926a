"""From a comparison to its runs."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from phnn.lab.comparison.definition import Comparison, Variant
from phnn.lab.recipe import build_recipe, merge, read_recipe
from phnn.lab.runs import Run, RunFolderError, check_folder

LONGEST = 120  # bytes of the name of a folder, before its hash


def plan(comparison: Comparison, out: Path, overrides: Mapping[str, Any]) -> list[Run]:
    """Return the runs of a comparison: first every variant once, then the further seeds.

    Args:
        comparison: What to compare.
        out: The folder for the folders of the runs.
        overrides: Options that replace those of every recipe. They cannot replace what makes the
            difference between the runs.
    """
    task = overrides.get("task", comparison.task.name)
    if task != comparison.task.name:
        raise ValueError(
            f"task={task} cannot be given: the comparison {comparison.name} is of the task "
            f"{comparison.task.name}"
        )
    _check_differences(comparison, overrides)
    pairs = [(variant, seed) for variant in comparison.variants for seed in variant.seeds]
    folders = iter(_name_folders(pairs))
    runs: list[tuple[int, Run]] = []
    for variant in comparison.variants:
        own = {"model": variant.options}
        recipe = build_recipe(merge(read_recipe(variant.recipe), own, overrides))
        names = {"family": variant.family, "variant": variant.name, "comparison": comparison.name}
        for order, seed in enumerate(variant.seeds):
            folder = out / "runs" / next(folders)
            runs.append((order, Run.make(folder, replace(recipe, seed=seed), **names)))
    return [run for _, run in sorted(runs, key=lambda pair: pair[0])]


def _check_differences(comparison: Comparison, overrides: Mapping[str, Any]) -> None:
    """Raise an error for options that would make runs equal which the table shows apart."""
    own = {"n", "algebra"}.union(*(variant.options for variant in comparison.variants))
    given = {f"model.{option}": value for option, value in overrides.get("model", {}).items()}
    if "seed" in overrides:
        given["seed"] = overrides["seed"]
    for name, value in given.items():
        if name == "seed" or name.removeprefix("model.") in own:
            raise ValueError(
                f"{name}={value} cannot be given: the runs of the comparison {comparison.name} "
                "differ in it. Write your own comparison: a YAML file with seeds and families"
            )


def _name_folders(pairs: Sequence[tuple[Variant, int]]) -> list[str]:
    """Return a name for the folder of each run; names that would be equal get a hash."""
    full = [f"{variant.family}-{variant.name}-seed{seed}" for variant, seed in pairs]
    slugs = [re.sub(r"[^\w=.-]+", "-", name) for name in full]
    # some file systems do not tell upper from lower case, or é from e with an accent
    alike = [unicodedata.normalize("NFKD", slug).casefold() for slug in slugs]
    counts = Counter(alike)
    return [
        slug
        if counts[same] == 1 and len(slug.encode()) <= LONGEST
        else f"{slug.encode()[:LONGEST].decode(errors='ignore')}-{_hash(*pair)}"
        for slug, same, pair in zip(slugs, alike, pairs, strict=True)
    ]


def _hash(variant: Variant, seed: int) -> str:
    text = "\0".join([variant.family, variant.name, str(seed)])
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def check_folders(runs: Iterable[Run]) -> None:
    """Raise an error when folders hold runs of other recipes than those that are asked for.

    A run that failed may have been continued with other options, of those that may change then.

    Args:
        runs: The runs that are asked for.
    """
    refused = []
    for run in runs:
        try:
            check_folder(run.folder, build_recipe(run.recipe or {}), asked=True)
        except RunFolderError as error:
            refused.append(error)
    if refused:
        others = f"; so do {len(refused) - 1} more folders" if len(refused) > 1 else ""
        raise RunFolderError(f"{refused[0]}{others}")
