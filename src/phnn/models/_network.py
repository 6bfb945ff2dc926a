"""What every network of the zoo shares."""

import math
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
LARGEST = 2**20  # channels of a layer


def pick(option: str, value: object, choices: Mapping[Any, T]) -> T:
    """Return the choice that an option names; raise a ValueError that lists all choices."""
    check_choices(option, [value], choices)
    return choices[value]


def pick_widths(
    widths: str | Sequence[int], known: Mapping[str, Sequence[int]], multiplier: float
) -> list[int]:
    """Return widths, given by name or as numbers, times the multiplier."""
    example = next(iter(known.values()))
    chosen = pick("widths", widths, known) if isinstance(widths, str) else widths
    if len(chosen) != len(example):
        raise ValueError(
            f"widths={tuple(chosen)} must hold {len(example)} numbers, as {example} does"
        )
    return scale_widths(chosen, multiplier)


def scale_widths(widths: Sequence[int], multiplier: float) -> list[int]:
    """Return widths times the multiplier, of which each has one channel at least."""
    if not 0 < multiplier < math.inf:
        raise ValueError(f"width_multiplier={multiplier} must be a positive number")
    scaled = [width * multiplier for width in widths]
    if not all(0.5 < width < LARGEST for width in scaled):
        raise ValueError(
            f"width_multiplier={multiplier} and widths={tuple(widths)} give {min(scaled):g} to "
            f"{max(scaled):g} channels; they must be between 1 and {LARGEST:,}"
        )
    return [round(width) for width in scaled]


def authors_(layer: PHConv2d | PHLinear) -> None:
    """Draw the starting values of a hypercomplex layer as the authors' code does."""
    if layer.algebra is None:
        phnn.init.authors_(layer)
    else:
        phnn.init.polar_(layer, "he" if isinstance(layer, PHLinear) else "glorot")


def identity_(layer: PHConv2d | PHLinear) -> None:
    """Pass channels on, and draw the outputs beyond the number of inputs."""
    phnn.init.identity_(layer, rest="random")


def dirac_(module: nn.Module) -> None:
    """Let a real convolution pass its channels on; outputs beyond their number keep their draw."""
    if isinstance(module, nn.Conv2d):
        nn.init.dirac_(module.weight.data[: module.in_channels])


INITS = {
    "default": lambda layer: None,  # a new layer has its default values already
    "authors": authors_,
    "polar": phnn.init.polar_,
    "identity": identity_,
}


class Network(nn.Module, ABC):
    """A network of the zoo: features, then a head that ends in the real linear layer `fc`.

    All networks have these arguments:

    - `n`: Dimension of the algebra that each layer learns; without n and algebra, layers are real.
    - `algebra`: The fixed algebra of the layers, or its name.
    - `num_classes`: Number of classes; 0 returns the features that `fc` would read.
    - `in_channels`: Channels of the input; they are zero-padded in front to a multiple of n.
    - `width_multiplier`: Factor of all widths.
    - `init`: Starting values: "default", "authors", "polar" or "identity".
    - `terms`: Number of Kronecker terms of each layer.
    - `rank`: CP rank that the algebra of each layer is limited to.

    Attributes:
        config: The arguments with which `create_model(**config)` builds this network again; JSON
            can hold them.
        num_features: Number of features that `fc` reads.
    """

    config: dict[str, Any]
    num_features: int
    fc: nn.Module

    def __init__(self, name: str, arguments: Mapping[str, Any]) -> None:
        """Record the arguments.

        Args:
            name: The registered name.
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
            if config.get(key, least) < least:
                raise ValueError(f"{key}={config[key]} must be at least {least}")
        self.config = {"name": name, **config}

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return the output of the head."""
        return self.forward_head(self.forward_features(input))

    @abstractmethod
    def forward_features(self, input: torch.Tensor) -> torch.Tensor:
        """Return the features, which the head reads."""

    @abstractmethod
    def forward_head(self, features: torch.Tensor) -> torch.Tensor:
        """Return the scores of the classes."""

    def reset_classifier(self, num_classes: int) -> None:
        """Replace `fc` by a new layer for this many classes; remove it for 0."""
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
            init: "default", "polar", "authors" or "identity". The authors' code uses Xavier for
                learned algebras, polar for fixed ones, and for real layers what `init_real` does.
                With "identity", convolutions pass their channels on, and outputs beyond the
                number of their inputs are drawn.
        """
        draw = pick("init", init, INITS)
        layers = [module for module in self.modules() if isinstance(module, PHConv2d | PHLinear)]
        if init == "polar" and not layers:
            raise ValueError("init='polar' is for hypercomplex layers; give n= or algebra= as well")
        for layer in layers:
            draw(layer)
        if init == "authors":
            self.apply(self.init_real)
        elif init == "identity":
            self.apply(dirac_)

    def init_real(self, module: nn.Module) -> None:
        """Draw a real layer as the authors' code does; here, keep the values of torch."""
