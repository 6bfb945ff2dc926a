"""The tasks by their names."""

from importlib.metadata import entry_points

from phnn._names import check_choices
from phnn.lab.tasks.task import Task, resolve

GROUP = "phnn.tasks"  # of entry points, for the tasks of other packages

_tasks: dict[str, Task | str] = {
    "images": "phnn.lab.tasks.images:IMAGES",
    "sound": "phnn.lab.tasks.sound:SOUND",
}


def register(task: Task) -> Task:
    """Make a task known to this process by its name.

    A package makes its tasks known to every process by an entry point of the group "phnn.tasks".

    Args:
        task: The new task.

    Returns:
        The same task.

    Raises:
        ValueError: Another task has this name.
    """
    if task.name in list_tasks() and find_task(task.name) != task:
        raise ValueError(f"there is a task {task.name!r} already; give the new one another name")
    _tasks[task.name] = task
    return task


def list_tasks() -> list[str]:
    """Return the names of all tasks."""
    return list(dict.fromkeys([*_tasks, *(point.name for point in entry_points(group=GROUP))]))


def find_task(name: str) -> Task:
    """Return a task by its name.

    Args:
        name: One of `list_tasks()`.

    Raises:
        ValueError: There is no such task. The message names the nearest.
    """
    if name not in _tasks:
        check_choices("task", [name], list_tasks())
        _tasks[name] = next(iter(entry_points(group=GROUP, name=name))).load()
    found = _tasks[name]
    task = resolve(found) if isinstance(found, str) else found
    if not isinstance(task, Task):
        raise TypeError(f"the entry point {name!r} of {GROUP} is {task!r}, which is not a Task")
    return task
