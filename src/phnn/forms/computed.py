"""Weights that a module computes from the filters that it holds.

They keep a file small: it holds F, and whatever loads it computes the larger weight once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from phnn.functional import Factors, kronecker_sum
from phnn.functional._products import mix_filters, pad_filters
from phnn.functional._storage import decode, encode
from phnn.nn import PHLayer
from phnn.nn._matrices import PHMatrices

LARGE = 256  # numbers of an algebra from which on it is stored like filters


class Stored(nn.Module):
    """Filters in a storage type, and what is computed from them.

    Args:
        filters: The filters F, or any weight.
        storage: The type that a file holds them in.
        recipe: Computes the weight from F; None where F is the weight.
    """

    values: Tensor
    per_unit: Tensor | None

    def __init__(self, filters: Tensor, storage: str, recipe: nn.Module | None = None) -> None:
        super().__init__()
        encoded = encode(filters.detach(), storage)
        self.dtype, self.recipe = filters.dtype, recipe
        self.register_buffer("values", encoded.values)
        self.register_buffer("per_unit", encoded.per_unit)

    def forward(self) -> Tensor:  # noqa: D102
        filters = decode(self.values, self.per_unit, self.dtype)
        return filters if self.recipe is None else self.recipe(filters)


def compute_weight(module: nn.Module, path: str, stored: Stored) -> None:
    """Let a module compute one of its parameters in each call, in place.

    Args:
        module: The module.
        path: Name of the parameter.
        stored: What computes it.
    """
    parent, _, name = path.rpartition(".")
    owner = module.get_submodule(parent)
    source = f"{name}_source"
    owner.register_parameter(name, None)
    del owner._parameters[name]
    owner.add_module(source, stored)
    kind = type(owner)

    def compute(self: nn.Module) -> Any:
        return self.get_submodule(source)()

    owner.__class__ = type(kind.__name__, (kind,), {name: property(compute)})


def store_filters(model: nn.Module, storage: str) -> nn.Module:
    """Let the layers of a model compute their weights from values in a storage type, in place.

    Args:
        model: A copy of its own, with filters in layers that `filters_of` knows.
        storage: The type; float32 changes nothing.
    """
    if storage == "float32":
        return model
    stored: dict[int, Stored] = {}
    for module, name in list(filters_of(model)):
        value = module.get_parameter(name)
        if id(value) not in stored:
            stored[id(value)] = Stored(value, storage)
        compute_weight(module, name, stored[id(value)])
    return model


def filters_of(model: nn.Module) -> Iterator[tuple[nn.Module, str]]:
    """Yield the modules of a model that hold filters, with the names of their parameters.

    A large algebra counts as filters: in converted networks A may hold more numbers than F.
    """
    for module in model.modules():
        for name, value in module._parameters.items():
            if value is not None and value.dim() > 1 and _is_filter(module, name, value):
                yield module, name


def _is_filter(module: nn.Module, name: str, value: Tensor) -> bool:
    if isinstance(module, nn.Linear | nn.Embedding | nn.modules.conv._ConvNd):
        return name == "weight"
    if isinstance(module, PHLayer) and name == "F":
        return True
    return isinstance(module, PHLayer | PHMatrices | Assemble) and value.numel() >= LARGE


class Assemble(nn.Module):
    """Computes H, and multiplies the scale of a batch norm into it.

    Args:
        A: The algebra.
        groups: Groups of the layer.
        transposed: Whether the layer is transposed.
        scale: A number for each output channel; None for none.
    """

    A: nn.Parameter
    scale: Tensor | None

    def __init__(self, A: Tensor, groups: int, transposed: bool, scale: Tensor | None) -> None:
        super().__init__()
        self.groups, self.transposed = groups, transposed
        self.A = nn.Parameter(A.detach(), requires_grad=False)
        self.register_buffer("scale", None if scale is None else scale.detach().to(A.dtype))

    def forward(self, F: Tensor) -> Tensor:  # noqa: D102
        H = kronecker_sum(self.A, F, self.groups, self.transposed)
        if self.scale is None:
            return H
        inner = (1,) * (H.dim() - 2)
        if self.transposed:
            blocks: Tensor = H.unflatten(0, (self.groups, -1))
            return (blocks * self.scale.view(self.groups, 1, -1, *inner)).flatten(0, 1)
        return H * self.scale.view(-1, 1, *inner)


class Mix(nn.Module):
    """Computes the filters of R products, zero-padded to whole vectors.

    Args:
        factors: The CP decomposition.
        like: The filters F, for their type.
        groups: Groups of the layer.
        multiple: What the channels of a product are zero-padded to a multiple of.
    """

    U: Tensor | None

    def __init__(self, factors: Factors, like: Tensor, groups: int, multiple: int = 1) -> None:
        super().__init__()
        self.groups, self.blocks, self.multiple = groups, groups * factors.rank, multiple
        U = factors.U
        self.register_buffer("U", None if U is None else U.detach().to(like))

    def forward(self, F: Tensor) -> Tensor:  # noqa: D102
        return pad_filters(mix_filters(F, self.U, self.groups), self.blocks, self.multiple)


class Matrices(nn.Module):
    """Computes matrices for products of one position, (groups · R, outputs, inputs).

    Args:
        mix: Computes the filters of the products.
        from_left: Whether they multiply from the left; they are transposed otherwise.
    """

    def __init__(self, mix: Mix, from_left: bool) -> None:
        super().__init__()
        self.mix, self.from_left = mix, from_left

    def forward(self, F: Tensor) -> Tensor:  # noqa: D102
        filters: Tensor = self.mix(F).flatten(1).unflatten(0, (self.mix.blocks, -1))
        return filters if self.from_left else filters.mT


class Transform(nn.Module):
    """Computes the filters of a Winograd convolution at each point of a tile.

    Args:
        weight: Computes the weight, or the filters of all products.
        rank: Number of products; 1 for a plain weight.
        G: What transforms a filter along one axis, (points, 3).
    """

    G: Tensor

    def __init__(self, weight: nn.Module, rank: int, G: Tensor, like: Tensor) -> None:
        super().__init__()
        self.weight, self.rank = weight, rank
        self.register_buffer("G", G.to(like))

    def forward(self, F: Tensor) -> Tensor:  # noqa: D102
        filters = self.weight(F).unflatten(0, (self.rank, -1))
        rows = torch.einsum("hx,roixy->hroiy", self.G, filters)
        return torch.einsum("wy,hroiy->hwrio", self.G, rows).flatten(0, 2)
