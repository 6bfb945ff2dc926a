"""The functions of each task that add to a report.

They replace the fields `sections` and `figures` of `phnn.lab.tasks.task.Task`.
"""

from importlib import import_module

from phnn.lab.tasks.report import Figures, Sections
from phnn.lab.tasks.task import Task

TASK_SECTIONS_AND_FIGURES = {
    "images": "phnn.lab.tasks.images.report",
    "sound": "phnn.lab.tasks.sound.report",
}


def find_sections(task: Task) -> Sections:
    """Return the function that yields the sections of a task."""
    found: Sections = import_module(TASK_SECTIONS_AND_FIGURES[task.name]).sections
    return found


def find_figures(task: Task) -> Figures:
    """Return the function that yields the figures of a task."""
    found: Figures = import_module(TASK_SECTIONS_AND_FIGURES[task.name]).figures
    return found
