"""The exact ways to compute a PH layer, one object each."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from phnn.forms.base import Form, Source
from phnn.forms.components import FilterFirst, MixFirst
from phnn.forms.folded import Folded
from phnn.forms.grouped import CPGrouped
from phnn.forms.pointwise import CPColumns, CPRows, CPSamples
from phnn.forms.winograd import CPWinograd, Winograd

__all__ = [
    "FORMS",
    "CPColumns",
    "CPGrouped",
    "CPRows",
    "CPSamples",
    "CPWinograd",
    "FilterFirst",
    "Folded",
    "Form",
    "MixFirst",
    "Source",
    "Winograd",
    "forms_of",
    "read_form",
]

# in the order in which they are timed; of equal times the first wins
FORMS: tuple[type[Form], ...] = (
    Folded,
    FilterFirst,
    MixFirst,
    CPGrouped,
    CPSamples,
    CPColumns,
    CPRows,
    CPWinograd,
    Winograd,
)


def forms_of(source: Source, channels_last: bool = False) -> list[Form]:
    """Return all forms that a layer has in a memory format, folded first.

    Args:
        source: The layer, and what else forms are built from.
        channels_last: Whether the input has its channels last in memory.
    """
    return [form for kind in FORMS for form in kind.variants(source, channels_last)]


def read_form(entry: object) -> Form:
    """Return the form that an entry of a plan describes.

    Args:
        entry: What `Form.to_dict` returned.

    Raises:
        ValueError: It describes none.
    """
    kinds = {kind.name: kind for kind in FORMS}
    values: dict[str, Any] = dict(entry) if isinstance(entry, Mapping) else {}
    kind = kinds.get(str(values.pop("form", None)))
    if kind is None:
        raise ValueError(
            f'{entry!r} is not a form; write {{"form": NAME, …}} with one of the names '
            f"{', '.join(kinds)}"
        )
    defaults = {field.name: field.default for field in dataclasses.fields(kind)}
    for name, value in values.items():
        wanted = bool if defaults.get(name) is False else int
        if name not in defaults or type(value) is not wanted:
            options = ", ".join(defaults)
            raise ValueError(f"{entry!r} is not a form; the options of {kind.name} are {options}")
    return kind(**values)
