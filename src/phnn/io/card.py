"""The card of a model, as the Hugging Face hub shows it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from phnn.io.atomic import write_text
from phnn.io.header import Header

CARD_MARK = "<!-- written by phnn.save -->"


def write_card(path: Path, card: str) -> None:
    """Write a model card, unless there is one that somebody else wrote."""
    if path.exists() and CARD_MARK not in path.read_text(encoding="utf-8"):
        return
    write_text(path, card)


def render_card(model: nn.Module, header: Header) -> str:
    """Return the model card: the parameters of each child, and how the model is built."""
    title = header.config["name"] if header.config else type(model).__name__
    classes = header.metadata.get("classes")
    lines = [
        "---", "library_name: phnn", "tags:", "- phnn", "- hypercomplex", "---", CARD_MARK,
        f"# {title}", "",
        "| module | parameters | share |", "|---|---:|---:|", *_parameter_rows(model), "",
    ]  # fmt: skip
    if header.config:
        lines += ["Built by", "", "```python", _call(header.config), "```", ""]
    if header.layers:
        lines += [f"{len(header.layers)} layers are replaced; `config.json` lists them.", ""]
    if classes:
        lines += [f"Classes: {', '.join(map(str, classes))}.", ""]
    call = "phnn.load(folder)" if header.config else "phnn.load(folder, model=...)"
    lines += [f"Load it with `{call}`.", ""]
    return "\n".join(lines)


def _parameter_rows(model: nn.Module) -> list[str]:
    """Return a table row for each child; a tensor of several children counts in the first."""
    total = sum(parameter.numel() for parameter in model.parameters())
    counts: dict[str, int] = {}
    for name, parameter in model.named_parameters():
        child = name.partition(".")[0]
        counts[child] = counts.get(child, 0) + parameter.numel()
    rows = [f"| {child} | {n:,} | {n / total:.1%} |" for child, n in counts.items()]
    return [*rows, f"| **all** | **{total:,}** | |"]


def _call(config: Mapping[str, Any]) -> str:
    arguments = [f"{key}={value!r}" for key, value in config.items() if key != "name"]
    return f"phnn.create_model({', '.join([repr(config['name']), *arguments])})"
