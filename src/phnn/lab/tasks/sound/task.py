"""The task of sound event detection."""

from __future__ import annotations

from typing import Any

from phnn.lab.tasks.sound.data import SoundData
from phnn.lab.tasks.sound.detection import Event, find_recordings, predict, read_inputs
from phnn.lab.tasks.sound.options import DetectorOptions
from phnn.lab.tasks.sound.spectrograms import BINS
from phnn.lab.tasks.task import Score, Task
from phnn.models import Network, SEDnet


def _choose_options(data: SoundData) -> dict[str, Any]:
    return {
        "in_channels": data.in_channels,
        "num_classes": data.num_classes,
        "bins": BINS,
        "overlaps": data.overlaps,
        "logits": True,
    }


def _check_network(model: Network) -> None:
    if not isinstance(model, SEDnet):
        raise ValueError(
            f"the network {model.config['name']} is for task=images; task=sound takes sednet"
        )


SOUND = Task(
    "sound",
    scores=(
        Score("f", "F-score"),
        Score("er", "ER", higher=False),
        Score("sed", "SED score", higher=False),
        Score("precision", "P"),
        Score("recall", "R"),
    ),
    criterion=Score("loss", "loss", higher=False),  # as in the paper's code
    data=SoundData,
    learner="phnn.lab.tasks.sound.detector:Detector",
    network_options=_choose_options,
    learner_options=DetectorOptions,
    shown=("counting",),
    timed=1,
    check_network=_check_network,
    predict=predict,
    inputs=read_inputs,
    find_files=find_recordings,
    columns=("recording", *Event._fields),
    picture="phnn.lab.tasks.sound.report:draw_heard",
    sections="phnn.lab.tasks.sound.report:sections",
    figures="phnn.lab.tasks.sound.report:figures",
    note="counting: plain, or authors as in the code published with the paper, which counts frames "
    "without a true or a found event twice; --learner.counting chooses it.",
)
