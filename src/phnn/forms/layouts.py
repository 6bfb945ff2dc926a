r"""PH layers as torch's own modules, most of them in few multiplications.

With the decomposition :math:`A[i, a, b] = \sum_r U[i, r] \, W[a, r] \, V[b, r]` a layer is

.. math:: y_a = \sum_r W[a, r] \cdot \Bigl( \bigl(\textstyle\sum_i U[i, r] F_i\bigr) *
    \bigl(\textstyle\sum_b V[b, r] x_b\bigr) \Bigr) + \mathrm{bias}_a

A layout says how the R products lie in memory, or that there are none. Each is written here as a
module and traced by `torch.fx`; what comes out, a `torch.fx.GraphModule`, needs nothing of this
library to be unpickled, exported or compiled. The mixing is a batched matrix product and not a
convolution with kernels of one place, which takes up to thirty times as long with so few channels.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx, nn

from phnn.acceleration.calls import LAST
from phnn.acceleration.plans import FOLDED_TILES
from phnn.forms.winograd import TAPS, Tiles, mix, parameter
from phnn.functional import Factors
from phnn.nn import PHConv2d, PHLayer, PHLinear

VECTOR = 8  # channels that torch's kernels take at a time, in float32 on most processors


class _Layout(nn.Module):
    """The parts that all layouts share.

    Args:
        layer: The layer to compute.
        is_last: Whether input and output have the channels last in memory.
    """

    kind = "Bilinear"  # in the name of the module that is made
    bias: Tensor | None

    def __init__(self, layer: PHLayer, is_last: bool) -> None:
        super().__init__()
        self.n, self.groups, self.is_last = layer.n, layer.groups, is_last
        self.inputs, self.outputs = _sizes(layer)
        self.space = range(2, layer.F.dim())  # the axes of height and width
        self.is_linear = isinstance(layer, PHLinear)
        bias = layer.bias
        if bias is not None:
            bias = _parameter(bias.view(-1, *(1 for _ in self.space)), layer)
        self.register_parameter("bias", bias)

    def count_places(self, x: Tensor) -> int:
        """What -1 would stand for in a view, if the batch were not empty."""
        return math.prod(x.shape[i] for i in self.space)

    def add_bias(self, y: Tensor) -> Tensor:
        return y if self.bias is None else y.add_(self.bias)


class Components(_Layout):
    r"""Every component with all filters, then the algebra.

    .. math:: y_a = \sum_{i, b} A[i, a, b] \cdot (F_i * x_b) + \mathrm{bias}_a

    With as many terms as n this saves no multiplications, but it reads the filters alone, 1/n of
    the folded weight, and where places are few it is the weights that take the time.
    """

    kind = "Components"

    def __init__(self, layer: PHLayer, is_last: bool) -> None:
        super().__init__(layer, is_last)
        self.terms = layer.terms
        arguments = {name: getattr(layer, name) for name in layer.dense_args}
        inputs, outputs = layer.dense_args[:2]
        arguments[inputs] = self.groups * self.inputs
        arguments[outputs] = self.groups * self.terms * self.outputs
        self.filter = layer.dense_type(**arguments, bias=False, device="meta", dtype=layer.F.dtype)
        self.filter.weight = _parameter(layer.F, layer)
        self.rules = _parameter(layer.algebra_tensor.permute(1, 2, 0).flatten(1), layer)

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        if self.is_linear:
            z = self.filter(x.reshape(-1, self.inputs))
            y = mix(self.rules, z.view(-1, self.n * self.terms, self.outputs))
            return self.add_bias(y.view(x.shape[:-1] + (self.n * self.outputs,)))  # noqa: RUF005
        sizes = (x.shape[i] for i in self.space)
        width = self.inputs * self.count_places(x)
        parts = x.reshape(x.shape[0], self.groups, self.n, width)
        if self.groups > 1:
            parts = parts.transpose(1, 2)
        z = self.filter(parts.reshape(x.shape[0] * self.n, self.groups * self.inputs, *sizes))
        width = self.outputs * self.count_places(z)
        blocks = z.reshape(x.shape[0], self.n, self.groups, self.terms * width)
        if self.groups > 1:
            blocks = blocks.transpose(1, 2)
        blocks = blocks.reshape(x.shape[0] * self.groups, self.n * self.terms, width)
        channels = self.groups * self.n * self.outputs
        y = mix(self.rules, blocks).view(x.shape[0], channels, *(z.shape[i] for i in self.space))
        y = self.add_bias(y)
        return y.movedim(1, -1).contiguous().movedim(-1, 1) if self.is_last else y


class _Bilinear(_Layout):
    """R products."""

    def __init__(self, layer: PHLayer, factors: Factors, is_last: bool) -> None:
        super().__init__(layer, is_last)
        self.rank = factors.rank
        self.mix_in = _parameter(factors.V.mT, layer)
        self.mix_out = _parameter(factors.W, layer)


class Grouped(_Bilinear):
    """One convolution with R groups; components are mixed in blocks of channels.

    Its groups may be filled up with zeros, as torch's kernels are fast for whole vectors of
    channels.
    """

    multiple = 1  # of which the channels of a group are

    def __init__(self, layer: PHLayer, factors: Factors, is_last: bool) -> None:
        super().__init__(layer, factors, is_last)
        self.multiply = _grouped(layer, factors, self.multiple)
        self.channels = self.multiply.out_channels // (self.groups * self.rank)
        self.zeros = -self.inputs % self.multiple

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        blocks = x.shape[0] * self.groups
        places = self.count_places(x)
        parts = x.reshape(blocks * self.n, self.inputs, places)
        if self.zeros:
            parts = nn.functional.pad(parts, (0, 0, 0, self.zeros))
        width = (self.inputs + self.zeros) * places
        mixed = mix(self.mix_in, parts.reshape(blocks, self.n, width))
        z = self.multiply(
            mixed.view(x.shape[0], self.multiply.in_channels, *(x.shape[i] for i in self.space))
        )
        places = self.count_places(z)
        y = mix(self.mix_out, z.reshape(blocks, self.rank, self.channels * places))
        if self.channels != self.outputs:
            y = y.view(blocks * self.n, self.channels, places)
            y = y.narrow(1, 0, self.outputs).contiguous()
        channels = self.groups * self.n * self.outputs
        return self.add_bias(y.view(x.shape[0], channels, *(z.shape[i] for i in self.space)))


class GroupedLast(Grouped):
    """The same with the channels last in memory."""

    def __init__(self, layer: PHLayer, factors: Factors, is_last: bool) -> None:
        super().__init__(layer, factors, is_last)
        self.multiply.to(memory_format=LAST[layer.F.dim()])

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        parts = x.movedim(1, -1).reshape(-1, self.n, self.inputs)
        if self.zeros:
            parts = nn.functional.pad(parts, (0, self.zeros))
        places = (x.shape[i] for i in self.space)
        mixed = mix(self.mix_in, parts).view(x.shape[0], *places, self.multiply.in_channels)
        z = self.multiply(mixed.movedim(-1, 1))
        y = mix(self.mix_out, z.movedim(1, -1).reshape(-1, self.rank, self.channels))
        if self.channels != self.outputs:
            y = y.narrow(2, 0, self.outputs).contiguous()
        channels = self.groups * self.n * self.outputs
        y = y.view(x.shape[0], *(z.shape[i] for i in self.space), channels).movedim(-1, 1)
        return self.add_bias(y if self.is_last else y.contiguous())


class Padded(Grouped):
    """As grouped, with whole vectors."""

    multiple = VECTOR


class PaddedLast(GroupedLast):
    """As grouped_last, with whole vectors."""

    multiple = VECTOR


class _Pointwise(_Bilinear):
    """A layer that sees one place at a time: its products are those of matrices."""

    filters: Tensor

    def __init__(self, layer: PHLayer, factors: Factors, is_last: bool) -> None:
        super().__init__(layer, factors, is_last)
        filters = _filters(layer, factors).flatten(1).unflatten(0, (layer.groups * self.rank, -1))
        self.filters = _parameter(filters, layer)
        self.stride = getattr(layer, "stride", ())

    def thin(self, x: Tensor, format: torch.memory_format = torch.contiguous_format) -> Tensor:
        """The places that the stride leaves.

        In memory of their own: whether they need it would depend on sizes that export leaves open.
        """
        if all(step == 1 for step in self.stride):
            return x
        steps: list[Any] = [slice(None, None, step) for step in self.stride]
        return x[(..., *steps)].clone(memory_format=format)


class Samples(_Pointwise):
    """A product for each sample, from the left; its columns are places."""

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        x = self.thin(x)
        blocks, places = x.shape[0] * self.groups, self.count_places(x)
        mixed = mix(self.mix_in, x.reshape(blocks, self.n, self.inputs * places))
        mixed = mixed.view(x.shape[0], self.groups * self.rank, self.inputs, places)
        z = torch.matmul(self.filters, mixed)
        y = mix(self.mix_out, z.view(blocks, self.rank, self.outputs * places))
        channels = self.groups * self.n * self.outputs
        return self.add_bias(y.view(x.shape[0], channels, *(x.shape[i] for i in self.space)))


class Columns(_Pointwise):
    """One product for all samples, from the left; its columns are the places of all."""

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        columns = self.thin(x.transpose(0, 1))
        mixed = mix(self.mix_in, columns.reshape(self.groups, self.n, -1))
        z = torch.bmm(self.filters, mixed.view(self.groups * self.rank, self.inputs, -1))
        y = mix(self.mix_out, z.view(self.groups, self.rank, -1))
        channels = self.groups * self.n * self.outputs
        y = y.view(channels, x.shape[0], *(columns.shape[i] for i in self.space))
        return self.add_bias(y.transpose(0, 1).contiguous())


class Rows(_Pointwise):
    """One product for all samples, from the right; its rows are places, with channels last."""

    def __init__(self, layer: PHLayer, factors: Factors, is_last: bool) -> None:
        super().__init__(layer, factors, is_last)
        self.filters = _parameter(self.filters.mT, layer)
        self.format = LAST.get(layer.F.dim(), torch.contiguous_format)

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        last = x if self.is_linear else self.thin(x, self.format).movedim(1, -1)
        parts = last.reshape(-1, self.groups * self.n, self.inputs).transpose(0, 1)
        mixed = mix(self.mix_in, parts.reshape(self.groups, self.n, -1))
        z = torch.bmm(mixed.view(self.groups * self.rank, -1, self.inputs), self.filters)
        y = mix(self.mix_out, z.view(self.groups, self.rank, -1))
        y = y.view(self.groups * self.n, -1, self.outputs).transpose(0, 1)
        channels = self.groups * self.n * self.outputs
        y = y.reshape(last.shape[:-1] + (channels,))  # noqa: RUF005, a traced shape has no length
        if not self.is_linear:
            y = y.movedim(-1, 1)
        return self.add_bias(y if self.is_last else y.contiguous())


def _tiles(layer: PHLayer, factors: Factors, is_last: bool, size: int) -> Tiles:
    """R products at every point of the tiles."""
    assert isinstance(layer, PHConv2d)
    filters = _filters(layer, factors).unflatten(0, (factors.rank, -1))
    filters.requires_grad_(layer.F.requires_grad)
    return Tiles(filters, factors, layer.bias, _padding(layer), size, is_last)


PRODUCTS: dict[str, Callable[[PHLayer, Factors, bool], _Layout | Tiles]] = {
    "grouped": Grouped,
    "grouped_last": GroupedLast,
    "padded": Padded,
    "padded_last": PaddedLast,
    "samples": Samples,
    "columns": Columns,
    "rows": Rows,
    "tiles_2": partial(_tiles, size=2),
    "tiles_4": partial(_tiles, size=4),
}


def layouts_for(layer: PHLayer, is_last: bool = False) -> tuple[str, ...]:
    """The layouts that a layer has.

    Args:
        layer: The layer to compute.
        is_last: Whether its input has the channels last in memory.
    """
    if isinstance(layer, PHLinear):
        return ("components", "rows")
    if _is_pointwise(layer):
        return ("components", "rows") if is_last else ("components", "samples", "columns", "rows")
    names: tuple[str, ...] = ("grouped", "padded", "grouped_last", "padded_last")
    if is_last:
        names = names[2:]
    elif layer.F.dim() == 3:
        names = names[:2]
    if _has_tiles(layer):
        names = (*names, "tiles_2", "tiles_4", *FOLDED_TILES)
    return names if layer.transposed else ("components", *names)


def has_whole_vectors(layer: PHLayer) -> bool:
    """Whether "padded" layouts would add nothing to a layer."""
    return all(size % VECTOR == 0 for size in _sizes(layer))


def build(layer: PHLayer, factors: Factors | None, layout: str, is_last: bool = False) -> nn.Module:
    """A module of torch alone that computes what the layer does, on batched input.

    Args:
        layer: The layer to compute.
        factors: U, V and W of its algebra; layouts without products need none.
        layout: One of `layouts_for(layer)`.
        is_last: Whether its input has the channels last in memory; the output will be like it.
    """
    if layout in FOLDED_TILES:
        dense = layer.to_dense()
        assert isinstance(dense, nn.Conv2d)
        return tile(dense, layout, is_last)
    if layout == "components":
        return _trace(Components(layer, is_last), layer)
    assert factors is not None
    return _trace(PRODUCTS[layout](layer, factors, is_last), layer)


def tile(layer: nn.Conv2d, layout: str, is_last: bool = False) -> nn.Module:
    """A module of torch alone that computes a plain convolution in tiles.

    Args:
        layer: A convolution of 3×3 places.
        layout: "folded_tiles_2" or "folded_tiles_4".
        is_last: Whether its input has the channels last in memory; the output will be like it.
    """
    size = int(layout.removeprefix("folded_tiles_"))
    written = Tiles(layer.weight[None], None, layer.bias, _padding(layer), size, is_last)
    return _trace(written, layer)


def _trace(written: _Layout | Tiles, layer: nn.Module) -> fx.GraphModule:
    name = written.kind + type(layer).__name__.removeprefix("PH")
    graph = fx.Tracer().trace(written)
    for node in graph.nodes:
        node.type = None  # annotations that are text cannot be pickled
    return fx.GraphModule(written, graph, name).train(layer.training)


def _has_tiles(layer: PHLayer) -> bool:
    """Whether a layer is a convolution of 3×3 places, one after the other, in full precision."""
    return (
        isinstance(layer, PHConv2d)
        and layer.kernel_size == (TAPS, TAPS)
        and layer.stride == layer.dilation == (1, 1)
        and layer.groups == 1
        and layer.padding_mode == "zeros"
        and layer.F.dtype in (torch.float32, torch.float64)
    )


def output_size(layer: PHLayer, shape: tuple[int, ...]) -> tuple[int, int]:
    """Height and width of what a convolution of 3×3 places makes of an input.

    Args:
        layer: One that has tiles.
        shape: Of the input.
    """
    assert isinstance(layer, PHConv2d)
    padding = _padding(layer)
    return shape[2] + 2 * padding[0] - TAPS + 1, shape[3] + 2 * padding[1] - TAPS + 1


def _padding(layer: PHConv2d | nn.Conv2d) -> tuple[int, int]:
    """Zeros at each side of a convolution of 3×3 places, along height and width."""
    if isinstance(layer.padding, str):
        return (1, 1) if layer.padding == "same" else (0, 0)
    return layer.padding[0], layer.padding[1]


def _sizes(layer: PHLayer) -> tuple[int, int]:
    """The channels of an input component and of an output component, in one group."""
    inputs, outputs = (getattr(layer, name) for name in layer.dense_args[:2])
    return inputs // (layer.groups * layer.n), outputs // (layer.groups * layer.n)


def _is_pointwise(layer: PHLayer) -> bool:
    sizes = getattr(layer, "kernel_size", ())
    padding = getattr(layer, "padding", ())
    return not layer.transposed and all(size == 1 for size in sizes) and not _pads(padding)


def _pads(padding: tuple[int, ...] | str) -> bool:
    return any(padding) if isinstance(padding, tuple) else False  # "same" as one place is none


def _filters(layer: PHLayer, factors: Factors) -> Tensor:
    """The filters mixed by U, (groups · R · rows, columns, *kernel_size)."""
    precise = torch.promote_types(layer.F.dtype, torch.float32)
    blocks = layer.F.detach().to(precise).unflatten(0, (layer.groups, layer.terms, -1))
    U = factors.mixing.to(layer.F.device, precise)
    mixed: Tensor = torch.einsum("ir,gi...->gr...", U, blocks).flatten(0, 2)
    return mixed


def _grouped(layer: PHLayer, factors: Factors, multiple: int) -> Any:
    """The convolution of the mixed filters with the mixed input, both filled up with zeros."""
    blocks = layer.groups * factors.rank
    filters = _filters(layer, factors).unflatten(0, (blocks, -1))
    rows, columns = filters.shape[1:3]
    zeros = [0, 0] * (layer.F.dim() - 2) + [0, -columns % multiple, 0, -rows % multiple]
    filters = nn.functional.pad(filters, zeros).flatten(0, 1)
    arguments = {name: getattr(layer, name) for name in layer.dense_args}
    for name, channels in zip(("in_channels", "out_channels"), _sizes(layer), strict=True):
        arguments[name] = (channels + -channels % multiple) * blocks
    arguments["groups"] = blocks
    convolution = layer.dense_type(**arguments, bias=False, device="meta", dtype=layer.F.dtype)
    convolution.weight = _parameter(filters, layer)
    return convolution


def _parameter(value: Tensor, layer: PHLayer) -> nn.Parameter:
    """A value in the precision of the layer, where it is, and as trainable."""
    return parameter(value, layer.F, layer.F.requires_grad)
