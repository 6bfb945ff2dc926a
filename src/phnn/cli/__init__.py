"""The command `phnn`: argv in, the functions of the library and the lab called."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from inspect import getdoc

import phnn
from phnn._names import printable, suggest
from phnn.cli.parser import Parser
from phnn.cli.streams import announce, patient_streams
from phnn.cli.training import FAILED_RUNS
from phnn.lab.stopping import Stoppable, Stopped

__all__ = ["FAILED_RUNS", "USER_ERROR", "main"]

USER_ERROR = 2
# one module for each command: `add_arguments` fills its parser, `run` takes what was parsed
LIBRARY = ("convert", "inspect", "export", "bench")
# the module with the typed function that is the command
LAB = {
    **dict.fromkeys(["train", "test", "predict", "compare"], "training"),
    "tune": "tuning",
    **dict.fromkeys(["report", "figures", "tables"], "reports"),
    "paper": "paper",
    "simulate": "sound",
    "toy": "toy",
}
# the extra that brings a package
EXTRAS = {
    **dict.fromkeys(
        [
            "PIL",
            "captum",
            "datasets",
            "filelock",
            "jinja2",
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
    **dict.fromkeys(["pyroomacoustics", "soundfile"], "sound"),
    **dict.fromkeys(["onnx", "onnxruntime", "onnxscript"], "export"),
    "codecarbon": "energy",
    "huggingface_hub": "hub",
    "openvino": "openvino",
    **dict.fromkeys(["optuna", "psycopg"], "tune"),
}
# how to go on after Ctrl-C or SIGTERM, where it is not the same command again
CONTINUES = "give the same command again to continue"
AGAIN = {
    **dict.fromkeys(["train", "compare", "tune", "paper", "simulate"], CONTINUES),
    "convert": "nothing was written; with --cache FOLDER the same command goes on where it was",
    "report": "the same command goes on with what is computed already",
    "predict": "nothing was written; give the same command again",
    "export": "nothing was written; give the same command again",
}
CLOSED_PIPE = 128 + 13  # as shells tell a process that SIGPIPE ended
# mistakes of the user besides ValueError, TypeError and OSError; by name, because the import of
# Lightning alone takes seconds
USER_ERRORS = {"ExportError", "MisconfigurationException", "NonFiniteLossError"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: What follows the command's name; of the process by default.

    Returns:
        0; 1 when runs of a comparison or claims of toy failed; 2 after an error that the user can
        fix; 130 after Ctrl-C and 143 after SIGTERM; 141 when the reader of a pipe has gone, after
        the work. An error is printed as one line; with PHNN_DEBUG in the environment, with its
        traceback.
    """
    command, *rest = (sys.argv[1:] if argv is None else list(argv)) or ["--help"]
    logging.basicConfig(format="%(message)s")
    with patient_streams() as out, Stoppable():
        code = _answer(command, rest)
    return CLOSED_PIPE if out.gone and code == 0 else code


def _answer(command: str, argv: Sequence[str]) -> int:
    """Run a command, and say in one line what went wrong."""
    try:
        if command in ("-h", "--help"):
            print(_render_help())
            return 0
        if command == "--version":
            print(f"phnn {phnn.__version__}")
            return 0
        return _run(command, argv)
    except (KeyboardInterrupt, Stopped) as error:
        stopped = error if isinstance(error, Stopped) else Stopped(signal.SIGINT)
        hint = AGAIN.get(command, "give the same command again")
        print(f"\nphnn: stopped by {stopped.name}; {hint}", file=sys.stderr)
        return stopped.exit_code
    except Exception as error:
        message = _explain(error)
        if message is None or os.environ.get("PHNN_DEBUG"):
            raise
        print(f"phnn: {printable(message)}", file=sys.stderr)
        return USER_ERROR


def _find_function(command: str) -> Callable[..., int]:
    """Return the function that a command calls; its first line of documentation is the help."""
    module = import_module(f"phnn.cli.{LAB.get(command, command)}")
    function: Callable[..., int] = getattr(module, command if command in LAB else "run")
    return function


def _run(command: str, argv: Sequence[str]) -> int:
    if command in LIBRARY:
        function = _find_function(command)
        parser = Parser(command, getdoc(function) or "")
        import_module(f"phnn.cli.{command}").add_arguments(parser)
        arguments = parser.parse(argv)
        announce("starting …")
        return function(**arguments)
    if command in LAB:
        from phnn.cli.lab import run

        return run(_find_function(command), argv)
    known = [*LAB, *LIBRARY]
    raise ValueError(f"there is no command {command}; {suggest(command, known)}see phnn --help")


def _render_help() -> str:
    lines = ["usage: phnn COMMAND [options]", "", "Parameterized hypercomplex neural networks."]
    groups = {"Use a model:": LIBRARY, 'Train and compare, with pip install "phnn[train]":': LAB}
    for title, commands in groups.items():
        lines += ["", title]
        for command in commands:
            summary = (getdoc(_find_function(command)) or "").partition("\n")[0]
            lines.append(f"  {command:8}  {summary}")
    return "\n".join([*lines, "", "phnn COMMAND --help shows its options; phnn --version."])


def _explain(error: Exception) -> str | None:
    """Return what the user should read of an error; None for a mistake of ours."""
    if isinstance(error, ImportError) and "pip install" in str(error):  # the library knows what
        return str(error)
    if isinstance(error, ModuleNotFoundError):
        if error.name is None:  # one of Lightning's, such as for an accelerator
            return str(error)
        extra = EXTRAS.get(error.name.partition(".")[0])
        return extra and f'this command needs {error.name}; pip install "phnn[{extra}]"'
    if isinstance(error, OSError) and error.strerror:  # without "[Errno 28]"
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    if isinstance(error, ValueError | TypeError | OSError) or type(error).__name__ in USER_ERRORS:
        return str(error)
    return None
