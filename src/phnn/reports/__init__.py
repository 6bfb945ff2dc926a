"""Runs made readable: runs in, tables, pictures and pages out."""

from phnn.reports.bubbles import draw_bubbles
from phnn.reports.drawing import save_figure
from phnn.reports.lines import Line, Spread, paired_p_value, summarize
from phnn.reports.sound import draw_events
from phnn.reports.tables import render_csv, render_json, render_markdown, render_text, write_tables

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
