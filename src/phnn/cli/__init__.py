"""The command `phnn`: argv in, the functions of the library called."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from inspect import Parameter, getdoc, signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

import phnn
from phnn._names import suggest
from phnn.cli.bench import bench
from phnn.cli.models import convert, export, inspect
from phnn.cli.reports import figures, report, tables
from phnn.cli.sound import simulate
from phnn.cli.toy import toy
from phnn.cli.training import FAILED_RUNS, compare, predict, test, train

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser

__all__ = ["FAILED_RUNS", "USER_ERROR", "main"]

USER_ERROR = 2
# which extra brings a package that a command cannot do without
EXTRAS = {
    **dict.fromkeys(
        [
            "PIL",
            "captum",
            "datasets",
            "jsonargparse",
            "lightning",
            "matplotlib",
            "scipy",
            "sklearn",
            "tensorboard",
            "torchmetrics",
            "yaml",
        ],
        "train",
    ),
    **dict.fromkeys(["pyroomacoustics", "soundfile", "tqdm"], "sound"),
    **dict.fromkeys(["onnx", "onnxruntime", "onnxscript"], "export"),
    "codecarbon": "energy",
}


COMMANDS: dict[str, Callable[..., int]] = {
    function.__name__: function
    for function in (
        train,
        test,
        predict,
        compare,
        report,
        figures,
        tables,
        convert,
        inspect,
        export,
        bench,
        simulate,
        toy,
    )
}


def _make_parser(argv: Sequence[str]) -> ArgumentParser:
    """The parser, whose commands are empty but for the one that is asked for.

    To know the options of a command is to import all that its module names: seconds for each.
    """
    from jsonargparse import ArgumentParser

    parser = ArgumentParser(
        prog="phnn",
        description="Parameterized hypercomplex networks: train, compare and use them.",
        version=f"phnn {phnn.__version__}",
        exit_on_error=False,
        allow_abbrev=False,
    )
    commands = parser.add_subcommands(dest="command")
    for name, function in COMMANDS.items():
        summary = (getdoc(function) or "").split("\n", 1)[0]
        command = _make_command(function) if name in argv[:1] else ArgumentParser()
        commands.add_subcommand(name, command, help=summary)
    return parser


# arguments that are not declared from the function's signature: those given by their place in spite
# of a default or of their number, and those with a short name
BY_HAND: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "inputs": (("inputs",), {"type": Path, "nargs": "+"}),
    "comparison": (("comparison",), {"type": str, "nargs": "?"}),
    "results": (("results",), {"type": Path, "nargs": "?"}),
    "out": (("-o", "--out"), {"type": Path}),
}
PLACES = {
    "recipe": "RECIPE",
    "checkpoint": "CHECKPOINT",
    "inputs": "INPUTS...",
    "comparison": "[COMPARISON]",
    "folder": "FOLDER",
    "results": "[RESULTS]",
    "network": "NETWORK",
}


def _make_command(function: Callable[..., int]) -> ArgumentParser:
    from jsonargparse import ActionYesNo, ArgumentParser

    from phnn.lab.recipe import Recipe

    parameters = signature(function).parameters
    places = [place for name, place in PLACES.items() if name in parameters]
    writes = "out" in parameters and parameters["out"].default is Parameter.empty
    parser = ArgumentParser(
        usage=" ".join(["phnn", function.__name__, *places, *["-o OUT"] * writes, "[options]"]),
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
    """Returns what a function does, and the names that it knows."""
    from phnn.lab.recipe import list_comparisons, list_recipes

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


def _parse(argv: Sequence[str]) -> tuple[Callable[..., int], dict[str, Any]]:
    """Returns the function that argv asks for, and its arguments."""
    from phnn.lab.recipe import Recipe

    given = _make_parser(argv).parse_args(list(argv), defaults=False)
    function = COMMANDS[given["command"]]
    arguments = given.as_dict().get(given["command"]) or {}
    if "overrides" in signature(function).parameters:
        parts = {field.name for field in fields(Recipe)} & arguments.keys()
        arguments["overrides"] = {part: arguments.pop(part) for part in parts}
    # a place that was left empty has the function's own default
    return function, {name: value for name, value in arguments.items() if value is not None}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line.

    Args:
        argv: What follows the command's name; of the process by default.

    Returns:
        0; 1 when runs of a comparison or claims of toy failed; 2 after an error that is
        the user's to mend, told in one line unless the environment has PHNN_DEBUG, which shows
        where it happened.
    """
    argv = sys.argv[1:] if argv is None else list(argv)
    if "--version" in argv[:1]:  # works without the extra, too
        print(f"phnn {phnn.__version__}")
        return 0
    logging.basicConfig(format="%(message)s")
    try:
        function, arguments = _parse(argv or ["--help"])
        return function(**arguments)
    except Exception as error:
        message = _explain(error, argv)
        if message is None or os.environ.get("PHNN_DEBUG"):
            raise
        print(f"phnn: {message}", file=sys.stderr)
        return USER_ERROR


def _explain(error: Exception, argv: Sequence[str]) -> str | None:
    """Returns what the user should read of an error; None for a mistake of ours."""
    if isinstance(error, ModuleNotFoundError):
        extra = EXTRAS.get((error.name or "").partition(".")[0])
        return extra and f'this command needs {error.name}; pip install "phnn[{extra}]"'
    from jsonargparse import ArgumentError
    from lightning.fabric.utilities.exceptions import MisconfigurationException

    from phnn.io import ExportError
    from phnn.lab.training import NonFiniteLossError

    if isinstance(error, ArgumentError):
        return _explain_arguments(" ".join(str(error).split()), argv)
    ours = ValueError | TypeError | OSError | ExportError | NonFiniteLossError
    return str(error) if isinstance(error, ours | MisconfigurationException) else None


def _explain_arguments(message: str, argv: Sequence[str]) -> str:
    """Returns a parser's error in plain words, with the nearest of the names that exist."""
    unknown = re.match(r"unrecognized arguments: (-[\w.-]+)", message)
    if unknown is not None:
        actions = _make_command(COMMANDS[argv[0]])._actions if argv[0] in COMMANDS else []
        options = [option for action in actions for option in action.option_strings]
        return f"there is no option {unknown[1]}; {suggest(unknown[1], options)}see phnn --help"
    if argv and "invalid choice" in message and not argv[0].startswith("-"):
        return f"there is no command {argv[0]}; {suggest(argv[0], COMMANDS)}see phnn --help"
    message = message.replace("Parser key ", "").replace(f"{argv[0]}.", "")
    return re.sub(r"<class '(\w+)'>", r"\1", message)
