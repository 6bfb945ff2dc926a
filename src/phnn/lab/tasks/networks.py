"""Networks of recipes: those of the zoo, and those that functions of the user return."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import Parameter, signature
from typing import Any

from torch import Tensor, nn

from phnn._functions import find_function
from phnn.models import create_model


def is_own(name: object) -> bool:
    """Return whether a name stands for a function of the user, package.module:function."""
    return isinstance(name, str) and ":" in name


class OwnNetwork(nn.Module):
    """A network of the user, with the options that made it.

    Args:
        network: The network.
        config: Its name and options, as a recipe has them.
    """

    def __init__(self, network: nn.Module, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.network = network
        self.config = dict(config)

    def forward(self, *inputs: Tensor) -> Any:
        """Return what the network returns."""
        return self.network(*inputs)


def make_network(known: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
    """Return the network of a recipe.

    Args:
        known: What follows from the data, such as the number of classes. A function of the user
            gets what it has arguments for.
        options: The section `model` of the recipe.

    Raises:
        ValueError: The function fails, or has no argument for an option of the recipe.
    """
    name = options["name"]
    if not is_own(name):
        return create_model(**{**known, **options})
    make = find_function(name)
    parameters = signature(make).parameters
    takes_all = any(each.kind is Parameter.VAR_KEYWORD for each in parameters.values())
    given = {key: value for key, value in options.items() if key != "name" and value is not None}
    refused = [key for key in given if key not in parameters and not takes_all]
    if refused:
        raise ValueError(
            f"{name} has no argument {refused[0]}; leave out --model.{refused[0]}, or add it there"
        )
    fitting = {key: value for key, value in known.items() if key in parameters or takes_all}
    made = make(**{**fitting, **given})
    if not isinstance(made, nn.Module):
        raise ValueError(f"{name} returns {type(made).__name__}, not a torch.nn.Module")
    return OwnNetwork(made, options)


def unwrap(model: nn.Module) -> nn.Module:
    """Return the network itself, as `phnn.save` should write it."""
    return model.network if isinstance(model, OwnNetwork) else model
