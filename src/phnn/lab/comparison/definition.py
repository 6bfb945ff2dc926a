"""What to compare, read from YAML."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from phnn import algebra
from phnn._names import check_choices, printable
from phnn.lab.packaged import read_comparison, read_recipe
from phnn.lab.recipe import Tree, build_recipe
from phnn.lab.tasks.registry import find_task
from phnn.lab.tasks.task import Task

BASELINE = "real"
_KEYS = ("title", "seeds", "families")
TIMES = ("train", "val", "test")  # what the paper prints besides scores
_PRIMARY = ""  # a number alone is the primary score of the task


@dataclass(frozen=True)
class Variant:
    """One line of a table.

    Attributes:
        family: The recipe, for people; no two recipes of a comparison share one.
        recipe: The recipe: a packaged name or a file.
        name: What it is called: "real", "n=4", an algebra, or anything else with options.
        options: The arguments of `create_model` that make it.
        seeds: The seeds, one run for each.
        paper: What the paper prints, by the names of the scores; "train", "val" and "test" are
            seconds for training iterations, a validation iteration and the test split.
        baseline: Whether the others of the family are compared with it.
    """

    family: str
    recipe: str
    name: str
    options: Tree
    seeds: tuple[int, ...]
    paper: Mapping[str, str]
    baseline: bool


@dataclass(frozen=True)
class Comparison:
    """What to compare.

    Attributes:
        name: The name of the comparison.
        title: The title of its table.
        task: The task of all its networks.
        variants: The lines of its table.
    """

    name: str
    title: str
    task: Task
    variants: tuple[Variant, ...]


def load_comparison(name: str | Path, *, trust: bool = False) -> Comparison:
    """Read a packaged comparison, or one from a YAML file.

    `families` maps recipes to their variants, and each variant to nothing, to the paper's score, or
    to options: those of the network, and `seeds`, `paper` and `baseline`. `paper` is a score, or
    maps names of scores and times to them. A recipe is a packaged name or a file beside the
    comparison. The others of a family are compared with its baseline: the variant with
    `baseline: true`, or else `real`. A variant that is called package.module:function is the
    network that this function of yours returns.

    Args:
        name: The name of a packaged comparison, or the path of a file.
        trust: Whether files may name functions of yours.
    """
    tree = read_comparison(name, trust=trust)
    check_choices("key of a comparison", tree, _KEYS)
    families = tree.get("families")
    if not families:
        raise ValueError(f"the comparison {name} has no families: recipes with their variants")
    if not isinstance(families, Mapping):
        raise ValueError(
            f"families of the comparison {name} must map recipes to variants, such as "
            f"'digits: {{real: , n=4: }}', and not be {families!r}"
        )
    seeds = tree.get("seeds", [0])
    variants: list[Variant] = []
    for family, label in _label_families(families).items():
        recipe, entries = _find_recipe(str(family), Path(name).parent), families[family]
        if not isinstance(entries, Mapping) or not entries:
            raise ValueError(
                f"the family {family} of the comparison {name} has no variants, such as 'real:' "
                "or 'n=4:'"
            )
        baseline = _find_baseline(entries)
        made = [
            _make_variant(label, recipe, str(v), e, seeds, baseline) for v, e in entries.items()
        ]
        _check_twice(f"variant of the family {family}", [variant.name for variant in made])
        variants += made
    short, task = Path(name).stem, _common_task(variants, trust)
    variants = [replace(variant, paper=_name_scores(variant, task)) for variant in variants]
    title = printable(str(tree.get("title", short)))
    return Comparison(short, title, task, tuple(variants))


def with_seeds(comparison: Comparison, seeds: Sequence[int]) -> Comparison:
    """Return a comparison in which all variants have these seeds, instead of their own."""
    own = _check_seeds(list(seeds))
    variants = tuple(replace(variant, seeds=own) for variant in comparison.variants)
    return replace(comparison, variants=variants)


def _name_scores(variant: Variant, task: Task) -> dict[str, str]:
    known = [*(score.name for score in task.scores), *TIMES]
    named = {key or task.primary.name: text for key, text in variant.paper.items()}
    check_choices("score of the paper", named, known)
    return named


def _label_families(families: Mapping[Any, Any]) -> dict[Any, str]:
    """Return what to call each recipe: the name of its file, or all of it where names are equal."""
    counts = Counter(Path(str(family)).stem for family in families)
    labels = {
        family: stem if counts[stem := Path(str(family)).stem] == 1 else str(family)
        for family in families
    }
    _check_twice("family", list(labels.values()))
    return labels


def _check_twice(what: str, values: list[Any]) -> None:
    twice = [value for value, count in Counter(values).items() if count > 1]
    if twice:
        raise ValueError(f"the {what} {twice[0]!r} appears twice; give each one once")


def _common_task(variants: list[Variant], trust: bool) -> Task:
    recipes = dict.fromkeys(variant.recipe for variant in variants)
    tasks = {recipe: build_recipe(read_recipe(recipe, trust=trust)).task for recipe in recipes}
    if len(set(tasks.values())) > 1:
        listed = ", ".join(f"{recipe}: {task}" for recipe, task in tasks.items())
        raise ValueError(f"the recipes of a comparison must be of one task, not {listed}")
    return find_task(next(iter(tasks.values())))


def _find_recipe(family: str, folder: Path) -> str:
    beside = folder / family
    return str(beside) if beside.is_file() else family


def _find_baseline(entries: Mapping[Any, Any]) -> str:
    marked = (n for n, e in entries.items() if isinstance(e, Mapping) and e.get("baseline"))
    return str(next(marked, BASELINE))


def _make_variant(
    family: str, recipe: str, name: str, entry: Any, seeds: Any, baseline: str
) -> Variant:
    options = dict(entry) if isinstance(entry, Mapping) else {"paper": entry}
    options.pop("baseline", None)
    paper = options.pop("paper", None)
    printed = paper if isinstance(paper, Mapping) else {} if paper is None else {_PRIMARY: paper}
    return Variant(
        family=family,
        recipe=recipe,
        name=name,
        seeds=_check_seeds(options.pop("seeds", seeds)),
        options={**_named_options(name, bool(options)), **options},
        paper={str(key): _show_printed(str(key), value) for key, value in printed.items()},
        baseline=name == baseline,
    )


def _show_printed(key: str, value: Any) -> str:
    """Return a number as the paper prints it: YAML reads 67.990 as a number without the zero."""
    if not isinstance(value, float | int) or key in TIMES or round(value, 3) != value:
        return str(value)
    return f"{value:.3f}"


def _check_seeds(seeds: Any) -> tuple[int, ...]:
    if (
        not isinstance(seeds, list)
        or not seeds
        or not all(type(s) is int and s >= 0 for s in seeds)
    ):
        raise ValueError(f"seeds={seeds!r} must be a list of numbers, such as [0, 1, 2]")
    _check_twice("seed", seeds)
    return tuple(seeds)


def _named_options(name: str, described: bool) -> Tree:
    """Return the options that a name alone stands for."""
    learned = re.fullmatch(r"n=(\d+)", name)
    if learned:
        return {"n": int(learned[1])}
    if name in algebra.names() and name != BASELINE:
        return {"algebra": name}
    if ":" in name:
        return {"name": name}
    if name != BASELINE and not described:
        check_choices("variant", [name], [BASELINE, "n=2", "n=3", "n=4", *algebra.names()])
    return {}
