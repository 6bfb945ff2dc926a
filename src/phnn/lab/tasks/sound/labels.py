"""The sounds that are active in each tenth of a second."""

import csv
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from phnn._names import suggest
from phnn.lab.tasks.sound.classes import CLASSES
from phnn.lab.tasks.sound.recordings import BrokenRecordingError

Rule = Literal["reference", "plain"]

FRAMES_PER_SECOND = 10
COLUMNS = ("Start", "End", "Class")


class Event(NamedTuple):
    """A sound in a recording: its start and end in seconds, and its class."""

    start: float
    end: float
    label: str


def read_events(path: Path) -> list[Event]:
    """Read a label file: comma-separated, with columns Start, End and Class among others."""
    if path.exists() and not path.is_file():  # reading a pipe would wait for a writer
        raise BrokenRecordingError(f"{path}: not a regular file")
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = csv.DictReader(file, skipinitialspace=True)
            missing = [name for name in COLUMNS if name not in (rows.fieldnames or ())]
            if missing:
                raise BrokenRecordingError(
                    f"{path} lacks the column {', '.join(missing)}; its first line must name "
                    f"{', '.join(COLUMNS)}"
                )
            return [_read_event(path, rows.line_num, row) for row in rows]
    except FileNotFoundError as error:
        raise BrokenRecordingError(f"there is no label file {path}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise BrokenRecordingError(f"{path} is not a text file of labels: {error}") from error


def _read_event(path: Path, line: int, row: dict[str, str | None]) -> Event:
    texts = [(row[name] or "").strip() for name in COLUMNS]
    try:
        start, end = float(texts[0]), float(texts[1])
    except ValueError as error:
        raise BrokenRecordingError(
            f"{path}, line {line}: Start={texts[0]!r} and End={texts[1]!r} must be seconds"
        ) from error
    if not 0 <= start <= end < math.inf:
        raise BrokenRecordingError(
            f"{path}, line {line}: an event cannot last from {start} to {end} s"
        )
    return Event(start, end, texts[2])


def check_rule(rule: str) -> None:
    """Raise a ValueError for an unknown rule."""
    if rule not in get_args(Rule):
        raise ValueError(f"rule={rule!r} must be one of {', '.join(get_args(Rule))}")


def find_frames(start: float, end: float, seconds: float, rule: Rule) -> range:
    """Return the frames of 0.1 s in which an event is active.

    Args:
        start: The start in seconds.
        end: The end in seconds; what lies beyond the recording is cut.
        seconds: The length of the recording.
        rule: "reference" is the challenge's: times are rounded to 0.1 s, frame = ⌊t · (frames − 1)
            / seconds⌋, and the last one counts. "plain": times are rounded to frames, the last one
            does not count, and every event has at least one.

    Example:
        >>> find_frames(1, 2, 60, "reference"), find_frames(1, 2, 60, "plain")
        (range(9, 20), range(10, 20))
    """
    frames = round(seconds * FRAMES_PER_SECOND)
    first, last = (min(round(t * FRAMES_PER_SECOND), frames) for t in (start, end))
    if rule == "reference":
        # t in tenths of a second: frame = ⌊t · (frames − 1) / frames⌋, without rounding errors
        return range(first * (frames - 1) // frames, last * (frames - 1) // frames + 1)
    first = min(first, frames - 1)
    return range(first, max(last, first + 1))


def make_labels(
    events: Sequence[Event],
    seconds: float = 60.0,
    *,
    classes: Sequence[str] = CLASSES,
    overlaps: int = 3,
    rule: Rule = "reference",
) -> npt.NDArray[np.uint8]:
    """Return 1 where a sound is active, 0 elsewhere: (frames, classes · overlaps).

    Each class has `overlaps` tracks, in the columns `class · overlaps + track`. In each frame, an
    event takes the first free track of its class.

    Args:
        events: The events, in the order of their file.
        seconds: The length of the recording.
        classes: The names that events may have.
        overlaps: How many events of a class may be active at once.
        rule: Which frames an event is in; see `find_frames`.
    """
    check_rule(rule)
    numbers = {name: number for number, name in enumerate(classes)}
    frames = round(seconds * FRAMES_PER_SECOND)
    counts = np.zeros((frames, len(numbers)), np.int64)
    for event in events:
        if event.label not in numbers:
            raise BrokenRecordingError(
                f"unknown class {event.label!r}; {suggest(event.label, numbers)}"
                f"the classes are {', '.join(numbers)}"
            )
        if event.start >= seconds:
            raise BrokenRecordingError(
                f"{event.label} starts at {event.start} s, the recording ends at {seconds} s"
            )
        active = find_frames(event.start, event.end, seconds, rule)
        counts[active.start : active.stop, numbers[event.label]] += 1
    if (counts > overlaps).any():
        frame, number = np.argwhere(counts > overlaps)[0]
        raise BrokenRecordingError(
            f"{counts[frame, number]} events of {classes[number]} at once, in the frame at "
            f"{frame / FRAMES_PER_SECOND:.1f} s, are more than overlaps={overlaps}"
        )
    tracks = np.arange(overlaps) < counts[:, :, None]
    return tracks.reshape(frames, -1).astype(np.uint8)
