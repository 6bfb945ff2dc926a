"""The help of the commands that are typed functions."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from inspect import Parameter, getdoc, signature
from typing import Any, get_args, get_type_hints

from phnn.cli.recipe_options import (
    Option,
    find_recipe,
    list_choices,
    list_groups,
    read_arguments,
    show_value,
)
from phnn.lab.packaged import list_comparisons, list_recipes

COLUMNS = 80
INDENT = 30  # of the descriptions
POSITIONALS = {
    "recipe": "RECIPE",
    "checkpoint": "CHECKPOINT",
    "inputs": "INPUTS...",
    "comparison": "[COMPARISON]",
    "folder": "FOLDER",
    "results": "[RESULTS...]",
}


def render_help(
    function: Callable[..., int], argv: Sequence[str], overrides: dict[str, Any]
) -> str:
    """Return the help of a command.

    Args:
        function: The command.
        argv: What was typed: the options are those of the recipe that it names.
        overrides: Options of the recipe that were given.
    """
    about, _, _ = (getdoc(function) or "").partition("\nArgs:")
    parts = [f"usage: {show_usage(function)}", *_wrap(about)]
    parts.append(_render_group("Arguments", list_own(function)))
    parameters = signature(function).parameters
    if "overrides" in parameters:
        name, recipe = find_recipe(argv, overrides)
        groups = list(list_groups(recipe, function.__name__))
        parts.append(
            textwrap.fill(
                f"Options of the recipe {name}, each with its value there, or with an example "
                f"where it has none. {_name_other(parameters)}",
                COLUMNS,
            )
        )
        parts += [_render_group(title, options) for title, options in groups]
    names = {"recipe": ("Recipes", list_recipes), "comparison": ("Comparisons", list_comparisons)}
    for key, (title, find) in names.items():
        if key in parameters:
            listed = textwrap.fill(", ".join(find()), COLUMNS - 2, break_on_hyphens=False)
            parts.append(f"{title}:\n{textwrap.indent(listed, '  ')}")
    return "\n\n".join(parts)


def _name_other(parameters: Any) -> str:
    for key, word in (("recipe", "RECIPE"), ("comparison", "COMPARISON")):
        if key in parameters:
            return f"Put another {word} before --help to see its options."
    return "Put the folder of a run before --help to see its options."


def show_usage(function: Callable[..., int]) -> str:
    """Return how a command is typed."""
    parameters = signature(function).parameters
    words = [name for key, name in POSITIONALS.items() if key in parameters]
    if "out" in parameters and parameters["out"].default is Parameter.empty:
        words.append("-o OUT")
    return " ".join(["phnn", function.__name__, *words, "[options]"])


def list_own(function: Callable[..., int]) -> list[Option]:
    """Return the arguments of a command itself."""
    texts, hints = read_arguments(getdoc(function) or ""), get_type_hints(function)
    found = []
    for name, parameter in signature(function).parameters.items():
        about = texts.get(name, "")
        if name == "overrides":
            continue
        if name in POSITIONALS:
            found.append(Option(POSITIONALS[name].strip("[]"), "", about))
        elif name == "out":
            found.append(Option("-o, --out", "PATH", about))
        elif isinstance(parameter.default, bool):
            found.append(Option(f"--{name.replace('_', '-')}", "", about))
        else:
            found.append(_make_option(name, parameter, hints[name], about))
    return [*found, Option("-h, --help", "", "Show this help.")]


def _make_option(name: str, parameter: Parameter, hint: Any, about: str) -> Option:
    choices = [str(choice) for choice in list_choices(hint)]
    if choices and not all(choice in about for choice in choices):
        about = f"{about.rstrip('.')}: {', '.join(choices)}."
    default = parameter.default
    is_optional = type(None) in get_args(hint) or default in (None, Parameter.empty)
    if not is_optional and "by default" not in about:
        about = f"{about.rstrip('.')}; {show_value(name, default)} by default."
    return Option(f"--{name}", show_value(name, default, hint), about)


def _wrap(about: str) -> list[str]:
    """Return the paragraphs of a text; examples keep their lines."""
    paragraphs = about.strip().split("\n\n")
    return [
        text if "\n  " in text else textwrap.fill(" ".join(text.split()), COLUMNS)
        for text in paragraphs
    ]


def _render_group(title: str, options: Sequence[Option]) -> str:
    lines = [f"{title}:"]
    for option in options:
        head = f"  {option.name} {option.value}".rstrip()
        rows = textwrap.wrap(option.about, COLUMNS - INDENT, break_on_hyphens=False) or [""]
        if len(head) < INDENT - 1:
            lines.append(f"{head:{INDENT}}{rows.pop(0)}".rstrip())
        else:
            lines.append(head)
        lines += [f"{'':{INDENT}}{row}" for row in rows]
    return "\n".join(lines)
