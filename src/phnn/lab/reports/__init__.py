"""Runs made readable: runs in, tables, pictures and pages out."""

from phnn.lab.reports.bubbles import draw_bubbles
from phnn.lab.reports.drawing import save_figure
from phnn.lab.reports.lines import Line, Spread, paired_p_value, summarize
from phnn.lab.reports.sound import draw_events
from phnn.lab.reports.tables import (
    render_csv,
    render_json,
    render_markdown,
    render_text,
    write_tables,
)

__all__ = [
    "Line",
    "Spread",
    "draw_bubbles",
    "draw_events",
    "paired_p_value",
    "render_csv",
    "render_json",
    "render_markdown",
    "render_text",
    "save_figure",
    "summarize",
    "write_tables",
]
