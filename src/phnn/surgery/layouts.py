r"""PH layers in few multiplications, as torch's own modules.

With the decomposition :math:`A[i, a, b] = \sum_r U[i, r] \, W[a, r] \, V[b, r]` a layer is

.. math:: y_a = \sum_r W[a, r] \cdot \Bigl( \bigl(\textstyle\sum_i U[i, r] F_i\bigr) *
    \bigl(\textstyle\sum_b V[b, r] x_b\bigr) \Bigr) + \mathrm{bias}_a

A layout says how the R products lie in memory. Each is written here as a module and traced by
`torch.fx`; what comes out, a `torch.fx.GraphModule`, needs nothing of this library to be unpickled,
exported or compiled. The mixing is a batched matrix product and not a convolution with kernels of
one place, which takes up to thirty times as long with so few channels.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx, nn

from phnn.decompose.factors import Factors
from phnn.nn import PHLayer, PHLinear


class _Bilinear(nn.Module):
    """The parts that all layouts share.

    Args:
        layer: The layer to compute.
        factors: U, V and W of its algebra.
        restore: Whether to end in the memory format of a contiguous tensor.
    """

    mix_in: Tensor
    mix_out: Tensor
    bias: Tensor | None

    def __init__(self, layer: PHLayer, factors: Factors, restore: bool) -> None:
        super().__init__()
        self.n, self.rank, self.groups, self.restore = layer.n, factors.rank, layer.groups, restore
        self.space = range(2, layer.F.dim())  # the axes of height and width
        self.mix_in = _parameter(factors.V.mT, layer)
        self.mix_out = _parameter(factors.W, layer)
        bias = layer.bias
        if bias is not None:
            bias = _parameter(bias.view(-1, *(1 for _ in self.space)), layer)
        self.register_parameter("bias", bias)

    def add_bias(self, y: Tensor) -> Tensor:
        return y if self.bias is None else y.add_(self.bias)


class Grouped(_Bilinear):
    """One convolution with R groups; components are mixed in blocks of channels."""

    def __init__(self, layer: PHLayer, factors: Factors, restore: bool) -> None:
        super().__init__(layer, factors, restore)
        self.multiply = _grouped(layer, factors)

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        blocks = x.shape[0] * self.groups
        mixed = _mix(self.mix_in, x.reshape(blocks, self.n, -1))
        z = self.multiply(
            mixed.view(x.shape[0], self.multiply.in_channels, *(x.shape[i] for i in self.space))
        )
        y = _mix(self.mix_out, z.reshape(blocks, self.rank, -1))
        channels = self.multiply.out_channels // self.rank * self.n
        return self.add_bias(y.view(x.shape[0], channels, *(z.shape[i] for i in self.space)))


class GroupedLast(_Bilinear):
    """The same with the channels last in memory."""

    def __init__(self, layer: PHLayer, factors: Factors, restore: bool) -> None:
        super().__init__(layer, factors, restore)
        self.multiply = _grouped(layer, factors).to(memory_format=_last(layer))

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        channels = self.multiply.in_channels // (self.rank * self.groups)
        mixed = _mix(self.mix_in, x.movedim(1, -1).reshape(-1, self.n, channels))
        places = (x.shape[i] for i in self.space)
        z = self.multiply(mixed.view(x.shape[0], *places, -1).movedim(-1, 1))
        channels = self.multiply.out_channels // (self.rank * self.groups)
        y = _mix(self.mix_out, z.movedim(1, -1).reshape(-1, self.rank, channels))
        y = y.view(x.shape[0], *(z.shape[i] for i in self.space), -1).movedim(-1, 1)
        return self.add_bias(y.contiguous() if self.restore else y)


class _Pointwise(_Bilinear):
    """A layer that sees one place at a time: its products are those of matrices."""

    filters: Tensor

    def __init__(self, layer: PHLayer, factors: Factors, restore: bool) -> None:
        super().__init__(layer, factors, restore)
        filters = _filters(layer, factors).flatten(1).unflatten(0, (layer.groups * self.rank, -1))
        self.outputs, self.inputs = filters.shape[1:]
        self.filters = _parameter(filters, layer)
        self.stride = getattr(layer, "stride", ())

    def thin(self, x: Tensor) -> Tensor:
        """The places that the stride leaves."""
        if all(step == 1 for step in self.stride):
            return x
        return x[(slice(None), slice(None), *(slice(None, None, step) for step in self.stride))]


class Samples(_Pointwise):
    """A product for each sample, from the left; its columns are places."""

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        x = self.thin(x)
        blocks = x.shape[0] * self.groups
        mixed = _mix(self.mix_in, x.reshape(blocks, self.n, -1))
        z = torch.matmul(
            self.filters, mixed.view(x.shape[0], self.groups * self.rank, self.inputs, -1)
        )
        y = _mix(self.mix_out, z.view(blocks, self.rank, -1))
        channels = self.groups * self.n * self.outputs
        return self.add_bias(y.view(x.shape[0], channels, *(x.shape[i] for i in self.space)))


class Columns(_Pointwise):
    """One product for all samples, from the left; its columns are the places of all."""

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        x = self.thin(x)
        mixed = _mix(self.mix_in, x.transpose(0, 1).reshape(self.groups, self.n, -1))
        z = torch.bmm(self.filters, mixed.view(self.groups * self.rank, self.inputs, -1))
        y = _mix(self.mix_out, z.view(self.groups, self.rank, -1))
        y = y.view(-1, x.shape[0], *(x.shape[i] for i in self.space))
        return self.add_bias(y.transpose(0, 1).contiguous())


class Rows(_Pointwise):
    """One product for all samples, from the right; its rows are places, with channels last."""

    def __init__(self, layer: PHLayer, factors: Factors, restore: bool) -> None:
        super().__init__(layer, factors, restore)
        self.filters = _parameter(self.filters.mT, layer)
        self.is_linear = isinstance(layer, PHLinear)

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        last = x if self.is_linear else self.thin(x).movedim(1, -1)
        parts = last.reshape(-1, self.groups * self.n, self.inputs).transpose(0, 1)
        mixed = _mix(self.mix_in, parts.reshape(self.groups, self.n, -1))
        z = torch.bmm(mixed.view(self.groups * self.rank, -1, self.inputs), self.filters)
        y = _mix(self.mix_out, z.view(self.groups, self.rank, -1))
        y = y.view(self.groups * self.n, -1, self.outputs).transpose(0, 1)
        channels = self.groups * self.n * self.outputs
        y = y.reshape(last.shape[:-1] + (channels,))  # noqa: RUF005, a traced shape has no length
        if not self.is_linear:
            y = y.movedim(-1, 1)
        return self.add_bias(y.contiguous() if self.restore else y)


LAYOUTS: dict[str, type[_Bilinear]] = {
    "grouped": Grouped,
    "grouped_last": GroupedLast,
    "samples": Samples,
    "columns": Columns,
    "rows": Rows,
}


def layouts_for(layer: PHLayer, is_last: bool = False) -> tuple[str, ...]:
    """The layouts that are worth a trial.

    Args:
        layer: The layer to compute.
        is_last: Whether its input has the channels last in memory.
    """
    if isinstance(layer, PHLinear):
        return ("rows",)
    if _is_pointwise(layer):
        return ("rows",) if is_last else ("samples", "columns", "rows")
    if is_last:
        return ("grouped_last",)
    return ("grouped",) if layer.F.dim() == 3 else ("grouped", "grouped_last")


def build(layer: PHLayer, factors: Factors, layout: str, is_last: bool = False) -> nn.Module:
    """A module of torch alone that computes what the layer does, on batched input.

    Args:
        layer: The layer to compute.
        factors: U, V and W of its algebra.
        layout: One of `layouts_for(layer)`.
        is_last: Whether its input has the channels last in memory; the output will be like it.
    """
    restore = not is_last and layout in ("grouped_last", "rows")
    written = LAYOUTS[layout](layer, factors, restore)
    name = type(layer).__name__.replace("PH", "Bilinear")
    graph = fx.Tracer().trace(written)
    for node in graph.nodes:
        node.type = None  # annotations that are text cannot be pickled
    return fx.GraphModule(written, graph, name).train(layer.training)


def _is_pointwise(layer: PHLayer) -> bool:
    sizes = getattr(layer, "kernel_size", ())
    padding = getattr(layer, "padding", ())
    return not layer.transposed and all(size == 1 for size in sizes) and not _pads(padding)


def _pads(padding: tuple[int, ...] | str) -> bool:
    return any(padding) if isinstance(padding, tuple) else False  # "same" as one place is none


def _mix(matrix: Tensor, blocks: Tensor) -> Tensor:
    """The matrix times each of the blocks, (batch, columns, places)."""
    return torch.bmm(matrix.expand(blocks.shape[0], -1, -1), blocks)


def _filters(layer: PHLayer, factors: Factors) -> Tensor:
    """The filters mixed by U, (groups · R · rows, columns, *kernel_size)."""
    precise = torch.promote_types(layer.F.dtype, torch.float32)
    blocks = layer.F.detach().to(precise).unflatten(0, (layer.groups, layer.terms, -1))
    U = factors.U.to(layer.F.device, precise)
    mixed: Tensor = torch.einsum("ir,gi...->gr...", U, blocks).flatten(0, 2)
    return mixed


def _grouped(layer: PHLayer, factors: Factors) -> Any:
    """The convolution of the mixed filters with the mixed input."""
    arguments = {name: getattr(layer, name) for name in layer.dense_args}
    for name in ("in_channels", "out_channels"):
        arguments[name] = arguments[name] // layer.n * factors.rank
    arguments["groups"] *= factors.rank
    convolution = layer.dense_type(**arguments, bias=False, device="meta", dtype=layer.F.dtype)
    convolution.weight = _parameter(_filters(layer, factors), layer)
    return convolution


def _parameter(value: Tensor, layer: PHLayer) -> nn.Parameter:
    """A value in the precision of the layer, where it is, and as trainable."""
    value = value.detach().to(layer.F.device, layer.F.dtype, copy=True)
    return nn.Parameter(value.contiguous(), requires_grad=layer.F.requires_grad)


def _last(layer: PHLayer) -> torch.memory_format:
    return torch.channels_last if layer.F.dim() == 4 else torch.channels_last_3d
