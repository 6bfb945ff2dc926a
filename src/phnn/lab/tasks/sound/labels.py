"""Which sounds are active in each tenth of a second."""

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
    """A sound in a recording: seconds from its beginning, and the class."""

    start: float
    end: float
    label: str


def read_events(path: Path) -> list[Event]:
    """Reads a label file: comma-separated, with columns Start, End and Class among others."""
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
    """Raises a ValueError for an unknown rule."""
    if rule not in get_args(Rule):
        raise ValueError(f"rule={rule!r} must be one of {', '.join(get_args(Rule))}")


def find_frames(start: float, end: float, seconds: float, rule: Rule) -> range:
    """Returns the frames of 0.1 s in which an event is active.

    Args:
        start: seconds from the beginning of the recording.
        end: likewise; what lies beyond the recording is cut.
        seconds: length of the recording.
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
    """Returns 1 where a sound is active, 0 elsewhere: (frames, classes · overlaps).

    Column `class · overlaps + slot`: an event takes, in each frame, the slot whose number is that
    of the events of its class that are there already.

    Args:
        events: in the order of their file.
        seconds: length of the recording.
        classes: the names that events may have.
        overlaps: how many events of a class may be active at once.
        rule: which frames an event is in; see `find_frames`.
    """
    check_rule(rule)
    places = {name: place for place, name in enumerate(classes)}
    frames = round(seconds * FRAMES_PER_SECOND)
    counts = np.zeros((frames, len(places)), np.int64)
    for event in events:
        if event.label not in places:
            raise BrokenRecordingError(
                f"unknown class {event.label!r}; {suggest(event.label, places)}"
                f"the classes are {', '.join(places)}"
            )
        if event.start >= seconds:
            raise BrokenRecordingError(
                f"{event.label} starts at {event.start} s, the recording ends at {seconds} s"
            )
        active = find_frames(event.start, event.end, seconds, rule)
        counts[active.start : active.stop, places[event.label]] += 1
    if (counts > overlaps).any():
        frame, place = np.argwhere(counts > overlaps)[0]
        raise BrokenRecordingError(
            f"{counts[frame, place]} events of {classes[place]} at once, in the frame at "
            f"{frame / FRAMES_PER_SECOND:.1f} s, are more than overlaps={overlaps}"
        )
    slots = np.arange(overlaps) < counts[:, :, None]
    return slots.reshape(frames, -1).astype(np.uint8)
