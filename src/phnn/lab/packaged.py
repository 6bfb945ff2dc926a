"""Recipes and comparisons, by a packaged name or from a YAML file."""

from __future__ import annotations

from copy import deepcopy
from functools import cache
from importlib.resources import files
from pathlib import Path

from phnn._names import check_choices
from phnn.lab.files import parse_yaml, read_text, refuse_functions
from phnn.lab.recipe import Tree, merge


def list_recipes() -> list[str]:
    """Return the names of the packaged recipes."""
    return list(_packaged("recipes"))


def read_recipe(name: str | Path, *, trust: bool = False) -> Tree:
    """Return a packaged recipe, or one from a YAML file, merged into the recipe it is based on.

    A recipe with `base: other` holds only what differs from the other recipe, which is a packaged
    name or a file beside it. The description of a run, `config.yaml`, is a recipe as well.

    Args:
        name: A name of `list_recipes()` or the path of a file.
        trust: Whether a file may name functions, package.module:function, which training calls.
    """
    tree = _resolve(*_find("recipes", "recipe", name, trust), trust)
    tree.pop("run", None)
    return tree


def read_comparison(name: str | Path, *, trust: bool = False) -> Tree:
    """Return a packaged comparison, or one from a YAML file, as it is written.

    Args:
        name: A name of `list_comparisons()` or the path of a file.
        trust: Whether a file may name functions, package.module:function, which training calls.
    """
    return _find("comparisons", "comparison", name, trust)[0]


def list_comparisons() -> list[str]:
    """Return the names of the packaged comparisons."""
    return list(_packaged("comparisons"))


def _resolve(tree: Tree, folder: Path, trust: bool, seen: tuple[str, ...] = ()) -> Tree:
    base = tree.pop("base", None)
    if base is None:
        return tree
    if base in seen:
        raise ValueError(f"the recipe {base!r} is based on itself: {' → '.join([*seen, base])}")
    beside = folder / str(base)
    parent, where = _find("recipes", "recipe", beside if beside.is_file() else base, trust)
    return merge(_resolve(parent, where, trust, (*seen, base)), tree)


def _find(kind: str, noun: str, name: str | Path, trust: bool) -> tuple[Tree, Path]:
    """Return a packaged or given YAML mapping, and its folder."""
    path = Path(name)
    if path.suffix in (".yaml", ".yml"):
        if not path.is_file():
            raise FileNotFoundError(f"there is no {noun} file {path}")
        tree = _parse(read_text(path), str(path))
        if not trust:
            refuse_functions(tree, path)
        return tree, path.parent
    packaged = _packaged(kind)
    if path.suffix and str(name) not in packaged:
        raise ValueError(
            f"{path} is no {noun}: give a packaged name, such as {next(iter(packaged))}, or a YAML "
            "file (.yaml)"
        )
    check_choices(noun, [str(name)], packaged)
    return deepcopy(packaged[str(name)]), Path()


@cache
def _packaged(kind: str) -> dict[str, Tree]:
    """Return every packaged recipe or comparison by its name."""
    found: dict[str, Tree] = {}
    for file in sorted(files("phnn.lab").joinpath(kind).iterdir(), key=lambda file: file.name):
        tree = _parse(file.read_text(encoding="utf-8"), file.name)
        found |= _cross(tree) if "networks" in tree else {file.name.removesuffix(".yaml"): tree}
    return found


def _cross(tree: Tree) -> dict[str, Tree]:
    """Return NETWORK-DATASET for every pair of a file with `networks` and `datasets`."""
    return {
        f"{network}-{dataset}": merge(tree["common"], data, options)
        for network, options in tree["networks"].items()
        for dataset, data in tree["datasets"].items()
    }


def _parse(text: str, name: str) -> Tree:
    tree = parse_yaml(text, name)
    if not isinstance(tree, dict):
        raise ValueError(f"{name} must hold a mapping such as 'model: {{name: resnet20}}'")
    return tree
