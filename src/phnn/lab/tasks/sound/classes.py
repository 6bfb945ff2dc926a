"""The classes of a set of recordings."""

import json
from pathlib import Path

SETTINGS = "simulation.json"  # beside simulated recordings: how they were made

# of L3DAS21
CLASSES = (
    "Chink_and_clink",
    "Computer_keyboard",
    "Cupboard_open_or_close",
    "Drawer_open_or_close",
    "Female_speech_and_woman_speaking",
    "Finger_snapping",
    "Keys_jangling",
    "Knock",
    "Laughter",
    "Male_speech_and_man_speaking",
    "Printer",
    "Scissors",
    "Telephone",
    "Writing",
)


def find_classes(root: Path) -> tuple[str, ...]:
    """Return the classes that a simulation noted beside its recordings, or else L3DAS21's."""
    settings = root / SETTINGS
    if not settings.is_file():
        return CLASSES
    return tuple(json.loads(settings.read_text(encoding="utf-8"))["classes"])
