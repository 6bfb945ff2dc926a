"""A training run: a folder with one file that describes it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from phnn.io.atomic import write_text
from phnn.lab import files
from phnn.lab.recipe import PRIVATE, Recipe, Tree, build_recipe, differences, keep_known, merge

CONFIG = "config.yaml"  # describes the run: its recipe, and a section `run`
RESULT = "result.json"  # its outcome; written last
VALIDATION = "validation.json"  # the outcome of a trial, which is not tested
FAILURE = "failure.json"  # what stopped it
METRICS = "metrics.csv"  # a row for each epoch
MODEL = "model.safetensors"
LAST = "checkpoints/last.ckpt"
PREVIOUS = "checkpoints/previous.ckpt"  # the one before it
BEST = "checkpoints/best.ckpt"
PROGRESS = ".progress"  # how far it is, while a comparison shows it
REAL = "real"  # layers without an algebra
FORMAT = (1, 0)  # of config.yaml: newer minor versions load, other major versions do not
_ASKED = "recipe.yaml"  # in folders from before format 1.0: the recipe that a comparison asked for


class RunFolderError(ValueError):
    """A folder that cannot be used for a run."""


@dataclass(frozen=True)
class Run:
    """One training run.

    Attributes:
        folder: The folder of the run. It need not exist.
        family: The recipe, for people.
        variant: The network, for people.
        seed: The seed of the run.
        recipe: The recipe as a nested mapping; None when the folder is not here.
        result: The contents of `result.json`; None before the run has ended.
        error: What stopped the run.
        comparison: The comparison that the run belongs to; empty when there is none.
        began: The options with which the run began, where they have changed since.
    """

    folder: Path
    family: str
    variant: str
    seed: int
    recipe: Tree | None = None
    result: dict[str, Any] | None = None
    error: str | None = None
    comparison: str = ""
    began: Tree | None = None

    @property
    def status(self) -> str:
        """Either "finished", "failed" or "waiting"."""
        return "failed" if self.error else "waiting" if self.result is None else "finished"

    @property
    def name(self) -> str:
        """The name of the run, for people."""
        return f"{self.family} {self.variant}, seed {self.seed}"

    @property
    def asked(self) -> Tree:
        """The recipe with which the run began."""
        return merge(self.recipe or {}, self.began or {})

    @property
    def has_model(self) -> bool:
        """Whether the trained network is here."""
        return (self.folder / MODEL).is_file()

    @property
    def is_own(self) -> bool:
        """Whether the network is one that a function of the user returns."""
        return ":" in str((self.recipe or {}).get("model", {}).get("name", ""))

    @property
    def is_real(self) -> bool:
        """Whether the network has no algebra; one that starts from a file may have one."""
        model = (self.result or {}).get("model", {})
        started = (self.recipe or {}).get("start") is not None
        plain = not started and not self.is_own
        return plain and model.get("n") is None and model.get("algebra") is None

    def to_row(self) -> dict[str, Any]:
        """Return the run as JSON can hold it, without its recipe."""
        row = {name: getattr(self, name) for name in ("family", "variant", "seed")}
        row |= {"folder": self.folder.name, "status": self.status}
        return {**row, "error": self.error, "result": self.result}

    @classmethod
    def from_row(cls, row: Mapping[str, Any], runs: Path) -> Run:
        """Return the run that `to_row` wrote.

        Args:
            row: What `to_row` returned.
            runs: The folder that holds the folders of the runs.
        """
        folder = runs / Path(row["folder"]).name  # never outside of `runs`
        if folder.name in ("", "..") or folder == runs or folder.is_symlink():
            raise RunFolderError(f"{row['folder']!r} is not the folder of a run in {runs}")
        known = {name: row[name] for name in ("family", "variant", "seed", "result", "error")}
        recipe = _read_config(folder)[0] if (folder / CONFIG).is_file() else None
        return cls(folder, recipe=recipe, **known)

    @classmethod
    def open(cls, folder: Path) -> Run:
        """Read the run in a folder.

        Args:
            folder: The folder of a run that has begun.

        Raises:
            RunFolderError: The description is damaged, or its format is not known.
        """
        tree, about = _read_config(folder)
        try:
            recipe = build_recipe(tree)
        except (TypeError, ValueError) as error:
            raise _not_a_recipe(folder / CONFIG, error) from error
        names = ("comparison", "family", "variant", "began")
        run = cls.make(folder, recipe, **{name: about[name] for name in names if name in about})
        return run.refresh()

    @classmethod
    def make(cls, folder: Path, recipe: Recipe, **names: Any) -> Run:
        """Return a new run.

        Args:
            folder: The folder of the run.
            recipe: The recipe.
            names: Other attributes. By default the data set is the family and the network the
                variant.
        """
        names.setdefault("family", str(recipe.data.get("name", recipe.task)))
        names.setdefault("variant", describe_network(recipe))
        return cls(folder, seed=recipe.seed, recipe=recipe.to_dict(), **names)

    def refresh(self) -> Run:
        """Return the run with its outcome, as its folder has it now.

        A result that belongs to another recipe is an error, not an outcome.
        """
        result, failure = read_json(self.folder / RESULT), read_json(self.folder / FAILURE)
        if result is None:
            return replace(self, result=None, error=failure and str(failure.get("error")))
        here = (self.folder / CONFIG).is_file()
        tree = _read_config(self.folder)[0] if here else self.recipe
        error = find_mismatch(self.folder / RESULT, result, tree)
        return replace(self, result=None if error else result, error=error)

    def resume(self, recipe: Recipe) -> Run:
        """Return this run as it continues with a recipe, which may differ in how it is computed."""
        first, new = self.asked, recipe.to_dict()
        began: Tree = {}
        for section in ("data", "trainer"):
            old, now = first[section], new[section]
            changed = {k: old.get(k) for k in sorted({*old, *now}) if old.get(k) != now.get(k)}
            began |= {section: changed} if changed else {}
        return replace(self, recipe=new, began=began or None)

    def write(self) -> None:
        """Write the description of the run into its folder."""
        self.folder.mkdir(parents=True, exist_ok=True)
        about: Tree = {"format": ".".join(map(str, FORMAT))}
        if self.comparison:
            about |= {name: getattr(self, name) for name in ("comparison", "family", "variant")}
        if self.began:
            about["began"] = self.began
        tree = {"run": about, **(self.recipe or {})}
        write_text(self.folder / CONFIG, yaml.safe_dump(tree, sort_keys=False, allow_unicode=True))


def describe_network(recipe: Recipe) -> str:
    """Return the name of a network, what its layers are, and what it starts from.

    Example:
        >>> describe_network(Recipe(model={"name": "resnet20", "n": 4}))
        'resnet20 n=4'
    """
    words = [str(recipe.model.get("name", "network"))]
    layers = describe_layers(recipe.model)
    if recipe.start is None or layers != REAL:  # a converted network has layers of its own
        words.append(layers)
    if recipe.start is not None:
        words.append(f"from {name_start(recipe.start)}")
    name = " ".join(words)
    return name if recipe.distill is None else f"{name}, distilled"


def describe_layers(model: Mapping[str, Any]) -> str:
    """Return what the layers of a network are: an algebra, "n=4" or "real"."""
    return str(model.get("algebra") or (REAL if model.get("n") is None else f"n={model['n']}"))


def name_start(start: str) -> str:
    """Return what to call the network that a run starts from: its file, or the run's folder."""
    path = Path(start).resolve()
    named = path.parent if path.name == MODEL else path
    return named.name.removesuffix(".safetensors")


