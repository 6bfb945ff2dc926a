"""Formulas as MathML, which browsers show without a script and without a network."""

from typing import Any

from docutils import nodes
from docutils.utils.math import latex2mathml
from sphinx.application import Sphinx


def visit_math(self: Any, node: nodes.math) -> None:
    """Write a formula inside a line."""
    self.body.append(latex2mathml.tex2mathml(_simplify(node.astext())))
    raise nodes.SkipNode


def visit_math_block(self: Any, node: nodes.math_block) -> None:
    """Write a formula on a line of its own."""
    formula = latex2mathml.tex2mathml(_simplify(node.astext()), as_block=True)
    self.body.append(f'<div class="math">{formula}</div>')
    raise nodes.SkipNode


def _simplify(text: str) -> str:
    # docutils knows it only at the start of a group; it makes sums smaller, no more
    return text.replace(r"\textstyle", "")


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the two writers."""
    app.add_html_math_renderer(
        "mathml", inline_renderers=(visit_math, None), block_renderers=(visit_math_block, None)
    )
    app.config.html_math_renderer = "mathml"
    return {"parallel_read_safe": True, "parallel_write_safe": True}
