"""What all forms are: exact ways to compute a PH layer, as modules of torch alone.

A form is written as a module and traced by `torch.fx`. The `torch.fx.GraphModule` that comes out
needs nothing of this library to be unpickled, exported or compiled.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, cast

import torch
from torch import Tensor, fx, nn

from phnn.forms.computed import Assemble
from phnn.forms.norms import Norm, PlainLayer, fuse, scale_and_shift
from phnn.functional import Factors
from phnn.functional._sizes import Sizes
from phnn.nn import PHLayer

if TYPE_CHECKING:
    from typing_extensions import Self

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Source:
    """What forms are built from.

    Attributes:
        layer: The PH layer to compute.
        factors: The CP decomposition of its algebra, where one is known.
        norm: The batch norm that follows it, where nothing else uses the output of the layer.
    """

    layer: PHLayer
    factors: Factors | None = None
    norm: Norm | None = None

    @property
    def sizes(self) -> Sizes:
        """How the channels of the layer divide."""
        layer = self.layer
        return Sizes.of(layer.algebra_tensor.shape, layer.F, layer.groups, layer.transposed)

    @property
    def stride(self) -> tuple[int, ...]:
        """Steps of a convolution; none for a linear layer."""
        return getattr(self.layer, "stride", ())

    @property
    def is_pointwise(self) -> bool:
        """Whether the layer sees one position at a time: its products are those of matrices."""
        padding = getattr(self.layer, "padding", ())
        pads = any(padding) if isinstance(padding, tuple) else False  # "same" is none for 1×1
        return not self.layer.transposed and self.sizes.kernel == 1 and not pads

    def count_positions(self, shape: Shape) -> int:
        """Return about how many positions an input has: of the output, or of a transposed input."""
        step = 1 if self.layer.transposed else math.prod(self.stride)
        return math.prod(shape) // self.sizes.in_channels // step

    def assemble(self) -> Assemble:
        """Return what computes the weight of the folded layer from F."""
        layer, norm = self.layer, self.norm
        scale = None if norm is None else scale_and_shift(norm)[0]
        return Assemble(layer.algebra_tensor, layer.groups, layer.transposed, scale)

    def fold(self) -> PlainLayer:
        """Return the plain layer that computes the same, with the norm in its weight."""
        dense = cast("PlainLayer", self.layer.to_dense())
        if self.norm is not None:
            fuse(dense, self.norm)
        return dense


@dataclass(frozen=True, kw_only=True)
class Form(ABC):
    """One exact way to compute a PH layer; a value that a plan can hold.

    Attributes:
        name: What the form is called in plans and reports.
        is_dense: Whether it computes with the weight H, as a plain layer does.
        is_winograd: Whether it is a Winograd convolution: more memory, coarser rounding.
        channels_last: Whether input and output have their channels last in memory.
        rank: Number of CP products; None where there are none.
    """

    name: ClassVar[str]
    is_dense: ClassVar[bool] = False
    is_winograd: ClassVar[bool] = False

    channels_last: bool = False
    rank: int | None = None

    @classmethod
    @abstractmethod
    def variants(cls, source: Source, channels_last: bool) -> Iterator[Self]:
        """Yield the forms of this kind that a layer has in a memory format.

        Args:
            source: What they would be built from.
            channels_last: Whether the input has its channels last in memory.
        """

    @abstractmethod
    def build(self, source: Source) -> nn.Module:
        """Build a module of torch alone that computes what the layer does, on batched input."""

    def recipe(self, source: Source) -> tuple[str, nn.Module] | None:
        """Return the parameter of the module that is larger than F, and what computes it from F.

        None where the module holds no such parameter.
        """
        return None

    def is_promising(self, source: Source, shapes: Collection[Shape]) -> bool:
        """Return whether the form is worth timing on inputs of these shapes."""
        return True

    def growth(self, source: Source) -> float:
        """Return how many times the numbers of the folded weight it holds, at most."""
        return 1.0

    def takes_norm(self, source: Source) -> bool:
        """Return whether the batch norm after the layer becomes part of the module.

        Otherwise the bias of the layer becomes part of the norm.
        """
        return False

    @property
    def minds_format(self) -> bool:
        """Whether it differs from another form in the order of memory alone."""
        return self.channels_last

    def exists(self, source: Source) -> bool:
        """Return whether the layer has this form."""
        return self in type(self).variants(source, self.channels_last)

    @property
    def label(self) -> str:
        """The name and what tells the variants of a form apart."""
        return self.name

    def to_dict(self) -> dict[str, Any]:
        """Return the entry of a plan, ready for JSON; `phnn.forms.read_form` reads it."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        set_values = {name: value for name, value in values.items() if value not in (None, False)}
        return {"form": self.name, **set_values}


class Written(nn.Module):
    """A form as it is written, before it is traced.

    Args:
        source: What it is built from.
        channels_last: Whether its output has the channels last in memory.
    """

    bias: Tensor | None

    def __init__(self, source: Source, channels_last: bool) -> None:
        super().__init__()
        self.sizes, self.channels_last = source.sizes, channels_last
        bias = source.layer.bias if source.norm is None else None  # otherwise the norm adds it
        if bias is not None:
            bias = parameter(bias, source.layer.F, bias.requires_grad)
        self.register_parameter("bias", bias)

    def forward(self, x: Tensor) -> Tensor:
        """Compute a batch; the leading axes of a linear layer's input are its rows."""
        if self.sizes.dims:
            return self.compute(x)
        y = self.compute(x.reshape(-1, self.sizes.in_channels))
        return y.view(x.shape[:-1] + (self.sizes.out_channels,))  # noqa: RUF005, a traced shape

    def compute(self, x: Tensor) -> Tensor:
        """Compute (batch, channels, *space)."""
        raise NotImplementedError


def trace(written: nn.Module, kind: str, layer: nn.Module) -> fx.GraphModule:
    """Return a written module as a graph of torch's operations, named after kind and layer."""
    name = kind + type(layer).__name__.removeprefix("PH")
    graph = fx.Tracer().trace(written)
    for node in graph.nodes:
        node.type = None  # annotations that are text cannot be pickled
    return fx.GraphModule(written, graph, name).train(layer.training)


def parameter(value: Tensor, like: Tensor, trained: bool) -> nn.Parameter:
    """Return a value as a parameter, with the type and device of a tensor, in its own memory."""
    value = value.detach().to(like, copy=True).contiguous()
    return nn.Parameter(value, requires_grad=trained)


def plain_layer(
    layer: PHLayer, weight: Tensor, inputs: int, outputs: int, groups: int | None = None
) -> Any:
    """Return a plain layer with the hyperparameters of a PH layer and other channels, no bias.

    Args:
        layer: The PH layer.
        weight: The weight, in any type.
        inputs: Channels of the input.
        outputs: Channels of the output.
        groups: Groups of a convolution; those of the layer by default.
    """
    arguments = {name: getattr(layer, name) for name in layer.dense_args}
    arguments.update(zip(layer.dense_args[:2], (inputs, outputs), strict=True))
    if groups is not None:
        arguments["groups"] = groups
    plain = layer.dense_type(**arguments, bias=False, device="meta", dtype=layer.F.dtype)
    plain.weight = parameter(weight, layer.F, layer.F.requires_grad)
    return plain


def precise(value: Tensor) -> Tensor:
    """Return a tensor in float32, if it is of lower precision."""
    return value.detach().to(torch.promote_types(value.dtype, torch.float32))
