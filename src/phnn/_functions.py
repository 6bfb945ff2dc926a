"""Functions of a user, by a name such as package.module:function."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from inspect import signature
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phnn._names import suggest

if TYPE_CHECKING:
    from torch import nn


def call_function(text: str) -> nn.Module:
    """Return the model that a function of the user returns, or that has this name."""
    from torch import nn

    with _from_here():
        make = _import(text)
        made = make if isinstance(make, nn.Module) else _make(text, make)
    if not isinstance(made, nn.Module):
        raise TypeError(f"{text} returns {type(made).__name__}, not a torch.nn.Module")
    return made


def find_function(text: str) -> Callable[..., Any]:
    """Return a function of the user, without calling it."""
    with _from_here():
        found = _import(text)
    if not callable(found):
        raise TypeError(f"{text} is a {type(found).__name__}, not a function")
    function: Callable[..., Any] = found
    return function


@contextmanager
def _from_here() -> Iterator[None]:
    """Find the modules of the current folder."""
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        yield
    finally:
        sys.path.remove(here)


def _import(text: str) -> Any:
    name, _, function = text.partition(":")
    try:
        module = import_module(name)
    except Exception as error:  # of the user's code
        if isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}."):
            raise ValueError(f"{text}: there is no module {error.name}") from error
        raise ValueError(f"{text}: the import of {name} fails: {_describe(error)}") from error
    try:
        return attrgetter(function)(module)
    except AttributeError:
        hint = suggest(function, vars(module)) or "give the name of one after the colon"
        raise ValueError(f"{text}: {name} has no function {function!r}; {hint}".rstrip()) from None


def _make(text: str, make: Any) -> Any:
    if not callable(make):
        raise TypeError(f"{text} is a {type(make).__name__}, not a function")
    try:
        arguments = signature(make)
        arguments.bind()
    except TypeError:
        raise TypeError(
            f"{text} needs arguments, {arguments}; give a function that needs none"
        ) from None
    except ValueError:  # written in C: nobody knows
        pass
    try:
        return make()
    except Exception as error:  # of the user's code
        raise ValueError(f"{text} fails: {_describe(error)}; PHNN_DEBUG=1 shows where") from error


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
