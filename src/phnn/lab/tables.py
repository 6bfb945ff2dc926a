"""Render tables as text, Markdown or CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

from phnn._names import check_choices, printable
from phnn._tables import align

Format = Literal["text", "markdown", "csv"]


def render(
    head: Sequence[str], rows: Iterable[Sequence[object]], format: Format | str = "text"
) -> str:
    """Return a table as a string without a final newline.

    Args:
        head: Names of the columns.
        rows: Cells; None is an empty cell.
        format: "text" (aligned columns), "markdown" or "csv".

    Example:
        >>> print(render(["n", "parameters"], [[2, "half"], [16, "few"]]))
        n   parameters
        2   half
        16  few
    """
    check_choices("format", [format], _FORMATS)
    return _FORMATS[format]([head, *([_write(cell) for cell in row] for row in rows)])


def _write(cell: object) -> str:
    return "" if cell is None else str(cell)


def _render_text(table: Sequence[Sequence[str]]) -> str:
    return "\n".join(align([[printable(cell) for cell in row] for row in table]))


def _render_markdown(table: Sequence[Sequence[str]]) -> str:
    head, *rows = table
    lines = [
        "| " + " | ".join(cell.replace("|", r"\|") for cell in row) + " |"
        for row in (head, ["---"] * len(head), *rows)
    ]
    return "\n".join(lines)


def _render_csv(table: Sequence[Sequence[str]]) -> str:
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows(table)
    return file.getvalue().removesuffix("\n")


_FORMATS: dict[str, Callable[[Sequence[Sequence[str]]], str]] = {
    "text": _render_text,
    "markdown": _render_markdown,
    "csv": _render_csv,
}
