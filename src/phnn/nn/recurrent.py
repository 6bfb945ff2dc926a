"""Recurrent PH layers: torch's fused kernels on matrices that are assembled once per call."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import _VF, Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from phnn.algebra import Algebra
from phnn.nn._matrices import Layout, PHMatrices
from phnn.nn._weight import check_divisible
from phnn.structure import Dimension, Structure

Hidden = Tensor | tuple[Tensor, Tensor]


class _Recurrence(PHMatrices):
    """What recurrent layers and cells share."""

    _gates: ClassVar[int]
    _state_names: ClassVar[tuple[str, ...]] = ("h",)

    input_size: int
    hidden_size: int
    bias: bool

    def __init__(self, arguments: dict[str, Any]) -> None:
        """Build the layer from the arguments of its class, as `locals()` has them."""
        structure = Structure.among(arguments)
        super().__init__(structure)
        for name in self.dense_args:
            setattr(self, name, arguments[name])
        dense = self._make_dense({name: arguments[name] for name in self.dense_args})
        hidden = "hidden_size", self.hidden_size
        check_divisible(structure, ("input_size", self.input_size), hidden)
        for name in ("hidden_size", "proj_size"):  # these are read by the next step, too
            if size := arguments.get(name):
                check_divisible(structure, (name, size), (name, size))
        names = [name for name, _ in dense.named_parameters() if name.startswith("weight")]
        suffixes = [name.removeprefix("weight") for name in names]
        self._make_state(
            dense,
            arguments["device"],
            arguments["dtype"],
            {suffix: self._lay_out(suffix) for suffix in suffixes},
        )

    def _lay_out(self, suffix: str) -> Layout:
        return Layout(gates=self._gates)

    @property
    def default_std(self) -> float:
        """Standard deviation of torch's weights and biases, which depends on hidden_size alone."""
        return 1 / math.sqrt(3 * self.hidden_size)

    def _check_features(self, input: Tensor, dims: tuple[int, ...]) -> None:
        name = type(self).__name__
        if not isinstance(input, Tensor):
            raise TypeError(f"{name} expects a torch.Tensor, got {type(input).__name__}")
        dtype = getattr(self, self._first_filters).dtype
        if input.dtype != dtype and not torch.is_autocast_enabled(input.device.type):
            raise TypeError(
                f"{name} has parameters of {dtype}, got an input of {input.dtype}; "
                f"convert the input with input.to({dtype}), or the layer"
            )
        if input.dim() not in dims or input.shape[-1] != self.input_size:
            axes = " or ".join(f"{count}D" for count in dims)
            raise ValueError(
                f"{name} expects a {axes} input with input_size={self.input_size} features in "
                f"its last axis, got shape {tuple(input.shape)}"
            )

    @property
    def _first_filters(self) -> str:
        return "F" + next(iter(self.layouts))

    def _split_states(self, hx: Hidden | None, shapes: list[tuple[int, ...]], like: Tensor) -> Any:
        """Return the states of a call, zeros by default, with their shapes checked."""
        if hx is None:
            return tuple(
                torch.zeros(shape, dtype=like.dtype, device=like.device) for shape in shapes
            )
        given = hx if isinstance(hx, tuple | list) else (hx,)
        names = self._state_names
        is_tensor = [isinstance(state, Tensor) for state in given]
        if len(given) != len(names) or not all(is_tensor) or (len(names) > 1) != (given is hx):
            wanted = "a tensor" if len(names) == 1 else f"a pair ({', '.join(names)}) of tensors"
            raise TypeError(f"hx of {type(self).__name__} is {wanted}, got {_describe(hx)}")
        for name, state, shape in zip(names, given, shapes, strict=True):
            if state.shape != shape:
                raise ValueError(
                    f"{type(self).__name__} expects the state {name} of shape {shape} for this "
                    f"input, got {tuple(state.shape)}"
                )
        return tuple(given)

    def extra_repr(self) -> str:
        """Return the arguments that differ from torch's defaults, and the structure."""
        shown = [str(self.input_size), str(self.hidden_size)]
        for name in self.dense_args[2:]:
            value = getattr(self, name)
            if value != _DEFAULTS[name]:
                shown.append(f"{name}={value}")
        return ", ".join([*shown, self.structure_repr])


_DEFAULTS = {
    "num_layers": 1,
    "nonlinearity": "tanh",
    "bias": True,
    "batch_first": False,
    "dropout": 0.0,
    "bidirectional": False,
    "proj_size": 0,
}


