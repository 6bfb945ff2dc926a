"""Cells of recurrent PH layers: one step."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import _VF, Tensor, nn

from phnn.algebra import Algebra
from phnn.nn.recurrent import Hidden, _Recurrence
from phnn.structure import Dimension


class _PHCell(_Recurrence):
    """What the cells share. A cell assembles its matrices at each step; a layer does so once."""

    dense_args: ClassVar[tuple[str, ...]] = ("input_size", "hidden_size", "bias")

    def _step(self, input: Tensor, hx: Hidden | None) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the input and the states, both with a batch."""
        self._check_features(input, (1, 2))
        shape = (*input.shape[:-1], self.hidden_size)
        states = self._split_states(hx, [shape] * len(self._state_names), input)
        if input.dim() == 2:
            return input, states
        return input.unsqueeze(0), tuple(state.unsqueeze(0) for state in states)

    def _weights(self) -> tuple[Any, ...]:
        biases = (self.bias_ih, self.bias_hh) if self.bias else (None, None)
        return (self.assemble("_ih"), self.assemble("_hh"), *biases)


class PHRNNCell(_PHCell):
    """One step of an Elman network with 1/n of the parameters; see `PHLSTMCell`.

    The arguments up to `dtype` are those of `torch.nn.RNNCell`.

    Example:
        >>> PHRNNCell(8, 16, n=4)(torch.randn(3, 8)).shape
        torch.Size([3, 16])
    """

    dense_type = nn.RNNCell
    dense_args = ("input_size", "hidden_size", "bias", "nonlinearity")
    _gates = 1
    nonlinearity: str

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: str = "tanh",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        n: Dimension | None = None,
        algebra: Algebra | str | None = None,
        learn_algebra: bool | None = None,
        terms: int | None = None,
        rank: int | None = None,
    ) -> None:
        if nonlinearity not in ("tanh", "relu"):
            raise ValueError(f'nonlinearity is "tanh" or "relu", got {nonlinearity!r}')
        super().__init__(locals())

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        """Return the next hidden state."""
        x, (h,) = self._step(input, hx)
        cell = _VF.rnn_tanh_cell if self.nonlinearity == "tanh" else _VF.rnn_relu_cell
        h = cell(x, h, *self._weights())
        return h if input.dim() == 2 else h.squeeze(0)


class PHGRUCell(_PHCell):
    """One step of a gated recurrent unit with 1/n of the parameters; see `PHLSTMCell`.

    The arguments up to `dtype` are those of `torch.nn.GRUCell`.

    Example:
        >>> PHGRUCell(8, 16, n=4)(torch.randn(3, 8)).shape
        torch.Size([3, 16])
    """

    dense_type = nn.GRUCell
    _gates = 3

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
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

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        """Return the next hidden state."""
        x, (h,) = self._step(input, hx)
        h = _VF.gru_cell(x, h, *self._weights())
        return h if input.dim() == 2 else h.squeeze(0)


class PHLSTMCell(_PHCell):
    """One step of a long short-term memory with 1/n of the parameters.

    The arguments up to `dtype` are those of `torch.nn.LSTMCell`; `n` and what follows are those of
    `PHLSTM`. The state keys are `A_ih`, `F_ih`, `A_hh`, `F_hh`, `bias_ih` and `bias_hh`.

    Example:
        >>> cell = PHLSTMCell(8, 16, n=4)
        >>> h, c = cell(torch.randn(3, 8))
        >>> h.shape, c.shape
        (torch.Size([3, 16]), torch.Size([3, 16]))
    """

    dense_type = nn.LSTMCell
    _gates = 4
    _state_names = ("h", "c")

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
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

    def forward(
        self, input: Tensor, hx: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the next hidden state and the next cell state."""
        x, states = self._step(input, hx)
        h, c = _VF.lstm_cell(x, states, *self._weights())
        return (h, c) if input.dim() == 2 else (h.squeeze(0), c.squeeze(0))
