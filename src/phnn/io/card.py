"""The card of a model, as the Hugging Face hub shows it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from phnn.io.atomic import write_text
from phnn.io.header import Header
from phnn.nn import PHLayer

CARD_MARK = "<!-- written by phnn.save -->"


def write_card(path: Path, card: str) -> None:
    """Write a model card, unless there is one that somebody else wrote."""
    if path.exists() and CARD_MARK not in path.read_text(encoding="utf-8"):
        return
    write_text(path, card)


def render_card(model: nn.Module, header: Header) -> str:
    """Return the model card: size, scores, how the model is built, trained and loaded."""
    title = header.config["name"] if header.config else type(model).__name__
    classes = header.metadata.get("classes")
    lines = [
        "---", "library_name: phnn", "tags:", "- phnn", "- hypercomplex", "---", CARD_MARK,
        f"# {title}", "", _render_size(model), "",
        *_render_scores(header.metadata.get("scores")),
        "| module | parameters | share |", "|---|---:|---:|", *_parameter_rows(model), "",
    ]  # fmt: skip
    if header.config:
        lines += ["Built by", "", "```python", _call(header.config), "```", ""]
    if header.layers:
        lines += [f"{len(header.layers)} layers are replaced; `config.json` lists them.", ""]
    if classes:
        lines += [f"Classes: {', '.join(map(str, classes))}.", ""]
    lines += _render_recipe(header.metadata.get("recipe"))
    argument = "" if header.config else ", model=make_model"
    lines += [
        "Load it from the hub, or from a folder with these files:", "", "```python",
        f'phnn.from_pretrained("user/model"{argument})', f'phnn.load("folder"{argument})',
        "```", "",
    ]  # fmt: skip
    if not header.config:
        lines += ["`make_model` is the function that builds the original model.", ""]
    return "\n".join(lines)


def _render_size(model: nn.Module) -> str:
    """Return a sentence: how many parameters, and how many plain layers would have."""
    total = sum(parameter.numel() for parameter in model.parameters())
    layers = {id(m.F): m for m in model.modules() if isinstance(m, PHLayer)}.values()
    saved = sum(_count_saved(layer) for layer in layers)
    if not saved:
        return f"{total:,} parameters."
    return f"{total:,} parameters; with plain layers of the same sizes, {total + saved:,}."


def _count_saved(layer: PHLayer) -> int:
    structure = layer.structure
    dense = layer.F.numel() * structure.n_out * structure.n_in // structure.terms
    own = sum(p.numel() for name, p in layer.named_parameters() if name != "bias")
    return dense - own


def _render_scores(scores: Any) -> list[str]:
    if not isinstance(scores, Mapping) or not scores:
        return []
    rows = [f"| {name} | {_show(value)} |" for name, value in scores.items()]
    return ["| score | |", "|---|---:|", *rows, ""]


def _render_recipe(recipe: Any) -> list[str]:
    if not recipe:
        return []
    text = recipe if isinstance(recipe, str) else json.dumps(recipe, indent=2)
    return ["Trained with", "", "```" if isinstance(recipe, str) else "```json", text, "```", ""]


def _show(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


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
