"""The options of a recipe: what they mean, and what they are in it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from inspect import Parameter, getdoc, signature
from pathlib import Path
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

from phnn.lab.packaged import list_recipes, read_recipe
from phnn.lab.recipe import SECTIONS, Recipe, Tree, build_recipe, merge

FIRST = "digits"  # the recipe whose options are shown when none is given
# what to write for options that have no value by default
EXAMPLES = {
    "algebra": "quaternion",
    "algebra_decay": "0.0001",
    "algebra_lr": "0.01",
    "augment": "[crop,flip]",
    "averaging": "ema",
    "block": "bottleneck",
    "cache": "FOLDER",
    "checkpoint_minutes": "5",
    "checkpoint_steps": "1000",
    "classes": "[dog,bell]",
    "distill": "RUN",
    "early_stopping": "5",
    "energy": "false",
    "eval_batch_size": "256",
    "folds": "5",
    "gradient_clip_val": "1",
    "image_size": "32",
    "jobs": "2",
    "labels": "COLUMN",
    "limit": "1000",
    "n": "4",
    "name": "NAME",
    "objectives": "accuracy,parameters",
    "only": "'* n=4'",
    "pruner": "asha",
    "rank": "7",
    "reflections": "10",
    "root": "FOLDER",
    "seeds": "0,1,2",
    "segment": "2.5",
    "shard": "3/20",
    "space": '"model.n=[1,2,4]"',
    "start": "FILE",
    "storage": "URL",
    "streaming": "true",
    "terms": "2",
    "threads": "2",
    "threshold": "0.3",
    "vector_decay": "0",
}
SINGLE = ("task", "seed", "start", "distill")  # options of a recipe that are no section
# sections, or options, that change what a command does; by default all of them
ACCEPTED = {
    "report": ("data",),
    "figures": ("data",),
    "test": (
        "data",
        "learner",
        *(
            f"trainer.{name}"
            for name in ("accelerator", "devices", "num_nodes", "strategy", "precision", "threads")
        ),
    ),
}
TRAINING_ONLY = ("augment", "drop_last", "limit", "segment")  # of data: a test has no use for them


class Option(NamedTuple):
    """An option of the command line.

    Attributes:
        name: As it is typed, such as --model.n.
        value: The value in the recipe, or an example.
        about: What it does.
    """

    name: str
    value: str
    about: str


def is_accepted(command: str, option: str) -> bool:
    """Return whether an option of a recipe does something in a command.

    Args:
        command: The name of the command.
        option: Such as "data.root".

    Example:
        >>> is_accepted("train", "optimizer.lr"), is_accepted("report", "optimizer.lr")
        (True, False)
    """
    accepted = ACCEPTED.get(command)
    if accepted is None:
        return True
    section, _, name = option.partition(".")
    if section == "data" and name in TRAINING_ONLY:
        return False
    return section in accepted or option in accepted


def find_recipe(argv: Sequence[str], overrides: Mapping[str, Any]) -> tuple[str, Recipe]:
    """Return the recipe that a command line is about, with its name.

    Args:
        argv: The arguments: a recipe, a comparison or the folder of a run may be among them.
        overrides: Options of the recipe that were given.
    """
    for word in (argument for argument in argv if not argument.startswith("-")):
        tree = _read(word)
        if tree is not None:
            return word, build_recipe(merge(tree, overrides))
    return FIRST, build_recipe(merge(read_recipe(FIRST), overrides))


def _read(word: str) -> Tree | None:
    """Return the recipe that an argument names; None if it names none."""
    from phnn.lab.packaged import list_comparisons, read_comparison

    path = Path(word)  # only its options are looked at: nothing that it names is called
    if (path / "config.yaml").is_file():
        return read_recipe(path / "config.yaml", trust=True)
    if word in list_recipes():
        return read_recipe(word)
    if word in list_comparisons():
        return read_recipe(next(iter(read_comparison(word)["families"])))
    if path.suffix in (".yaml", ".yml") and path.is_file():
        families = read_comparison(path, trust=True).get("families")
        if not families:
            return read_recipe(path, trust=True)
        family = next(iter(families))
        beside = path.parent / family
        return read_recipe(beside if beside.is_file() else family, trust=True)
    return None


def list_groups(recipe: Recipe, command: str) -> Iterator[tuple[str, list[Option]]]:
    """Yield the options of a recipe that a command takes, in groups with titles.

    Args:
        recipe: Names the network, the task and so their options.
        command: The name of the command.
    """
    from phnn.lab.tasks import find_task
    from phnn.lab.tasks.task import resolve

    task, tree = find_task(recipe.task), recipe.to_dict()
    known: dict[str, list[Option]] = {
        f"The network, {recipe.model.get('name', 'not chosen')}": list(_list_network(recipe)),
        f"The data of the task {task.name}": _list(resolve(task.data), "data", tree),
    }
    for section, options in SECTIONS.items():
        title = (getdoc(options) or "").partition("\n")[0].rstrip(".")
        known[title.replace(", over the length of the run", "")] = _list(options, section, tree)
    if task.learner_options is not None:
        learner = _list(resolve(task.learner_options), "learner", tree)
        known["The loss and the tests"] = learner
    about = read_arguments(getdoc(Recipe) or "")
    single = {name: tree[name] for name in SINGLE}
    known["The run"] = [
        Option(f"--{name}", show_value(name, value), about[name]) for name, value in single.items()
    ]
    for title, found in known.items():
        kept = [option for option in found if is_accepted(command, option.name.strip("-"))]
        if kept:
            yield title, kept


def _list_network(recipe: Recipe) -> Iterator[Option]:
    """Yield the options of the network."""
    from phnn.models import list_models
    from phnn.models._network import Network
    from phnn.models.registry import MODELS

    names = list_models()
    name = recipe.model.get("name")
    yield Option("--model.name", str(name or "resnet20"), f"Its name: {', '.join(names)}.")
    if name not in MODELS:
        return
    shared = dict(re.findall(r"^- `(\w+)`: (.*(?:\n {2}.*)*)", getdoc(Network) or "", re.MULTILINE))
    about = {key: " ".join(text.split()) for key, text in shared.items()}
    yield from _list(MODELS[name], "model", {"model": recipe.model}, about)


def _list(
    function: Callable[..., Any], section: str, tree: Tree, about: Mapping[str, str] | None = None
) -> list[Option]:
    """Return the options of a section, which are the arguments of a function."""
    own = function.func if isinstance(function, partial) else function
    texts = {**(about or {}), **read_arguments(getdoc(own) or "")}
    hints = get_type_hints(getattr(own, "__init__") if isinstance(own, type) else own)  # noqa: B009
    given = tree.get(section) or {}
    return [
        Option(
            f"--{section}.{name}",
            show_value(name, given.get(name, parameter.default), hints.get(name)),
            _describe(texts.get(name, ""), hints.get(name)),
        )
        for name, parameter in signature(function).parameters.items()
        if parameter.kind is not Parameter.VAR_KEYWORD
    ]


def _describe(text: str, hint: Any) -> str:
    """Return a description that names all choices."""
    choices = [str(choice) for choice in list_choices(hint)]
    if not choices or all(choice in text for choice in choices):
        return text
    return f"{text.rstrip('.')}: {', '.join(choices)}."


def list_choices(hint: Any) -> list[Any]:
    """Return the values that a type allows, if it is a list of them."""
    from typing import Literal

    parts = [hint, *get_args(hint)]
    return [choice for part in parts if get_origin(part) is Literal for choice in get_args(part)]


def read_arguments(doc: str) -> dict[str, str]:
    r"""Return what a docstring says about each argument.

    Example:
        >>> read_arguments("Do it.\n\nArgs:\n    a: One.\n    b: Two,\n        or three.\n")
        {'a': 'One.', 'b': 'Two, or three.'}
    """
    _, _, section = doc.partition("Args:\n")
    found = re.findall(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", section, re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in found}


def show_value(name: str, value: Any, hint: Any = None) -> str:
    """Return a value as it is typed; an example where there is none.

    Example:
        >>> show_value("lr", 0.1), show_value("widths", [12, 24]), show_value("n", None)
        ('0.1', '[12,24]', '4')
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple) and value:
        return f"[{','.join(map(str, value))}]"
    if value is None or value is Parameter.empty or value == ():
        return EXAMPLES.get(name) or _name_kind(hint)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _name_kind(hint: Any) -> str:
    kinds: Iterable[Any] = [part for part in (hint, *get_args(hint)) if isinstance(part, type)]
    words = {bool: "true", int: "N", float: "X", Path: "PATH"}
    return next((words[kind] for kind in kinds if kind in words), "VALUE")
