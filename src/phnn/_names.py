"""Names and numbers as a user types them."""

import difflib
import re
from collections.abc import Iterable


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
    """
    known = list(dict.fromkeys(known))
    for name in names:
        if name not in known:
            every = ", ".join(map(str, known))
            raise ValueError(f"unknown {what} {name!r}; {suggest(name, known)}known are {every}")


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
