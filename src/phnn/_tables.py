"""Tables as lines of text."""

from collections.abc import Container, Sequence


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
