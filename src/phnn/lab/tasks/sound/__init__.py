"""Sound event detection."""

from phnn.lab.tasks.sound.batches import SoundBatch, SoundBatches
from phnn.lab.tasks.sound.classes import CLASSES
from phnn.lab.tasks.sound.data import SoundData
from phnn.lab.tasks.sound.detection import Heard, detect
from phnn.lab.tasks.sound.features import preprocess
from phnn.lab.tasks.sound.labels import Event, find_frames, make_labels, read_events
from phnn.lab.tasks.sound.recordings import BrokenRecordingError, find_splits, read_wave
from phnn.lab.tasks.sound.spectrograms import spectrogram
from phnn.lab.tasks.sound.task import SOUND

__all__ = [
    "CLASSES",
    "SOUND",
    "BrokenRecordingError",
    "Event",
    "Heard",
    "SoundBatch",
    "SoundBatches",
    "SoundData",
    "detect",
    "find_frames",
    "find_splits",
    "make_labels",
    "preprocess",
    "read_events",
    "read_wave",
    "spectrogram",
]
