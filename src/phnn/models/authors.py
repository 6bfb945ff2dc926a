"""Checkpoints of the authors' own networks."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from phnn.models._network import Network
from phnn.models.resnet import ResNet
from phnn.models.sednet import SEDnet
from phnn.models.vgg import VGG
from phnn.nn import PHConv2d, from_authors

_WRAPPERS = ("state_dict", "model_state_dict", "model")  # keys of checkpoints that hold more
_SED_BLOCK = 5  # modules of a convolution in our SEDnet: conv, norm, ReLU, pooling, dropout


class Taken(NamedTuple):
    """What was taken from a checkpoint.

    Attributes:
        taken: The entries that became entries of the network.
        folded: The biases of convolutions that became part of the batch norms after them.
        unapplied: The biases of PH convolutions, which the authors' code never applies.
        left: The entries that the network has no place for.
    """

    taken: int
    folded: int
    unapplied: int
    left: tuple[str, ...]

    def __str__(self) -> str:
        total = self.taken + self.folded + self.unapplied + len(self.left)
        parts = [f"took {self.taken + self.folded} of {total} entries"]
        if self.folded:
            parts.append(f"{self.folded} of them biases that batch norms absorbed")
        if self.unapplied:
            parts.append(f"dropped {self.unapplied} biases that the authors' code never applies")
        if self.left:
            shown = ", ".join(self.left[:3]) + (", …" if len(self.left) > 3 else "")
            parts.append(f"left {len(self.left)}: {shown}")
        return "; ".join(parts)


def load_authors(model: Network, checkpoint: Mapping[str, Any]) -> Taken:
    """Load a checkpoint of the paper's published code (HyperNets) into a network of the zoo.

    Their ResNets, VGGs and SEDnets differ from ours in the names of modules, in the shape of F, and
    in biases before batch norms. Such a bias is subtracted from the running mean of the norm, which
    computes the same.

    Args:
        model: The same network, such as `create_model("resnet18", n=4)`. It changes only when all
            of it is in the checkpoint.
        checkpoint: Their state dict, as `torch.load(file, weights_only=True)` returns it, or a
            dictionary that holds it.

    Raises:
        ValueError: The checkpoint is of another network. The message names what differs.
    """
    state = _unwrap(checkpoint)
    rename = _RENAME.get(type(model))
    if rename is None:
        known = ", ".join(kind.__name__ for kind in _RENAME)
        raise ValueError(f"the authors have no {type(model).__name__}; they have {known}")
    hypercomplex = any(key.rpartition(".")[2] in _HYPERCOMPLEX for key in state)
    translated = from_authors(state) if hypercomplex else dict(state)
    unapplied = sum(key.endswith(".bias") and key not in translated for key in state)
    renamed = {rename(key): value for key, value in translated.items()}
    folded = _fold_biases(model, renamed)
    own = model.state_dict()
    left = tuple(key for key in renamed if key not in own)
    _compare(model, own, renamed)
    fitting = {key: value for key, value in renamed.items() if key in own}
    model.load_state_dict(fitting, strict=False)
    quaternions = sum(key.rpartition(".")[2] == "r_weight" for key in state)  # A and F for four
    return Taken(len(fitting) + 2 * quaternions, folded, unapplied, left)


_HYPERCOMPLEX = ("A", "a", "r_weight")


def _unwrap(checkpoint: Mapping[str, Any]) -> dict[str, Tensor]:
    for key in _WRAPPERS:
        if isinstance(checkpoint.get(key), Mapping):
            checkpoint = checkpoint[key]
    bad = [key for key, value in checkpoint.items() if not isinstance(value, Tensor)]
    if bad or not checkpoint:
        what = f"{bad[0]} is no tensor" if bad else "it is empty"
        raise ValueError(f"the checkpoint is not a state dict: {what}")
    return {str(key).removeprefix("module."): value for key, value in checkpoint.items()}


def _rename_resnet(key: str) -> str:
    return re.sub(r"^linear\.", "fc.", key.replace(".shortcut.", ".downsample."))


def _rename_vgg(key: str) -> str:
    # ours begins with the module that pads channels
    key = re.sub(r"^features\.(\d+)", lambda found: f"features.{int(found[1]) + 1}", key)
    return re.sub(r"^classifier\.6\.", "fc.", key)


def _rename_sednet(key: str) -> str:
    def number(found: re.Match[str]) -> str:
        return f"cnn.{1 + _SED_BLOCK * int(found[1]) + int(found[2])}"

    key = re.sub(r"^cnn\.(\d+)\.(\d+)", number, key)
    key = re.sub(r"^rnn\.", "gru.", key)
    return re.sub(r"^sed\.", "tail.", re.sub(r"^sed\.7\.", "fc.", key))


_RENAME: dict[type, Callable[[str], str]] = {
    ResNet: _rename_resnet,
    VGG: _rename_vgg,
    SEDnet: _rename_sednet,
}


def _fold_biases(model: Network, state: dict[str, Tensor]) -> int:
    """Subtract the biases of convolutions from the means of the norms after them, in place."""
    folded = 0
    for parent, container in model.named_modules():
        if not isinstance(container, nn.Sequential):
            continue
        names = list(container._modules)
        for name, following in pairwise(names):
            conv, norm = container.get_submodule(name), container.get_submodule(following)
            bias, mean = f"{parent}.{name}.bias", f"{parent}.{following}.running_mean"
            is_pair = isinstance(conv, nn.Conv2d | PHConv2d) and isinstance(norm, nn.BatchNorm2d)
            if is_pair and conv.bias is None and bias in state and mean in state:
                state[mean] = state[mean] - state.pop(bias)
                folded += 1
    return folded


def _compare(model: Network, own: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> None:
    """Raise a ValueError when the network is not the one of the checkpoint."""
    for key, value in found.items():
        if key in own and own[key].shape != value.shape:
            hint = f"; give num_classes={len(value)}" if key in ("fc.weight", "fc.bias") else ""
            raise ValueError(
                f"{key} has the shape {tuple(value.shape)} in the checkpoint and "
                f"{tuple(own[key].shape)} in {model.config['name']}{hint}"
            )
    counters = "num_batches_tracked"
    missing = [key for key in own if key not in found and not key.endswith(counters)]
    if missing:
        raise ValueError(
            f"the checkpoint lacks {len(missing)} entries of {model.config['name']}, the first is "
            f"{missing[0]}; it may be of another depth, n or kind"
        )
    for key, value in found.items():
        if key in own and value.is_floating_point() and not torch.isfinite(value).all():
            raise ValueError(f"{key} of the checkpoint has values that are not finite")
