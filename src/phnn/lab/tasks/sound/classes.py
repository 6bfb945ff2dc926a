"""The classes of a set of recordings."""

from pathlib import Path

from phnn.lab.files import read_json

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
    content = read_json(settings)
    classes = content.get("classes") if isinstance(content, dict) else None
    if not isinstance(classes, list) or not all(isinstance(name, str) for name in classes):
        raise ValueError(f"{settings} is damaged: it must name the classes of the recordings")
    return tuple(classes)