def _describe(hx: object) -> str:
    if isinstance(hx, tuple | list):
        return f"a {type(hx).__name__} of {', '.join(type(part).__name__ for part in hx)}"
    return type(hx).__name__


class _PHRecurrent(_Recurrence):
    """What `PHRNN`, `PHGRU` and `PHLSTM` share: sequences, packed or not."""

    dense_args: ClassVar[tuple[str, ...]] = (
        "input_size",
        "hidden_size",
        "num_layers",
        "bias",
        "batch_first",
        "dropout",
        "bidirectional",
    )
    num_layers: int
    batch_first: bool
    dropout: float
    bidirectional: bool
    proj_size: int = 0

    def _lay_out(self, suffix: str) -> Layout:
        part, layer = suffix.removesuffix("_reverse").removeprefix("_").split("_l")
        if part == "hr":
            return Layout()
        reads_both = part == "ih" and layer != "0" and self.bidirectional
        return Layout(gates=self._gates, sides=2 if reads_both else 1)

    def _kernel(self) -> Callable[..., tuple[Tensor, ...]]:
        raise NotImplementedError

    def forward(
        self, input: Tensor | PackedSequence, hx: Hidden | None = None
    ) -> tuple[Tensor | PackedSequence, Hidden]:
        """Return the outputs of the last layer, and the last states of all layers.

        Args:
            input: (steps, batch, input_size), batch first if `batch_first`, (steps, input_size)
                without a batch, or a packed sequence.
            hx: The first states, zeros by default: h, for an LSTM the pair (h, c).
        """
        if isinstance(input, PackedSequence):
            return self._forward_packed(input, hx)
        self._check_features(input, (2, 3))
        is_batch = input.dim() == 3
        x = input if is_batch else input.unsqueeze(0 if self.batch_first else 1)
        batch, steps = x.shape[:2] if self.batch_first else (x.shape[1], x.shape[0])
        if steps == 0:
            raise ValueError(
                f"{type(self).__name__} needs at least one step, got input of shape "
                f"{tuple(input.shape)}"
            )
        shapes = self._state_shapes(batch if is_batch else None)
        states = self._split_states(hx, shapes, x)
        if not is_batch:
            states = tuple(state.reshape(state.shape[0], 1, -1) for state in states)
        output, *last = self._kernel()(x, self._pass(states), *self._options(), self.batch_first)
        if not is_batch:
            output = output.squeeze(0 if self.batch_first else 1)
            last = [state.squeeze(1) for state in last]
        return output, self._pass(tuple(last))

    def _forward_packed(
        self, input: PackedSequence, hx: Hidden | None
    ) -> tuple[PackedSequence, Hidden]:
        data, batch_sizes, order, back = input
        self._check_features(data, (2,))
        if not len(data) or bool((batch_sizes <= 0).any()):
            raise ValueError(
                f"{type(self).__name__} needs sequences of at least one step, got a packed "
                f"sequence of {len(data)} steps with batch_sizes={batch_sizes.tolist()}; leave "
                "empty sequences out before packing"
            )
        states = self._split_states(hx, self._state_shapes(int(batch_sizes[0])), data)
        if order is not None and hx is not None:
            states = tuple(state.index_select(1, order) for state in states)
        output, *last = self._kernel()(data, batch_sizes, self._pass(states), *self._options())
        if back is not None:
            last = [state.index_select(1, back) for state in last]
        return PackedSequence(output, batch_sizes, order, back), self._pass(tuple(last))

    def _options(self) -> tuple[Any, ...]:
        """Return what all kernels take, beginning with the weights."""
        dropout, training = float(self.dropout), self.training
        return (self._tensors(), self.bias, self.num_layers, dropout, training, self.bidirectional)

    def _pass(self, states: tuple[Tensor, ...]) -> Any:
        """Return the states as torch has them: one tensor, or the pair of an LSTM."""
        return states if len(self._state_names) > 1 else states[0]

    def _state_shapes(self, batch: int | None) -> list[tuple[int, ...]]:
        count = self.num_layers * (2 if self.bidirectional else 1)
        middle = () if batch is None else (batch,)
        sizes = (self.proj_size or self.hidden_size, self.hidden_size)
        return [(count, *middle, size) for size in sizes[: len(self._state_names)]]


