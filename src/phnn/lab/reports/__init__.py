"""Reports: runs in, tables, figures and HTML pages out."""

from phnn.lab.reports.bubbles import draw_bubbles
from phnn.lab.reports.summaries import Spread, Summary, paired_p_value, summarize
from phnn.lab.reports.tables import render_text, write_tables

__all__ = [
    "Spread",
    "Summary",
    "draw_bubbles",
    "paired_p_value",
    "render_text",
    "summarize",
    "write_tables",
]
