"""Converted models that `from_pretrained` would load without their PH layers, and say nothing.

`from_pretrained` of transformers and of the Hugging Face hub builds the model of its class, with
plain layers, and takes from a file what has the same names. PH layers have other names, so the
plain layers would keep their random start.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from phnn.nn import PHLayer
from phnn.nn._matrices import PHMatrices

REMEDY = "phnn.save(model, folder) writes it, phnn.load(folder, model=...) reads it"


def guard(model: nn.Module) -> None:
    """Let no part of a converted model be loaded by a class that does not know its PH layers.

    Models of transformers are saved, as its Trainer does at each checkpoint, in a way that
    `from_pretrained` refuses. Models of the hub are not saved. A model without PH layers, as after
    `to_dense`, is free again.

    Args:
        model: The model; its modules get methods of their own for saving.
    """
    for module in model.modules():
        homes = {(base.__module__.partition(".")[0], base.__name__) for base in type(module).mro()}
        methods: dict[str, Any] = {}
        if ("transformers", "PreTrainedModel") in homes:
            methods["save_pretrained"] = functools.partial(save_marked, module)
        if ("huggingface_hub", "ModelHubMixin") in homes:
            methods["_save_pretrained"] = functools.partial(refuse, type(module).__name__)
        if any(isinstance(part, PHLayer | PHMatrices) for part in module.modules()):
            vars(module).update(methods)
            continue
        for name, method in methods.items():
            found = vars(module).get(name)
            if isinstance(found, functools.partial) and found.func is method.func:
                del vars(module)[name]


def save_marked(
    model: nn.Module,
    folder: Any,
    *args: Any,
    state_dict: Mapping[str, Tensor] | None = None,
    **options: Any,
) -> Any:
    """Save a model of transformers with an empty weight for each PH layer.

    `from_pretrained` finds that its size is wrong, and stops. A model that has the PH layers loads
    the state with `load_state_dict(strict=False)`, as the Trainer does when it resumes.
    """
    state = dict(model.state_dict() if state_dict is None else state_dict)
    for name, module in model.named_modules():
        if isinstance(module, PHLayer | PHMatrices):
            weights = ["weight"] if isinstance(module, PHLayer) else list(module.matrices)
            state |= {f"{name}.{weight}": torch.empty(0) for weight in weights}
    kind: Any = type(model)
    return kind.save_pretrained(model, folder, *args, state_dict=state, **options)


def refuse(name: str, *args: object, **options: object) -> None:
    """Refuse to write what from_pretrained cannot read.

    Raises:
        ValueError: Always.
    """
    raise ValueError(
        f"{name}.from_pretrained would not make the PH layers of this model; {REMEDY}. "
        "phnn.to_dense makes a model that it can read"
    )
