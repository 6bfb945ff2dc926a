"""The parser of the commands that need the library alone."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from phnn._names import suggest


class UsageError(ValueError):
    """Arguments that a command does not take."""


class Parser(argparse.ArgumentParser):
    """A parser that raises its errors, with the nearest option that exists.

    Args:
        command: Name of the command.
        description: What it does.
    """

    def __init__(self, command: str, description: str) -> None:
        self.options: list[str] = []
        super().__init__(
            prog=f"phnn {command}",
            usage=f"phnn {command} MODEL [options]",
            description=description,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def add_argument(self, *args: Any, **kwargs: Any) -> argparse.Action:
        """Add an argument, as argparse does."""
        action = super().add_argument(*args, **kwargs)
        self.options += action.option_strings
        return action

    def add_model(self) -> None:
        """Add the positional MODEL."""
        self.add_argument(
            "model",
            metavar="MODEL",
            help="name of a network (resnet18), file (.safetensors), folder of a run, or "
            "package.module:function, which returns a torch.nn.Module",
        )

    def add_out(self, help: str, *, required: bool) -> None:
        """Add the file to write."""
        if required:
            self.usage = f"{self.prog} MODEL -o OUT [options]"
        self.add_argument("-o", "--out", type=Path, required=required, help=help)

    def add_flag(self, name: str, help: str, *, default: bool) -> None:
        """Add --NAME with its opposite, --no-NAME."""
        action = argparse.BooleanOptionalAction
        self.add_argument(f"--{name}", action=action, default=default, help=help)

    def parse(self, argv: Sequence[str]) -> dict[str, Any]:
        """Return the arguments by name."""
        for argument in argv:  # before argparse, which would miss a required one first
            if argument.startswith("--") and argument.partition("=")[0] not in self.options:
                raise UsageError(explain_unknown(argument, self.options, self.prog))
        found, unknown = self.parse_known_args(argv)
        if unknown:
            raise UsageError(explain_unknown(unknown[0], self.options, self.prog))
        return vars(found)

    def error(self, message: str) -> NoReturn:
        """Raise an error, where argparse ends the process."""
        raise UsageError(f"{message}; see {self.prog} --help")


def explain_unknown(argument: str, options: Sequence[str], prog: str) -> str:
    """Return what to say of an argument that a command does not take.

    Args:
        argument: What was typed.
        options: What there is.
        prog: The command.
    """
    if not argument.startswith("-"):
        return f"one argument too many: {argument}; see {prog} --help"
    option = argument.partition("=")[0]
    return f"there is no option {option}; {suggest(option, options)}see {prog} --help"


def parse_count(text: str) -> int:
    """Return a number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


@contextmanager
def speaking_of(**options: str) -> Iterator[None]:
    """Raise the errors of a block in the words of the command line: --n 4 instead of n=4.

    Args:
        options: The option for each argument of the functions that the block calls.
    """
    try:
        yield
    except (ValueError, TypeError, RuntimeError, ModuleNotFoundError) as error:
        message = translate(str(error), options)
        if message == str(error):
            raise
        raise UsageError(message) from error


def translate(message: str, options: dict[str, str]) -> str:
    """Return a message with `name=value` written as the option.

    What is in quotes, and a part of a longer name such as digits-n=4-seed0, stays as it is.

    Example:
        >>> translate("give n= or algebra=; n=3 is odd", {"n": "--n", "algebra": "--algebra"})
        'give --n or --algebra; --n 3 is odd'
    """

    def rename(found: re.Match[str]) -> str:
        option, value = options[found[1]], found[2].strip("'\"")
        if value.startswith(("(", "[")):
            return f"{option} [{','.join(value[1:-1].replace(' ', '').split(','))}]"
        if value in ("True", "False"):
            return option if value == "True" else option.replace("--", "--no-", 1)
        return f"{option} {shlex.quote(value)}" if value else option

    names = "|".join(map(re.escape, options))
    values = r"'[^']*'|\"[^\"]*\"|\([^()]*\)|\[[^\[\]]*\]|[\w+-]+(?:\.\w+)*|"
    renamed = re.sub(rf"(?<![\w.'\"/-])({names})=({values})", rename, message)
    return re.sub(rf"^({names}) must", lambda found: f"{options[found[1]]} must", renamed)