def read_json(path: Path) -> Any:
    """Return the contents of a JSON file; None when it does not exist."""
    if not path.exists():
        return None
    try:
        content = files.read_json(path)
        if not isinstance(content, dict):
            raise files.FileError("it is no mapping")
        return content
    except files.FileError as error:
        raise RunFolderError(f"{path} is damaged ({error}); delete it and run again") from error


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file, atomically."""
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def is_longer(run: Run, recipe: Recipe) -> bool:
    """Return whether a recipe is that of a finished run with more epochs.

    Args:
        run: The run.
        recipe: The recipe that is asked for.
    """
    old, new = run.recipe or {}, recipe.to_dict()
    before = old.get("trainer", {}).get("max_epochs")
    if run.result is None or before is None or recipe.trainer.max_epochs <= before:
        return False
    same = merge(old, {"trainer": {"max_epochs": recipe.trainer.max_epochs}})
    return not differences(same, new, ended=True)


def check_folder(folder: Path, recipe: Recipe, *, asked: bool = False) -> None:
    """Raise an error when a folder holds a run that is not of this recipe.

    Args:
        folder: The folder. It need not exist.
        recipe: The recipe that would continue the run, or take its result.
        asked: Whether the recipe is the one with which the run should have begun. What may change
            when a run continues may then have changed.
    """
    ended = (folder / RESULT).exists()
    described = (folder / CONFIG).exists()
    if not ended and not (described and (folder / LAST).exists()):
        return
    run = Run.open(folder) if described else Run.make(folder, recipe).refresh()
    assert run.recipe is not None
    if described and not asked and not run.comparison and is_longer(run, recipe):
        if not (folder / LAST).exists():
            raise RunFolderError(
                f"the run in {folder} cannot go on for more epochs: its {LAST} is missing; give "
                "another --out"
            )
        return
    new = recipe.to_dict()
    changed = differences(run.recipe, new, ended=ended and not asked)
    if asked:
        changed = changed or differences(run.asked, new, ended=ended)
    if changed:
        moved = any(change.startswith("data.root:") for change in changed)
        hint = f"; if the data have moved, change {folder / CONFIG}" if moved else ""
        raise RunFolderError(
            f"{folder} holds a run of another recipe ({'; '.join(changed)}); give another --out, "
            f"or delete the folder{hint}"
        )
    if ended and run.result is None:
        raise RunFolderError(f"{folder}: {run.error}; delete the file, or the folder")


def public(recipe: Recipe) -> Tree:
    """Return a recipe without the folders of somebody's machine."""
    tree = recipe.to_dict()
    data = {key: value for key, value in recipe.data.items() if key not in PRIVATE}
    names = {key: tree[key] and name_start(tree[key]) for key in ("start", "distill")}
    return {**tree, "data": data, **names}


