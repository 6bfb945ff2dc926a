"""The command that shows what is in a model."""

from __future__ import annotations

from typing import Any

from phnn.cli.model_argument import add_network_options, find_file, find_model
from phnn.cli.parser import Parser


def add_arguments(parser: Parser) -> None:
    """Add the arguments of the command."""
    parser.add_model()
    add_network_options(parser)


def run(model: str, n: int | None, algebra: str | None) -> int:
    """Print the layers of a model, their parameters and their sizes.

    Example:
      phnn inspect small.safetensors
    """
    from phnn._tables import fit_lines
    from phnn.io import inspect

    options: dict[str, Any] = {"n": n, "algebra": algebra}
    file = find_file(model, **options)
    if file is None or file.suffix == ".ckpt":
        found = inspect(find_model(model, **options).model)
    else:
        found = inspect(file)  # without reading its tensors
    print(fit_lines(str(found)))
    return 0
