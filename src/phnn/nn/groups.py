"""Groups of parameters for an optimizer."""

from __future__ import annotations

from typing import Any

from torch import nn

from phnn.nn._layer import PHLayer


def param_groups(
    model: nn.Module,
    *,
    weight_decay: float = 0.0,
    algebra_lr: float | None = None,
    algebra_decay: float | None = None,
    vector_decay: float | None = None,
) -> list[dict[str, Any]]:
    """Split the parameters of a model, so that algebras can have their own learning rate.

    Every parameter that requires a gradient is in exactly one group. Empty groups are left out.

    Args:
        model: Any model; without PH layers there is no group of algebras.
        weight_decay: Decay of the filters and of every other weight.
        algebra_lr: Learning rate of the algebras, A or U, V and W; the optimizer's own by default.
        algebra_decay: Decay of the algebras; `weight_decay` by default, as in the paper's recipes.
        vector_decay: Decay of biases and normalisation scales (parameters with at most one axis);
            `weight_decay` by default.

    Example:
        >>> from phnn.nn import PHLinear
        >>> groups = param_groups(PHLinear(8, 8, n=2), weight_decay=5e-4, algebra_lr=0.01)
        >>> [(group["name"], len(group["params"])) for group in groups]
        [('algebra', 1), ('weight', 1), ('vector', 1)]
    """
    algebras = {
        id(getattr(module, name))
        for module in model.modules()
        if isinstance(module, PHLayer) and module.learns_algebra
        for name in module.algebra_names
    }
    groups: dict[str, dict[str, Any]] = {
        "algebra": {
            "weight_decay": weight_decay if algebra_decay is None else algebra_decay,
            **({} if algebra_lr is None else {"lr": algebra_lr}),
        },
        "weight": {"weight_decay": weight_decay},
        "vector": {"weight_decay": weight_decay if vector_decay is None else vector_decay},
    }
    members: dict[str, list[nn.Parameter]] = {name: [] for name in groups}
    for parameter in model.parameters():
        if parameter.requires_grad:
            kind = "vector" if parameter.dim() <= 1 else "weight"
            members["algebra" if id(parameter) in algebras else kind].append(parameter)
    return [
        {"name": name, "params": members[name], **options}
        for name, options in groups.items()
        if members[name]
    ]
