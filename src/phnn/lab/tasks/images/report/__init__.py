"""The report about networks that classify images."""

from phnn.lab.tasks.images.report.sections import figures, sections

__all__ = ["figures", "sections"]