class PHRNN(_PHRecurrent):
    """An Elman network with 1/n of the parameters; see `PHLSTM`.

    The arguments up to `dtype` are those of `torch.nn.RNN`.

    Example:
        >>> output, h = PHRNN(8, 16, n=4)(torch.randn(10, 3, 8))
        >>> output.shape, h.shape
        (torch.Size([10, 3, 16]), torch.Size([1, 3, 16]))
    """

    dense_type = nn.RNN
    dense_args = (
        "input_size",
        "hidden_size",
        "num_layers",
        "nonlinearity",
        "bias",
        "batch_first",
        "dropout",
        "bidirectional",
    )
    _gates = 1
    nonlinearity: str

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: str = "tanh",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        n: Dimension | None = None,
        algebra: Algebra | str | None = None,
        learn_algebra: bool | None = None,
        terms: int | None = None,
        rank: int | None = None,
    ) -> None:
        super().__init__(locals())

    def _kernel(self) -> Callable[..., tuple[Tensor, ...]]:
        return _VF.rnn_tanh if self.nonlinearity == "tanh" else _VF.rnn_relu


class PHGRU(_PHRecurrent):
    """A gated recurrent unit with 1/n of the parameters; see `PHLSTM`.

    The arguments up to `dtype` are those of `torch.nn.GRU`.

    Example:
        >>> output, h = PHGRU(8, 16, n=4)(torch.randn(10, 3, 8))
        >>> output.shape, h.shape
        (torch.Size([10, 3, 16]), torch.Size([1, 3, 16]))
    """

    dense_type = nn.GRU
    _gates = 3

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        n: Dimension | None = None,
        algebra: Algebra | str | None = None,
        learn_algebra: bool | None = None,
        terms: int | None = None,
        rank: int | None = None,
    ) -> None:
        super().__init__(locals())

    def _kernel(self) -> Callable[..., tuple[Tensor, ...]]:
        return _VF.gru


class PHLSTM(_PHRecurrent):
    r"""A long short-term memory with 1/n of the parameters.

    Each gate has a PH matrix :math:`H = \sum_i A_i \otimes F_i` for the input, and one for the
    hidden state. One A serves all gates of a matrix. The matrices are assembled once per call, and
    torch's fused kernels do the rest. The arguments up to `dtype` are those of `torch.nn.LSTM`.

    A layer above a bidirectional one reads two sides, each with components of its own.

    Args:
        input_size: Features of the input; n must divide it.
        hidden_size: Features of the hidden state; n must divide it.
        num_layers: Layers on top of each other.
        bias: Whether to add learned biases.
        batch_first: Whether the input and the output are (batch, steps, features).
        dropout: Dropout of the outputs of all layers but the last.
        bidirectional: Whether there are layers for the other direction, too.
        proj_size: Features of a projected hidden state; n must divide it. 0 is without projection.
        device: Where the parameters live.
        dtype: Their real floating-point type.
        n: Dimension of the algebras, to be learned; a pair (n_out, n_in) for rectangular ones.
        algebra: A known algebra to compute with, or its name; it implies n.
        learn_algebra: Whether the algebras are learned; by default exactly when none is given.
        terms: Number of Kronecker terms, n by default.
        rank: CP rank that the learned algebras are limited to. It saves parameters, not time.

    Shape:
        - `A_ih_l0`: :math:`(\mathrm{terms}, n_{out}, n_{in})`.
        - `F_ih_l0`: :math:`(4\,\mathrm{hidden}\cdot\mathrm{terms}/n_{out},
          \mathrm{input}/n_{in})`; the first axis reads gate, then term, then row.

    Example:
        >>> lstm = PHLSTM(8, 16, n=4)
        >>> output, (h, c) = lstm(torch.randn(10, 3, 8))
        >>> output.shape, h.shape, c.shape
        (torch.Size([10, 3, 16]), torch.Size([1, 3, 16]), torch.Size([1, 3, 16]))
        >>> list(lstm.state_dict())
        ['A_ih_l0', 'F_ih_l0', 'A_hh_l0', 'F_hh_l0', 'bias_ih_l0', 'bias_hh_l0']
    """

    dense_type = nn.LSTM
    dense_args = (*_PHRecurrent.dense_args, "proj_size")
    _gates = 4
    _state_names = ("h", "c")

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        n: Dimension | None = None,
        algebra: Algebra | str | None = None,
        learn_algebra: bool | None = None,
        terms: int | None = None,
        rank: int | None = None,
    ) -> None:
        super().__init__(locals())

    def _kernel(self) -> Callable[..., tuple[Tensor, ...]]:
        return _VF.lstm
