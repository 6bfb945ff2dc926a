"""Layers with several matrices, opened: each matrix is a linear layer that can be watched.

torch computes recurrent layers in fused kernels, so what their matrices receive is never seen. An
opened layer computes the same with one linear layer for each matrix, one step at a time. Models are
calibrated with opened layers in them, and each matrix is converted as a linear layer is. Closing
puts the results together, as one PH layer.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from phnn import algebra
from phnn.algebra import Algebra
from phnn.nn import PHLayer
from phnn.nn._matrices import PHMatrices
from phnn.structure import Dimension, Structure

__all__ = ["Matrix", "OpenMatrices", "Opened", "PHPart", "Whole", "fuse_opened", "opened"]

DENSE = Structure.of(algebra=algebra.real)  # one term and A = 1: F is the dense matrix


class Matrix(nn.Linear):
    """One matrix of a layer with several.

    Args:
        weight: The matrix.
        bias: Its bias, or None.
        groups: Parts of its rows, such as gates; one A serves them all.
        sides: Parts of its columns, each with components of its own.
    """

    def __init__(
        self, weight: nn.Parameter, bias: nn.Parameter | None, groups: int = 1, sides: int = 1
    ) -> None:
        rows, columns = weight.shape
        super().__init__(columns, rows, bias=False, device="meta")
        self.weight = weight
        self.bias = bias  # type: ignore[assignment]
        self.groups, self.sides = groups, sides

    def arrange(self, columns: Tensor) -> Tensor:
        """Return the columns of something, its last axis, as (features, sides); 2 sides only."""
        if self.sides == 1:
            return columns
        sides: Tensor = columns.unflatten(-1, (self.sides, -1))
        return sides.transpose(-1, -2)


class PHPart(PHLayer):
    """The PH weight of one matrix, until its layer is closed; it computes nothing.

    Args:
        out_features: Rows.
        in_features: Columns.
        groups: Parts of the rows.
        sides: Parts of the columns, which are kernel positions here.
        bias: Whether there is one.
        device: Where the parameters live.
        dtype: Their type.
        structure: The arguments of `Structure.of`.
    """

    dense_type = Matrix
    dense_args = ("out_features", "in_features", "groups", "sides")

    def __init__(
        self,
        out_features: int,
        in_features: int,
        groups: int,
        sides: int,
        bias: bool,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        n: Dimension | None = None,
        algebra: Algebra | str | None = None,
        learn_algebra: bool | None = None,
        terms: int | None = None,
        rank: int | None = None,
    ) -> None:
        super().__init__(
            Structure.of(n, algebra=algebra, learn_algebra=learn_algebra, terms=terms, rank=rank)
        )
        self.groups = groups
        kernel = (sides,) if sides > 1 else ()
        size = out_features if bias else None
        self._make_state(out_features, in_features // sides, kernel, size, device, dtype)

    @property
    def filters(self) -> nn.Parameter:
        """F in the layout of the layer: sides beside each other."""
        F = self.get_parameter("F")
        if F.dim() == 2:
            return F
        return nn.Parameter(F.detach().transpose(1, 2).flatten(1), requires_grad=F.requires_grad)


class Opened(nn.Module):
    """Base of the opened layers.

    Attributes:
        fused: The torch layer; not a submodule, so that its parameters count once.
        twin: The PH class that it becomes.
        parts: Names of the submodules with one matrix each.
    """

    fused: nn.Module
    twin: ClassVar[type[nn.Module]]
    parts: tuple[str, ...]

    def fuse(self) -> nn.Module:
        """Return a torch layer with the weights that the matrices have now."""
        raise NotImplementedError

    def close(self, parts: Mapping[str, nn.Module], fill: bool = True) -> nn.Module:
        """Return the PH layer that has some new parts; the other matrices stay dense.

        Args:
            parts: PH layers, and linear layers that stay dense, by the names of the parts.
            fill: Take their tensors; False for new ones.
        """
        raise NotImplementedError


class OpenMatrices(Opened):
    """Base of the opened layers whose PH twin holds its matrices itself."""

    twin: ClassVar[type[PHMatrices]]

    def __init__(self, fused: nn.Module) -> None:
        super().__init__()
        self.__dict__["fused"] = fused
        self.training = fused.training
        parameters = dict(fused.named_parameters(recurse=False))
        layouts = self._lay_out()
        for name, (groups, sides) in layouts.items():
            bias = parameters.get(_bias_of(name))
            # not add_module: the torch layer has an attribute of this name
            self._modules[name] = Matrix(parameters[name], bias, groups, sides)
        self.parts = tuple(layouts)

    def _lay_out(self) -> dict[str, tuple[int, int]]:
        """Return the groups and sides of each matrix, by torch's name."""
        arguments: dict[str, Any] = {
            name: getattr(self.fused, name) for name in self.twin.dense_args
        }
        make: Callable[..., PHMatrices] = self.twin
        layouts = make(**arguments, device="meta", algebra=algebra.real).layouts
        return {f"weight{suffix}": (lay.gates, lay.sides) for suffix, lay in layouts.items()}

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if "fused" not in self.__dict__:  # while it is copied
                raise
            return getattr(self.fused, name)  # what a model may ask of its layer: sizes, options

    def fuse(self) -> nn.Module:
        """Return a torch layer with the weights that the matrices have now."""
        fused = copy.deepcopy(self.fused)
        with torch.no_grad():
            for name in self.parts:
                matrix = self.get_submodule(name)
                fused.get_parameter(name).copy_(matrix.get_parameter("weight"))
                if matrix.bias is not None:
                    fused.get_parameter(_bias_of(name)).copy_(matrix.get_parameter("bias"))
        return fused.train(self.training)

    def close(self, parts: Mapping[str, nn.Module], fill: bool = True) -> nn.Module:
        """Return the PH layer that has some new parts; the other matrices stay dense."""
        new = {name: parts.get(name, self.get_submodule(name)) for name in self.parts}
        structures = {
            name: part.structure if isinstance(part, PHPart) else DENSE
            for name, part in new.items()
        }
        layer = self.twin.like(self.fused, structures=structures)
        for name, part in new.items():
            # a matrix that was not looked at still belongs to the original
            own = part if name in parts else copy.deepcopy(part)
            for key, tensor in _tensors(name, own):
                if fill:
                    setattr(layer, key, tensor)
                else:
                    layer.get_parameter(key).requires_grad_(tensor.requires_grad)
        return layer


