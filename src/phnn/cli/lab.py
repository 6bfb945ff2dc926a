"""The parser of the commands of the lab, which are typed functions."""

from __future__ import annotations

import re
from argparse import ArgumentError
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from inspect import Parameter, signature
from pathlib import Path
from typing import Any, get_type_hints

from jsonargparse import ActionYesNo, ArgumentParser

from phnn.cli.help import POSITIONALS, render_help, show_usage
from phnn.cli.parser import UsageError, explain_unknown, translate
from phnn.cli.recipe_options import (
    ACCEPTED,
    SINGLE,
    Option,
    find_recipe,
    is_accepted,
    list_groups,
)
from phnn.cli.streams import announce
from phnn.lab.recipe import SECTIONS, Recipe

# arguments that are not declared from the function's signature: positional ones that have a default
# or take several values, and those with a short name
BY_HAND: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "inputs": (("inputs",), {"type": Path, "nargs": "+"}),
    "comparison": (("comparison",), {"type": str, "nargs": "?"}),
    "results": (("results",), {"type": Path, "nargs": "*"}),
    "out": (("-o", "--out"), {"type": Path}),
    "space": (("--space",), {"type": str, "nargs": "+"}),
}
HELP = ("-h", "--help")
KINDS = {"float": "a number", "int": "a whole number", "bool": "true or false"}


def run(function: Callable[..., int], argv: Sequence[str]) -> int:
    """Run a command, or show its help.

    Args:
        function: The command.
        argv: The arguments after the name of the command.

    Returns:
        The exit code.
    """
    if any(word in HELP for word in argv):
        words = [word for word in argv if word not in HELP]
        try:
            overrides = parse(function, words).get("overrides", {})
        except UsageError:  # such as a missing argument, which is why somebody asks for help
            overrides = {}
        print(render_help(function, words, overrides))
        return 0
    found = parse(function, argv)
    announce("starting …")
    with _in_words_of(function, argv, found):
        return function(**found)


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
        _check_accepted(function.__name__, found["overrides"])
    # a positional argument that was left out has the function's own default
    return {name: value for name, value in found.items() if value is not None}


def _check_accepted(command: str, overrides: dict[str, Any]) -> None:
    """Raise an error for an option that would change nothing."""
    for section, value in overrides.items():
        names = [f"{section}.{key}" for key in value] if isinstance(value, dict) else [section]
        for name in names:
            if not is_accepted(command, name):
                taken = " and ".join(f"--{part}.*" for part in ACCEPTED[command] if "." not in part)
                raise UsageError(
                    f"--{name} is for training, and changes nothing in phnn {command}, which takes "
                    f"{taken}; see phnn {command} --help"
                )


def _make_parser(function: Callable[..., int]) -> ArgumentParser:
    # resolved here: jsonargparse would import all that the module names for type checkers
    function.__annotations__ = get_type_hints(function)
    parameters = signature(function).parameters
    parser = ArgumentParser(
        prog=f"phnn {function.__name__}",
        usage=show_usage(function),
        exit_on_error=False,
        allow_abbrev=False,
    )
    flags = {name for name, parameter in parameters.items() if isinstance(parameter.default, bool)}
    parser.add_function_arguments(
        function, as_positional=True, skip={"overrides", *BY_HAND, *flags}
    )
    for name, (names, options) in BY_HAND.items():
        if name in parameters:
            is_needed = name == "out" and parameters[name].default is Parameter.empty
            options = {**options, "required": True} if is_needed else options
            parser.add_argument(*names, **options)
    for name in sorted(flags):
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            action=ActionYesNo(no_prefix="no-"),
            default=parameters[name].default,
        )
    if "overrides" in parameters:
        parser.add_class_arguments(Recipe, None)
    return parser


def _explain(message: str, parser: ArgumentParser) -> str:
    """Return a parser's error in plain words, with the nearest of the options that exist."""
    unknown = re.match(r"[Uu]nrecognized arguments: (\S+)", message)
    if unknown is not None:
        options = [f"--{key}" for key in parser.get_defaults().keys(branches=True)]
        return explain_unknown(unknown[1], options, parser.prog)
    message = re.sub(r"<class '(\w+)'>", r"\1", message.replace("Parser key ", ""))
    wrong = re.search(r'"([\w.]+)": .*Expected an? (\w+)\. Got value: (\S+)', message)
    if wrong is not None and wrong[2] in KINDS:
        return f"--{wrong[1]} takes {KINDS[wrong[2]]}, not {wrong[3]}; see {parser.prog} --help"
    optional = re.search(
        r'"([\w.]+)": .*Subtypes: \[(.*?), NoneType\] .*Given value: (\S+)', message
    )
    if optional is not None:
        listed = re.sub(r"typing\.Literal\[(.*)\]", r"\1", optional[2]).replace("'", "")
        known = KINDS.get(listed, listed.replace(", ", " or "))
        return f"--{optional[1]} takes {known} or null, not {optional[3]}; see {parser.prog} --help"
    chosen = re.search(r'"([\w.]+)": .*Got value: (\S+)', message)
    choices = re.search(r"Literal\[(.*?)\]|Expected a .*?\((.*?)\)", message)
    if chosen is not None and choices is not None:
        listed = (choices[1] or choices[2]).replace("'", "")
        return f"--{chosen[1]} {chosen[2]} must be one of {listed}; see {parser.prog} --help"
    missing = re.search(r'Key "(\w+)" is required|arguments are required: (\S+)', message)
    if missing is not None:
        name = (missing[1] or missing[2]).split("/")[-1].strip(",")
        return f"{POSITIONALS.get(name, name)} is missing; {parser.usage}"
    return message


@contextmanager
def _in_words_of(
    function: Callable[..., int], argv: Sequence[str], found: dict[str, Any]
) -> Iterator[None]:
    """Raise errors in the words of the command line: --model.n 4 instead of n=4."""
    try:
        yield
    except (ValueError, TypeError) as error:
        options = {
            name: f"--{name}"
            for name in signature(function).parameters
            if name not in ("overrides", *POSITIONALS)
        }
        if "overrides" in found:
            options = {**_name_options(argv, found), **options}
        message = _name_unknown(translate(str(error), options), function.__name__)
        if message == str(error):
            raise
        raise UsageError(message) from error


def _name_options(argv: Sequence[str], found: dict[str, Any]) -> dict[str, str]:
    """Return the option for each argument of the functions that a command calls."""
    groups: list[tuple[str, list[Option]]] = []
    tries: list[dict[str, Any]] = [found["overrides"], {}]  # what was given may be what is wrong
    for overrides in tries:
        try:
            _, recipe = find_recipe(argv, overrides)
            groups = list(list_groups(recipe, "train"))
            break
        except (ValueError, TypeError, OSError):
            continue
    listed = [option.name.removeprefix("--") for _, options in groups for option in options]
    names = {}
    for option in (*listed, *SINGLE):
        names[option.partition(".")[2] or option] = f"--{option}"
        names[option] = f"--{option}"
    return names


def _name_unknown(message: str, command: str) -> str:
    """Return a message about an option that does not exist in the words of the command line."""
    sections = "|".join(("data", "learner", *SECTIONS))
    found = re.match(
        rf"(?:unknown ({sections}) option|\w+ has no option) '(.+?)'; "
        r"(?:did you mean (.+?)\? )?known are",
        message,
    )
    if found is None:
        return message
    section = found[1] or "model"
    near = " or ".join(f"--{section}.{name}" for name in (found[3] or "").split(" or ") if name)
    hint = f"did you mean {near}? " if near else ""
    return f"there is no option --{section}.{found[2]}; {hint}see phnn {command} --help"
