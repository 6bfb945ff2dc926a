"""What to compare, read from YAML."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phnn import algebra
from phnn._names import check_choices
from phnn.lab.recipe import Tree, build_recipe, read_comparison, read_recipe
from phnn.lab.tasks.registry import find_task
from phnn.lab.tasks.task import Task

BASELINE = "real"
_KEYS = ("title", "seeds", "families")


@dataclass(frozen=True)
class Variant:
    """One line of a table.

    Attributes:
        family: The recipe, for people; no two recipes of a comparison share one.
        recipe: The recipe: a packaged name or a file.
        name: What it is called: "real", "n=4", an algebra, or anything else with options.
        options: The arguments of `create_model` that make it.
        seeds: The seeds, one run for each.
        paper: The paper's score, as printed: the accuracy in percent, or the F-score.
        baseline: Whether the others of the family are compared with it.
    """

    family: str
    recipe: str
    name: str
    options: Tree
    seeds: tuple[int, ...]
    paper: str | None
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


def load_comparison(name: str | Path) -> Comparison:
    """Read a packaged comparison, or one from a YAML file.

    `families` maps recipes to their variants, and each variant to nothing, to the paper's score, or
    to options: those of the network, and `seeds`, `paper` and `baseline`. A recipe is a packaged
    name or a file beside the comparison. The others of a family are compared with its baseline: the
    variant with `baseline: true`, or else `real`.

    Args:
        name: The name of a packaged comparison, or the path of a file.
    """
    tree = read_comparison(name)
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
                f"the family {family} of the comparison {name} has no variants, such as real: or "
                "n=4:"
            )
        baseline = _find_baseline(entries)
        made = [
            _make_variant(label, recipe, str(v), e, seeds, baseline) for v, e in entries.items()
        ]
        _check_twice(f"variant of the family {family}", [variant.name for variant in made])
        variants += made
    short = Path(name).stem
    return Comparison(short, str(tree.get("title", short)), _common_task(variants), tuple(variants))


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
        raise ValueError(f"the {what} {twice[0]} appears twice; give each one once")


def _common_task(variants: list[Variant]) -> Task:
    recipes = dict.fromkeys(variant.recipe for variant in variants)
    tasks = {recipe: build_recipe(read_recipe(recipe)).task for recipe in recipes}
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
    return Variant(
        family=family,
        recipe=recipe,
        name=name,
        seeds=_check_seeds(options.pop("seeds", seeds)),
        options={**_named_options(name, bool(options)), **options},
        # YAML reads 67.990 as a number; the paper prints three digits
        paper=f"{paper:.3f}" if isinstance(paper, float | int) else paper,
        baseline=name == baseline,
    )


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
    if name != BASELINE and not described:
        check_choices("variant", [name], [BASELINE, "n=2", "n=3", "n=4", *algebra.names()])
    return {}
