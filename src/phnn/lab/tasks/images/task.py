"""The task of image classification."""

from __future__ import annotations

from typing import Any

from phnn.lab.tasks.images.data import ImageData
from phnn.lab.tasks.images.options import ClassifierOptions
from phnn.lab.tasks.images.prediction import Prediction, find_images, predict, read_inputs
from phnn.lab.tasks.task import Score, Task
from phnn.models import CifarNet, Network, SEDnet

WHITENED = 5000  # images whose patches are whitened


def _choose_options(data: ImageData) -> dict[str, Any]:
    return {"in_channels": data.in_channels, "num_classes": data.num_classes}


def _check_network(model: Network) -> None:
    if isinstance(model, SEDnet):
        raise ValueError(
            "the network sednet is for task=sound; task=images takes the other networks"
        )


def _prepare_network(model: Network, data: ImageData) -> None:
    if isinstance(model, CifarNet):
        model.whiten(data.sample(WHITENED))


IMAGES = Task(
    "images",
    scores=(Score("accuracy", "accuracy", "%", scale=100, digits=2),),
    data=ImageData,
    learner="phnn.lab.tasks.images.classifier:Classifier",
    network_options=_choose_options,
    learner_options=ClassifierOptions,
    check_network=_check_network,
    prepare_network=_prepare_network,
    predict=predict,
    inputs=read_inputs,
    find_files=find_images,
    columns=Prediction._fields,
    sections="phnn.lab.tasks.images.report:sections",
    figures="phnn.lab.tasks.images.report:figures",
)
