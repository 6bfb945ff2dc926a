"""What every network of the zoo shares."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import nn

import phnn.init
from phnn import algebra as algebras
from phnn._names import check_choices
from phnn.nn import PHConv2d, PHLinear

T = TypeVar("T")


def pick(option: str, value: object, choices: Mapping[Any, T]) -> T:
    """The entry of `choices` that the option names; a ValueError that lists them otherwise."""
    check_choices(option, [value], choices)
    return choices[value]


def pick_widths(
    widths: str | Sequence[int], known: Mapping[str, Sequence[int]], multiplier: float
) -> list[int]:
    """The widths by name or as they are given, times the multiplier."""
    count = len(known["paper"])
    chosen = pick("widths", widths, known) if isinstance(widths, str) else widths
    if len(chosen) != count:
        raise ValueError(
            f"widths={tuple(chosen)} must hold {count} numbers, as {known['paper']} does"
        )
    return [round(width * multiplier) for width in chosen]


def authors_(layer: PHConv2d | PHLinear) -> None:
    """Draw a hypercomplex layer as the authors' code does."""
    if layer.algebra is None:
        phnn.init.authors_(layer)
    else:
        phnn.init.polar_(layer, "he" if isinstance(layer, PHLinear) else "glorot")


# a new layer has its default values already
INITS = {"default": lambda layer: None, "authors": authors_, "polar": phnn.init.polar_}


class Network(nn.Module, ABC):
    """A network of the zoo: features, then a head that ends in the real linear layer `fc`.

    These arguments of the constructor are the same for all of them:

    - `n`: dimension of the algebra that each layer learns; real layers without n and algebra.
    - `algebra`: the fixed algebra of the layers, or its name.
    - `num_classes`: number of classes; 0 returns the features that `fc` would read.
    - `in_channels`: channels of the input; zeros in front bring them to a multiple of n.
    - `width_multiplier`: factor of all widths.
    - `init`: starting values, "default", "authors" or "polar".
    - `terms`: number of Kronecker terms of each layer.
    - `rank`: number of products that the algebra of each layer is limited to.

    Attributes:
        config: the arguments by which `create_model(**config)` builds this network again; JSON can
            hold them.
        num_features: number of features that `fc` reads.
    """

    config: dict[str, Any]
    num_features: int
    fc: nn.Module

    def __init__(self, name: str, arguments: Mapping[str, Any]) -> None:
        """Record the arguments.

        Args:
            name: the registered name.
            arguments: `locals()` at the start of the subclass's constructor, so that its signature
                is the only list of hyperparameters.
        """
        super().__init__()
        skip = ("self", "depth", "__class__")
        config = {key: value for key, value in arguments.items() if key not in skip}
        if isinstance(config["algebra"], algebras.Algebra):
            config["algebra"] = config["algebra"].name
        if not isinstance(config["widths"], str):
            config["widths"] = list(config["widths"])
        for key, least in (("in_channels", 1), ("num_classes", 0)):
            if config[key] < least:
                raise ValueError(f"{key}={config[key]} must be at least {least}")
        self.config = {"name": name, **config}

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """The head's answer to the features."""
        return self.forward_head(self.forward_features(input))

    @abstractmethod
    def forward_features(self, input: torch.Tensor) -> torch.Tensor:
        """Everything before the head."""

    @abstractmethod
    def forward_head(self, features: torch.Tensor) -> torch.Tensor:
        """From the features to the classes."""

    def reset_classifier(self, num_classes: int) -> None:
        """Replace `fc` by a fresh layer for that many classes; by nothing for 0."""
        if num_classes < 0:
            raise ValueError(f"num_classes={num_classes} must be at least 0")
        self.config["num_classes"] = num_classes
        like = next(self.parameters())
        self.fc = (
            nn.Linear(self.num_features, self.num_outputs, device=like.device, dtype=like.dtype)
            if num_classes
            else nn.Identity()
        )

    @property
    def num_outputs(self) -> int:
        """Number of outputs of `fc`."""
        return int(self.config["num_classes"])

    def init_weights(self, init: str) -> None:
        """Draw the starting values.

        Args:
            init: "default", "polar" or "authors". The authors' code draws by Xavier where the
                algebra is learned, polar where it is fixed, and real layers as `init_real` does.
        """
        draw = pick("init", init, INITS)
        layers = [module for module in self.modules() if isinstance(module, PHConv2d | PHLinear)]
        if init == "polar" and not layers:
            raise ValueError("init='polar' is for hypercomplex layers: give n= or algebra= as well")
        for layer in layers:
            draw(layer)
        if init == "authors":
            self.apply(self.init_real)

    def init_real(self, module: nn.Module) -> None:
        """Draw a real layer as the authors' code does: by default, as torch does."""
