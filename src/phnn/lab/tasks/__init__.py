"""Tasks: what networks are trained for.

`images` and `sound` are packages with one `Task` each. A further task is a package of the same kind
and an entry point; docs/own-task.md shows one.
"""

from phnn.lab.tasks.data import Data
from phnn.lab.tasks.registry import find_task, list_tasks, register
from phnn.lab.tasks.task import Answer, Score, Task

__all__ = ["Answer", "Data", "Score", "Task", "find_task", "list_tasks", "register"]
