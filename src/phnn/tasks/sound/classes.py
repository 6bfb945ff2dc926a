"""The classes of L3DAS21."""

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
