"""Names and numbers as a user types them."""

import difflib
import re
import types
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

MANY = 40  # names; an error lists so many only if it can suggest none of them
# what people call the types of options
KINDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    tuple: "a list",
    Path: "a path",
    type(None): "null",
}


def suggest(name: object, known: Iterable[object]) -> str:
    """Return "did you mean …? " with the nearest known names, or nothing when none is near.

    Example:
        >>> suggest("cifra10", ["cifar10", "svhn"])
        'did you mean cifar10? '
    """
    near = difflib.get_close_matches(str(name), {str(k): None for k in known}, n=3, cutoff=0.5)
    return f"did you mean {' or '.join(near)}? " if near else ""


def check_choices(what: str, names: Iterable[object], known: Iterable[object]) -> None:
    """Raise a ValueError for the first name that is not known.

    Args:
        what: The kind of thing that is named.
        names: What the user gave.
        known: What there is.

    Example:
        >>> check_choices("split", ["text"], ["train", "test"])
        Traceback (most recent call last):
        ValueError: unknown split 'text'; did you mean test? known are train, test
        >>> check_choices("recipe", ["digts"], ["digits", *range(MANY)])
        Traceback (most recent call last):
        ValueError: unknown recipe 'digts'; did you mean digits?
    """
    known = list(dict.fromkeys(known))
    for name in names:
        if name not in known:
            near = suggest(name, known)
            every = f"known are {', '.join(map(str, known))}"
            hint = near.rstrip() if near and len(known) > MANY else f"{near}{every}"
            raise ValueError(f"unknown {what} {name!r}; {hint}")


def check_types(section: str, given: Mapping[str, Any], function: Callable[..., Any]) -> None:
    """Raise a ValueError for the first option whose value has another type than it should.

    Args:
        section: The section of the recipe.
        given: The options.
        function: A function or class whose signature has them; other types than `KINDS` and
            literals are not checked.

    Example:
        >>> def load(batch_size: int = 32, limit: int | None = None): ...
        >>> check_types("data", {"batch_size": 64, "limit": None}, load)
        >>> check_types("data", {"batch_size": "x"}, load)
        Traceback (most recent call last):
        ValueError: data.batch_size='x' must be a whole number
    """
    hints = get_type_hints(vars(function).get("__init__", function))  # of a class or a function
    for name, value in given.items():
        accepted = _list_types(hints.get(name))
        if accepted and not any(_is_a(value, kind) for kind in accepted):
            known = " or ".join(_describe_type(kind) for kind in accepted)
            raise ValueError(f"{section}.{name}={value!r} must be {known}")


def _list_types(hint: Any) -> list[Any]:
    """Return the types that a hint accepts; none where one of them cannot be checked."""
    parts = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    known = [part if get_origin(part) is Literal else get_origin(part) or part for part in parts]
    is_known = all(get_origin(part) is Literal or part in KINDS for part in known)
    return known if is_known else []


def _is_a(value: object, kind: Any) -> bool:
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    if isinstance(value, bool):
        return kind is bool
    more = {float: (int, float), tuple: (list, tuple), Path: (str, Path)}
    return isinstance(value, more.get(kind, kind))


def _describe_type(kind: Any) -> str:
    return " or ".join(get_args(kind)) if get_origin(kind) is Literal else KINDS[kind]


def printable(text: str) -> str:
    r"""Return a text whose control characters are spelled out, so that no file moves the cursor.

    Example:
        >>> print(printable("layer\x1b[2J"))
        layer\x1b[2J
    """
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text)


def parse_dimension(text: str) -> int | tuple[int, int]:
    """Read a dimension n as the command line writes it.

    Example:
        >>> parse_dimension("4"), parse_dimension("16x4")
        (4, (16, 4))
    """
    found = re.fullmatch(r"\s*(\d+)\s*(?:x\s*(\d+)\s*)?", text)
    sizes = [] if found is None else [int(size) for size in found.groups() if size is not None]
    if not sizes or min(sizes) < 1:
        raise ValueError(
            f"{text!r} is neither a whole number of at least 1 nor a pair such as 16x4"
        )
    return sizes[0] if len(sizes) == 1 else (sizes[0], sizes[1])
