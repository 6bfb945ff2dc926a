"""From a comparison to its runs."""

from __future__ import annotations

import fnmatch
import hashlib
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from phnn.lab.comparison.definition import Comparison, Variant
from phnn.lab.packaged import read_recipe
from phnn.lab.recipe import build_recipe, merge
from phnn.lab.runs import Run, RunFolderError, check_folder

LONGEST = 120  # bytes of the name of a folder, before its hash


def plan(
    comparison: Comparison,
    out: Path,
    overrides: Mapping[str, Any],
    roots: Mapping[str, Path] | None = None,
) -> list[Run]:
    """Return the runs of a comparison: first every variant once, then the further seeds.

    Args:
        comparison: What to compare.
        out: The folder for the folders of the runs.
        overrides: Options that replace those of every recipe. They cannot replace what makes the
            difference between the runs.
        roots: The folder of each data set, by its name in the recipes, where they differ.
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
        # load_comparison has read it, with the trust of its caller
        tree = merge(read_recipe(variant.recipe, trust=True), own, overrides)
        if ":" in variant.options.get("name", ""):  # the options of the recipe are its network's
            tree["model"] = merge(variant.options, overrides.get("model", {}))
        root = (roots or {}).get(tree.get("data", {}).get("name"))
        recipe = build_recipe(tree if root is None else merge(tree, {"data": {"root": str(root)}}))
        names = {"family": variant.family, "variant": variant.name, "comparison": comparison.name}
        for order, seed in enumerate(variant.seeds):
            folder = out / "runs" / next(folders)
            runs.append((order, Run.make(folder, replace(recipe, seed=seed), **names)))
    return [run for _, run in sorted(runs, key=lambda pair: pair[0])]


def choose(runs: Sequence[Run], only: Sequence[str] = (), shard: str | None = None) -> list[Run]:
    """Return the runs that one process carries out.

    Args:
        runs: All runs of a comparison.
        only: Patterns of families, of variants, or of both as "FAMILY VARIANT"; all by default.
        shard: "3/20" for the third of twenty shares. Shares of the same runs never overlap.

    Example:
        >>> runs = [Run(Path(), "digits", f"n={n}", seed=0) for n in (2, 3, 4)]
        >>> [run.variant for run in choose(runs, ["n=[24]"])]
        ['n=2', 'n=4']
        >>> [run.variant for run in choose(runs, shard="2/2")]
        ['n=3']
    """
    chosen = [run for run in runs if not only or matches(run, only)]
    if not chosen:
        families, variants = ({getattr(run, key): None for run in runs} for key in _LABELS)
        raise ValueError(
            f"only={','.join(only)!r} matches no run; the families are {', '.join(families)}, the "
            f"variants {', '.join(map(repr, variants))}"
        )
    number, count = (1, 1) if shard is None else parse_shard(shard)
    return chosen[number - 1 :: count]


_LABELS = ("family", "variant")


def matches(run: Run, patterns: Sequence[str]) -> bool:
    """Return whether the recipe of a run, its variant, or both match one of some patterns."""
    names = (run.family, run.variant, f"{run.family} {run.variant}")
    return any(fnmatch.fnmatchcase(name, each) for name in names for each in patterns)


def parse_shard(text: str) -> tuple[int, int]:
    """Return the number of a share, from 1, and how many there are.

    Example:
        >>> parse_shard("3/20")
        (3, 20)
    """
    found = re.fullmatch(r"(\d+)/(\d+)", text)
    number, count = map(int, found.groups()) if found else (0, 0)
    if not 1 <= number <= count:
        raise ValueError(f"shard={text} must be K/N with 1 ≤ K ≤ N, such as 3/20")
    return number, count


def _check_differences(comparison: Comparison, overrides: Mapping[str, Any]) -> None:
    """Raise an error for options that would make runs equal which the table shows apart."""
    own = {"n", "algebra"}.union(*(variant.options for variant in comparison.variants))
    given = {f"model.{option}": value for option, value in overrides.get("model", {}).items()}
    if "seed" in overrides:
        given["seed"] = overrides["seed"]
    for name, value in given.items():
        if name == "seed" or name.removeprefix("model.") in own:
            own_way = "Write your own comparison: a YAML file with seeds and families"
            way = "Give --seeds" if name == "seed" else own_way
            raise ValueError(
                f"{name}={value} cannot be given: the runs of the comparison {comparison.name} "
                f"differ in it. {way}"
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
