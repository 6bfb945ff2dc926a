"""Tables as lines of text."""

import textwrap
from collections.abc import Container, Sequence

COLUMNS = 80  # of a terminal


def align(rows: Sequence[Sequence[str]], right: Container[int] = ()) -> list[str]:
    """Return a line for each row, its columns as wide as their longest cell.

    Args:
        rows: The cells, the head among them.
        right: Numbers of the columns that are aligned to the right.

    Example:
        >>> align([("layer", "size"), ("fc", "8")], right={1})
        ['layer  size', 'fc        8']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    justify = [str.rjust if i in right else str.ljust for i in range(len(widths))]
    return [
        "  ".join(
            put(cell, width) for put, cell, width in zip(justify, row, widths, strict=True)
        ).rstrip()
        for row in rows
    ]


def keep_columns(
    rows: Sequence[Sequence[str]], first: int, width: int = COLUMNS
) -> list[list[str]]:
    """Return the columns of a table that fit, from the left, without those that are empty.

    Args:
        rows: The cells, the head among them.
        first: How many columns are kept in any case.
        width: The characters of a line.

    Example:
        >>> keep_columns([["network", "score", "note"], ["real", "93.1", "a long note"]], 2, 20)
        [['network', 'score'], ['real', '93.1']]
    """
    kept: list[int] = []
    for number, column in enumerate(zip(*rows, strict=True)):
        wider = [*kept, number]
        widths = [max(len(row[i]) for row in rows) for i in wider]
        if not any(column[1:]):
            continue
        if number < first or sum(widths) + 2 * (len(widths) - 1) <= width:
            kept = wider
    return [[row[i] for i in kept] for row in rows]


def fit_lines(text: str, width: int = COLUMNS) -> str:
    """Return a text whose long lines go on below, indented.

    Example:
        >>> print(fit_lines("fc  left alone, because nothing divides 7", width=30))
        fc  left alone, because
            nothing divides 7
    """
    lines: list[str] = []
    for line in text.splitlines():
        wrapped = textwrap.wrap(
            line,
            width,
            subsequent_indent="    ",
            break_on_hyphens=False,
            break_long_words=False,
            replace_whitespace=False,
        )
        lines += wrapped or [""]
    return "\n".join(lines)
