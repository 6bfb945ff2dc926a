"""Groups of parameters for an optimizer."""

from __future__ import annotations

from typing import Any

from torch import nn

from phnn.nn._matrices import named_weights
from phnn.nn.batch_norms import ComponentBatchNorm, WhiteningBatchNorm
from phnn.nn.rates import Kind, balance_rates

_NORMS = (nn.modules.batchnorm._NormBase, ComponentBatchNorm, WhiteningBatchNorm)
_ORDER = ("norm_bias", "algebra", "filter", "weight", "vector")


def param_groups(
    model: nn.Module,
    *,
    lr: float | None = None,
    balance: Kind | None = None,
    weight_decay: float = 0.0,
    norm_bias_scale: float = 1.0,
    filter_scale: float = 1.0,
    algebra_scale: float = 1.0,
    algebra_lr: float | None = None,
    algebra_decay: float | None = None,
    vector_decay: float | None = None,
) -> list[dict[str, Any]]:
    """Split the parameters of a model, so that PH layers can have learning rates of their own.

    Every parameter that requires a gradient is in exactly one group. Empty groups are left out.
    Filters and the biases of norms have groups of their own where their rates differ from lr.

    Args:
        model: Any model; without PH layers there is no group of algebras.
        lr: Learning rate that the scales multiply. It can be left out where there are none.
        balance: "sgd" or "adam", the optimizer, multiplies the rates of A and F by the factors of
            `balance_rates`, with which a step changes both as much as it changes a real weight.
            There is then a group for each rate.
        weight_decay: Decay of the filters and of every other weight.
        norm_bias_scale: Factor of the rate for the biases of batch and instance norms.
        filter_scale: Factor of the rate for the filters F of PH layers.
        algebra_scale: Factor of the rate for the algebras, A or U, V and W.
        algebra_lr: Learning rate of the algebras, instead of factors.
        algebra_decay: Decay of the algebras; `weight_decay` by default, as in the paper's recipes.
        vector_decay: Decay of biases and normalisation scales (parameters with at most one axis,
            and the matrices of `WhiteningBatchNorm`); `weight_decay` by default.

    Example:
        >>> from phnn.nn import PHLinear
        >>> groups = param_groups(PHLinear(64, 64, n=4), lr=0.1, balance="sgd")
        >>> [(group["name"], round(group["lr"], 3)) for group in groups]
        [('algebra', 0.6), ('filter', 0.05), ('vector', 0.1)]
    """
    scales = {"norm_bias": norm_bias_scale, "algebra": algebra_scale, "filter": filter_scale}
    if lr is None and (balance is not None or any(scale != 1 for scale in scales.values())):
        raise ValueError("give lr=, the learning rate that balance and the scales multiply")
    vector_decay = weight_decay if vector_decay is None else vector_decay
    algebra_decay = weight_decay if algebra_decay is None else algebra_decay
    decays = {"norm_bias": vector_decay, "vector": vector_decay, "algebra": algebra_decay}
    kinds = _find_kinds(model, balance)
    groups: dict[tuple[str, float | None], dict[str, Any]] = {}
    for parameter in model.parameters():
        if not parameter.requires_grad:
            continue
        name, factor = kinds.get(id(parameter), ("weight", 1.0))
        factor *= scales.get(name, 1.0)
        if name in ("norm_bias", "filter") and factor == 1:
            name = "vector" if parameter.dim() <= 1 else "weight"
        elif name == "weight" and parameter.dim() <= 1:
            name = "vector"
        rate = None if lr is None else lr * factor
        if name == "algebra" and algebra_lr is not None:
            rate = algebra_lr
        group = groups.setdefault(
            (name, rate),
            {
                "name": name,
                "params": [],
                "weight_decay": decays.get(name, weight_decay),
                **({} if rate is None else {"lr": rate}),
            },
        )
        group["params"].append(parameter)
    return sorted(groups.values(), key=lambda group: _ORDER.index(group["name"]))


def _find_kinds(model: nn.Module, balance: Kind | None) -> dict[int, tuple[str, float]]:
    """Return group and factor of the parameters whose layers decide, by their identity."""
    kinds: dict[int, tuple[str, float]] = {}
    for _, weight in named_weights(model):
        factors = {} if balance is None else balance_rates(weight, balance)
        kinds[id(weight.F)] = "filter", factors.get("F", 1.0)
        for name in weight.algebra_names if weight.learns_algebra else ():
            kinds[id(getattr(weight, name))] = "algebra", factors.get(name, 1.0)
    for module in model.modules():
        if isinstance(module, _NORMS) and module.bias is not None:
            kinds[id(module.bias)] = "norm_bias", 1.0
            kinds[id(module.weight)] = "vector", 1.0  # a matrix, where a norm whitens
    return kinds