def find_mismatch(path: Path, outcome: Mapping[str, Any], tree: Tree | None) -> str | None:
    """Return what is wrong with an outcome that belongs to another recipe; None if it does not.

    Args:
        path: The file that holds the outcome.
        outcome: The contents of `result.json` or `validation.json`.
        tree: The recipe that it should belong to; None when that is not known.

    Raises:
        RunFolderError: The file is damaged.
    """
    if tree is None:
        return None
    try:
        ours = public(build_recipe(tree))
        if "recipe" in outcome:
            theirs = public(build_recipe(keep_known(outcome["recipe"])))
        else:  # from before format 1.0
            known = {name: outcome[name] for name in ("task", "data", "seed") if name in outcome}
            model = {name: outcome["model"].get(name) for name in ours["model"]}
            theirs = {**ours, **known, "model": model}
        changed = differences(theirs, ours, ended=True)
    except (AttributeError, KeyError, TypeError, ValueError) as damage:
        raise RunFolderError(f"{path} is damaged ({damage!r}); delete it and run again") from damage
    return f"{path.name} belongs to another recipe ({'; '.join(changed)})" if changed else None


def _read_config(folder: Path) -> tuple[Tree, Tree]:
    """Return the recipe and the section `run` of a description."""
    path = folder / CONFIG
    try:
        tree = files.parse_yaml(files.read_text(path), path.name)
    except files.FileError as error:
        raise _not_a_recipe(path, error) from error
    if not isinstance(tree, dict):
        raise _not_a_recipe(path, "it is empty" if tree is None else "it is not a mapping")
    about = tree.pop("run", None) or {"began": _read_asked(folder)}
    if not isinstance(about, dict):
        raise _not_a_recipe(path, f"run: {about!r} is not a mapping")
    major, minor = _parse_format(path, about.get("format", "1.0"))
    if major != FORMAT[0]:
        raise RunFolderError(
            f"{path} has format {major}.{minor}, and this version of phnn reads format "
            f"{FORMAT[0]} alone; use the version of phnn that wrote it"
        )
    return (keep_known(tree) if minor > FORMAT[1] else tree), about


def _parse_format(path: Path, text: object) -> tuple[int, int]:
    try:
        major, minor = map(int, str(text).split("."))
    except ValueError:
        raise RunFolderError(f"{path} has format {text!r}, which is not a version") from None
    return major, minor


def _not_a_recipe(path: Path, error: object) -> RunFolderError:
    return RunFolderError(
        f"{path} is not a recipe ({error}); give another --out, or delete the folder"
    )


def _read_asked(folder: Path) -> Tree | None:
    """Return the recipe that a comparison asked for, in a folder from before format 1.0."""
    path = folder / _ASKED
    if not path.exists():
        return None
    try:
        return build_recipe(files.parse_yaml(files.read_text(path), path.name)).to_dict()
    except (AttributeError, TypeError, ValueError) as error:
        raise _not_a_recipe(path, error) from error
