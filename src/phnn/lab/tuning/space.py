"""What a study searches: options of a recipe, each with the values that it may have."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phnn._names import check_choices
from phnn.lab.files import FileError, parse_yaml, read_text, refuse_functions
from phnn.lab.recipe import Recipe, Tree, merge

if TYPE_CHECKING:
    from optuna import Trial

RANGES = ("log", "uniform", "integers")
SYNTAX = "a list such as [1,2,4], log(0.01,1), uniform(0,1) or integers(1,8)"
FACTOR = 8.0  # by default, how far rates may be from those of the recipe
SIZES = (1, 2, 3, 4, 8)  # of algebras, by default
RANKS = (None, 2, 4, 7)  # of algebras, by default


@dataclass(frozen=True)
class Dimension:
    """One option of a recipe, and its values.

    Attributes:
        key: The option, such as model.n.
        choices: Its values; empty for a range.
        kind: The kind of a range: log, uniform or integers; empty for choices.
        low: The lower end of the range.
        high: The upper end of the range.
    """

    key: str
    choices: tuple[Any, ...] = ()
    kind: str = ""
    low: float = 0.0
    high: float = 0.0

    def suggest(self, trial: Trial) -> Any:
        """Return the value of a trial."""
        if not self.kind:
            return trial.suggest_categorical(self.key, self.choices)
        if self.kind == "integers":
            return trial.suggest_int(self.key, int(self.low), int(self.high))
        return trial.suggest_float(self.key, self.low, self.high, log=self.kind == "log")

    def show(self) -> str:
        """Return the values as they are written on the command line."""
        if not self.kind:
            names = ("null" if value is None else str(value) for value in self.choices)
            return f"[{','.join(names)}]"
        return f"{self.kind}({self.low:g},{self.high:g})"


def read_space(entries: Sequence[str], *, trust: bool = False) -> tuple[Dimension, ...]:
    """Return the dimensions that a user opens.

    Args:
        entries: Texts such as "model.n=[1,2,4]" and "optimizer.lr=log(0.01,1)", or the paths of
            YAML files that map options to such values.
        trust: Whether files may name functions, package.module:function, which training calls.

    Raises:
        ValueError: An entry cannot be understood, or an option is opened twice.
    """
    pairs: list[tuple[str, Any]] = []
    for entry in entries:
        key, equals, value = entry.partition("=")
        if not equals and Path(entry).suffix in (".yaml", ".yml"):
            pairs += _read_file(Path(entry), trust)
        elif not equals or not value.strip():
            raise ValueError(f"the space {entry!r} must be OPTION=VALUES, with {SYNTAX}")
        else:
            pairs.append((key.strip(), value.strip()))
    found: dict[str, Dimension] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the option {key} is opened twice; give its values once")
        found[key] = _parse(key, value)
    return tuple(found.values())


def default_space(recipe: Recipe) -> tuple[Dimension, ...]:
    """Return n, the rank, and the rates of filters and algebras, around those of a recipe."""
    optimizer = recipe.optimizer
    rates = ("filter_scale", "algebra_scale")
    return (
        Dimension("model.n", SIZES),
        Dimension("model.rank", RANKS),
        *(
            Dimension(f"optimizer.{name}", (), "log", rate / FACTOR, rate * FACTOR)
            for name, rate in ((name, getattr(optimizer, name)) for name in rates)
        ),
    )


def apply(recipe: Mapping[str, Any], values: Mapping[str, Any]) -> Tree:
    """Return a recipe with options replaced.

    Args:
        recipe: The recipe as a nested mapping.
        values: The values by option.

    Example:
        >>> apply({"model": {"n": 2, "name": "vgg16"}}, {"model.n": 4, "seed": 1})
        {'model': {'n': 4, 'name': 'vgg16'}, 'seed': 1}
    """
    tree: Tree = dict(recipe)
    for key, value in values.items():
        section, _, option = key.partition(".")
        tree = merge(tree, {section: {option: value} if option else value})
    return tree


def _read_file(path: Path, trust: bool) -> list[tuple[str, Any]]:
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path} with a space")
    tree = parse_yaml(read_text(path), path.name)
    if not isinstance(tree, Mapping):
        raise ValueError(f"{path} must map options to values: 'model.n: [1, 2, 4]'")
    if not trust:
        refuse_functions(tree, path)
    pairs: list[tuple[str, Any]] = []
    for key, value in tree.items():
        if isinstance(value, Mapping):
            pairs += [(f"{key}.{option}", values) for option, values in value.items()]
        else:
            pairs.append((str(key), value))
    return pairs


def _parse(key: str, value: Any) -> Dimension:
    section = key.partition(".")[0]
    check_choices("section of a recipe", [section], [field.name for field in fields(Recipe)])
    if key == "seed":
        raise ValueError("seed cannot be tuned: a lucky seed is no better network; see --confirm")
    if isinstance(value, str):
        words = re.fullmatch(r"(\w+)\s*\(([^,()]+),([^,()]+)\)", value)
        if words is not None and words[1] in RANGES:
            return _parse_range(key, words[1], words[2], words[3])
        try:
            value = parse_yaml(value, key)
        except FileError as error:
            raise ValueError(f"{key}={value} must be {SYNTAX}; {error}") from error
    if not isinstance(value, list) or not value:
        raise ValueError(f"{key}={value} must be {SYNTAX}")
    if not all(each is None or isinstance(each, bool | int | float | str) for each in value):
        raise ValueError(f"{key}={value} must be a list of numbers, names, true, false or null")
    if len(set(map(repr, value))) < len(value):
        raise ValueError(f"{key}={value} has a value twice")
    return Dimension(key, tuple(value))


def _parse_range(key: str, kind: str, low: str, high: str) -> Dimension:
    text = f"{key}={kind}({low},{high})"
    try:
        ends = float(low), float(high)
    except ValueError:
        raise ValueError(f"{text} must have two numbers") from None
    if not all(map(math.isfinite, ends)) or ends[0] >= ends[1]:
        raise ValueError(f"{text} must go from a number to a larger one")
    if kind == "log" and ends[0] <= 0:
        raise ValueError(f"{text} must begin above 0, where a logarithm is defined")
    if kind == "integers" and not all(end.is_integer() for end in ends):
        raise ValueError(f"{text} must have two whole numbers")
    return Dimension(key, (), kind, *ends)
