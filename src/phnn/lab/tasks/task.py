"""The tasks that networks are trained for, told by what each is judged by."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Score:
    """A number that a task is judged by.

    Attributes:
        name: The result of a run has it as test_NAME.
        label: What people call it.
        unit: Of the scaled number.
        scale: What the number is multiplied by before people see it.
        digits: Shown after the point.
        higher: Whether a higher number is better.
    """

    name: str
    label: str
    unit: str = ""
    scale: float = 1
    digits: int = 3
    higher: bool = True

    def show(self, value: float) -> str:
        """Returns a number as people read it.

        Args:
            value: As the result of a run has it.

        Example:
            >>> TASKS["images"].primary.show(0.8208)
            'accuracy 82.08 %'
        """
        return f"{self.label} {self.scale * value:.{self.digits}f} {self.unit}".rstrip()


@dataclass(frozen=True)
class Task:
    """What networks are trained for.

    Attributes:
        name: As recipes have it.
        scores: What it is judged by, the most important first.
        note: What one has to know to compare them with the paper's.
    """

    name: str
    scores: tuple[Score, ...]
    note: str = ""

    @property
    def primary(self) -> Score:
        """The score that networks are ranked by."""
        return self.scores[0]


IMAGES = Task("images", (Score("accuracy", "accuracy", "%", 100, 2),))
SOUND = Task(
    "sound",
    (
        Score("f", "F-score"),
        Score("er", "ER", higher=False),
        Score("sed", "SED score", higher=False),
        Score("precision", "P"),
        Score("recall", "R"),
    ),
    note="Events are counted plainly; the counting behind the paper's scores takes frames without "
    'a true or a found event twice, SoundEventScores(counting="authors").',
)
TASKS = {task.name: task for task in (IMAGES, SOUND)}