def _tensors(name: str, part: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield the parameters of a part with their names in the PH layer."""
    suffix = name.removeprefix("weight")
    if isinstance(part, PHPart):
        yield "F" + suffix, part.filters
        for letter in part.algebra_names if part.learns_algebra else ():
            yield letter + suffix, part.get_parameter(letter)
    else:
        yield "F" + suffix, part.get_parameter("weight")
    if part.bias is not None:
        yield _bias_of(name), part.get_parameter("bias")


def _bias_of(name: str) -> str:
    return name.replace("weight", "bias", 1)


@dataclass(frozen=True, eq=False)
class Whole:
    """A layer with several matrices in a model.

    Attributes:
        opened: The opened layer.
        names: Names of the layer in the model.
    """

    opened: Opened
    names: tuple[str, ...]

    @property
    def name(self) -> str:
        """The first of its names."""
        return self.names[0]

    @property
    def module(self) -> nn.Module:
        """The torch layer."""
        return self.opened.fused

    @property
    def own_names(self) -> list[str]:
        """The names of the parameters that the layer holds itself."""
        return [key for key, value in self.module._parameters.items() if value is not None]


@contextmanager
def opened(model: nn.Module, wholes: Sequence[Whole]) -> Iterator[nn.Module]:
    """Put opened layers into a model for a while.

    Args:
        model: The model, which is as it was after that.
        wholes: Its layers with several matrices.
    """
    for whole in wholes:
        if "" in whole.names:
            yield whole.opened
            return
    try:
        for whole in wholes:
            _place(model, whole.names, whole.opened)
        yield model
    finally:
        for whole in wholes:
            _place(model, whole.names, whole.module)


def _place(model: nn.Module, names: Sequence[str], module: nn.Module) -> None:
    for name in names:
        parent, _, child = name.rpartition(".")
        model.get_submodule(parent)._modules[child] = module


def fuse_opened(model: nn.Module) -> nn.Module:
    """Return a copy of a model with torch's layers in place of opened ones; itself without such."""
    if not any(isinstance(module, Opened) for module in model.modules()):
        return model
    model = copy.deepcopy(model)
    if isinstance(model, Opened):
        return model.fuse()
    found: dict[Opened, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, Opened):
            found.setdefault(module, []).append(name)
    for module, names in found.items():
        _place(model, names, module.fuse())
    return model
