"""The parser of the commands of the lab, which are typed functions."""

from __future__ import annotations

import re
from argparse import ArgumentError
from collections.abc import Callable, Sequence
from dataclasses import fields
from inspect import Parameter, getdoc, signature
from pathlib import Path
from typing import Any, get_type_hints

from jsonargparse import ActionYesNo, ArgumentParser

from phnn.cli.parser import UsageError, explain_unknown
from phnn.lab.recipe import Recipe, list_comparisons, list_recipes

# arguments that are not declared from the function's signature: positional ones that have a default
# or take several values, and those with a short name
BY_HAND: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "inputs": (("inputs",), {"type": Path, "nargs": "+"}),
    "comparison": (("comparison",), {"type": str, "nargs": "?"}),
    "results": (("results",), {"type": Path, "nargs": "?"}),
    "out": (("-o", "--out"), {"type": Path}),
    "space": (("--space",), {"type": str, "nargs": "+"}),
}
POSITIONALS = {
    "recipe": "RECIPE",
    "checkpoint": "CHECKPOINT",
    "inputs": "INPUTS...",
    "comparison": "[COMPARISON]",
    "folder": "FOLDER",
    "results": "[RESULTS]",
}


def parse(function: Callable[..., int], argv: Sequence[str]) -> dict[str, Any]:
    """Return the arguments of a command by name.

    Args:
        function: The command; parts of a recipe that are given go to its `overrides`.
        argv: The arguments after the name of the command.
    """
    parser = _make_parser(function)
    try:
        found = parser.parse_args(list(argv), defaults=False).as_dict()
    except ArgumentError as error:
        raise UsageError(_explain(" ".join(str(error).split()), parser)) from None
    if "overrides" in signature(function).parameters:
        parts = {field.name for field in fields(Recipe)} & found.keys()
        found["overrides"] = {part: found.pop(part) for part in parts}
    # a positional argument that was left out has the function's own default
    return {name: value for name, value in found.items() if value is not None}


def _make_parser(function: Callable[..., int]) -> ArgumentParser:
    # resolved here: jsonargparse would import all that the module names for type checkers
    function.__annotations__ = get_type_hints(function)
    parameters = signature(function).parameters
    positionals = [name for key, name in POSITIONALS.items() if key in parameters]
    writes = "out" in parameters and parameters["out"].default is Parameter.empty
    command = f"phnn {function.__name__}"
    parser = ArgumentParser(
        prog=command,
        usage=" ".join([command, *positionals, *["-o OUT"] * writes, "[options]"]),
        description=_describe(function),
        exit_on_error=False,
        allow_abbrev=False,
    )
    flags = {name for name, parameter in parameters.items() if isinstance(parameter.default, bool)}
    parser.add_function_arguments(
        function, as_positional=True, skip={"overrides", *BY_HAND, *flags}
    )
    for name, (names, options) in BY_HAND.items():
        if name in parameters:
            options = {**options, "required": True} if name == "out" and writes else options
            parser.add_argument(*names, help=_describe_argument(function, name), **options)
    for name in sorted(flags):
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            action=ActionYesNo(no_prefix="no-"),
            default=parameters[name].default,
            help=_describe_argument(function, name),
        )
    if "overrides" in parameters:
        parser.add_class_arguments(Recipe, None)
    return parser


def _describe(function: Callable[..., int]) -> str:
    """Return what a function does, and the names that it knows."""
    about, _, _ = (getdoc(function) or "").partition("\nArgs:")
    words = about.split()
    if "recipe" in signature(function).parameters:
        words.append(f"Recipes: {', '.join(list_recipes())}.")
    if "comparison" in signature(function).parameters:
        words.append(f"Comparisons: {', '.join(list_comparisons())}.")
    return " ".join(words)


def _describe_argument(function: Callable[..., int], name: str) -> str:
    found = re.search(rf"^ {{4}}{name}: (.*(?:\n {{8}}.*)*)", getdoc(function) or "", re.MULTILINE)
    assert found is not None
    return " ".join(found[1].split())


def _explain(message: str, parser: ArgumentParser) -> str:
    """Return a parser's error in plain words, with the nearest of the options that exist."""
    unknown = re.match(r"[Uu]nrecognized arguments: (\S+)", message)
    if unknown is not None:
        options = [f"--{key}" for key in parser.get_defaults().keys(branches=True)]
        return explain_unknown(unknown[1], options, parser.prog)
    message = message.replace("Parser key ", "")
    return re.sub(r"<class '(\w+)'>", r"\1", message)
