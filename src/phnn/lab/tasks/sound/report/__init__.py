"""The report about networks that detect sound events."""

from phnn.lab.tasks.sound.report.heard import draw_heard
from phnn.lab.tasks.sound.report.sections import figures, sections

__all__ = ["draw_heard", "figures", "sections"]
