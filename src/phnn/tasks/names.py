"""Names that a user may mistype."""

import difflib
from collections.abc import Iterable


def suggest(name: str, known: Iterable[str]) -> str:
    """Returns "did you mean …? " with the nearest known names, or nothing when none is near.

    Example:
        >>> suggest("cifra10", ["cifar10", "svhn"])
        "did you mean 'cifar10'? "
    """
    near = difflib.get_close_matches(name, list(known), n=2)
    return f"did you mean {' or '.join(map(repr, near))}? " if near else ""


def check_choices(what: str, names: Iterable[str], known: Iterable[str]) -> None:
    """Raises a ValueError for the first name that is not known.

    Args:
        what: the kind of thing that is named.
        names: what the user gave.
        known: what there is.
    """
    known = list(known)
    for name in names:
        if name not in known:
            raise ValueError(
                f"unknown {what} {name!r}; {suggest(name, known)}known are {', '.join(known)}"
            )
