"""Recurrent layers, opened: one linear layer for each matrix, one call for each step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

import phnn.nn as ph
from phnn.conversion.opening import Opened, OpenMatrices

__all__ = ["RECURRENT"]

States = tuple[Tensor, ...]


class _OpenRecurrence(OpenMatrices):
    """What layers and cells share: one step."""

    def _step(self, suffix: str, gates: Tensor, states: States) -> States:
        """Return the next states.

        Args:
            suffix: Of the matrices, such as `_l0`.
            gates: What the inputs contribute.
            states: h, of an LSTM h and c.
        """
        h, *cells = states
        recurrent = self.get_submodule("weight_hh" + suffix)(h)
        return self._gate(suffix, gates, recurrent, h, cells)

    def _gate(
        self, suffix: str, given: Tensor, recurrent: Tensor, h: Tensor, cells: list[Tensor]
    ) -> States:
        raise NotImplementedError


class _RNN(_OpenRecurrence):
    def _gate(
        self, suffix: str, given: Tensor, recurrent: Tensor, h: Tensor, cells: list[Tensor]
    ) -> States:
        total = given + recurrent
        return (total.tanh() if self.fused.nonlinearity == "tanh" else total.relu(),)


class _GRU(_OpenRecurrence):
    def _gate(
        self, suffix: str, given: Tensor, recurrent: Tensor, h: Tensor, cells: list[Tensor]
    ) -> States:
        (r, z, new), (other_r, other_z, other_new) = given.chunk(3, -1), recurrent.chunk(3, -1)
        r, z = (r + other_r).sigmoid(), (z + other_z).sigmoid()
        new = (new + r * other_new).tanh()
        return (new + z * (h - new),)


class _LSTM(_OpenRecurrence):
    def _gate(
        self, suffix: str, given: Tensor, recurrent: Tensor, h: Tensor, cells: list[Tensor]
    ) -> States:
        i, f, g, o = (given + recurrent).chunk(4, -1)
        c = f.sigmoid() * cells[0] + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        if getattr(self.fused, "proj_size", 0):
            h = self.get_submodule("weight_hr" + suffix)(h)
        return h, c


class _Sequence(_OpenRecurrence):
    """A layer: the steps of a sequence, packed or not, in all layers and directions."""

    fused: nn.RNNBase

    def forward(self, input: Tensor | PackedSequence, hx: Any = None) -> Any:
        """Return the outputs of the last layer, and the last states, as torch's layer does."""
        if isinstance(input, PackedSequence):
            data, sizes, order, back = input
            states = self._states(hx, int(sizes[0]), data)
            if order is not None and hx is not None:
                states = tuple(state.index_select(1, order) for state in states)
            output, last = self._run(data, sizes.tolist(), states)
            if back is not None:
                last = tuple(state.index_select(1, back) for state in last)
            return PackedSequence(output, sizes, order, back), self._pack(last)
        time = 1 if self.fused.batch_first else 0
        has_batch = input.dim() == 3
        x = input.movedim(time, 0) if has_batch else input.unsqueeze(1)
        steps, batch = x.shape[:2]
        states = self._states(hx, batch, x, has_batch)
        output, last = self._run(x.flatten(0, 1), [batch] * steps, states)
        output = output.unflatten(0, (steps, batch))
        if has_batch:
            return output.movedim(0, time), self._pack(last)
        return output.squeeze(1), self._pack(tuple(state.squeeze(1) for state in last))

    def _states(self, hx: Any, batch: int, like: Tensor, has_batch: bool = True) -> States:
        fused = self.fused
        if hx is not None:
            given = hx if isinstance(hx, tuple) else (hx,)
            return given if has_batch else tuple(state.unsqueeze(1) for state in given)
        count = fused.num_layers * (2 if fused.bidirectional else 1)
        sizes = [fused.proj_size or fused.hidden_size]
        sizes += [fused.hidden_size] if isinstance(self, _LSTM) else []
        return tuple(like.new_zeros(count, batch, size) for size in sizes)

    def _pack(self, states: States) -> Any:
        return states if isinstance(self, _LSTM) else states[0]

    def _run(self, rows: Tensor, sizes: list[int], first: States) -> tuple[Tensor, States]:
        """Run all layers.

        Args:
            rows: The inputs of all steps, one after the other.
            sizes: The batch of each step; sequences that are shorter come later.
            first: States of all layers and directions.
        """
        ends: list[States] = []
        for layer in range(self.fused.num_layers):
            sides = []
            for direction in ("", "_reverse") if self.fused.bidirectional else ("",):
                suffix = f"_l{layer}{direction}"
                gates = self.get_submodule("weight_ih" + suffix)(rows).split(sizes)
                states = tuple(state[len(ends)] for state in first)
                outputs: list[Tensor] = [rows] * len(sizes)
                order = range(len(sizes))
                for step in reversed(order) if direction else order:
                    active = tuple(state[: sizes[step]] for state in states)
                    moved = self._step(suffix, gates[step], active)
                    outputs[step] = moved[0]
                    states = tuple(
                        torch.cat([new, old[sizes[step] :]])
                        for new, old in zip(moved, states, strict=True)
                    )
                ends.append(states)
                sides.append(torch.cat(outputs))
            rows = torch.cat(sides, -1)
        return rows, tuple(torch.stack(parts) for parts in zip(*ends, strict=True))


class _Cell(_OpenRecurrence):
    """A cell: one step."""

    fused: nn.RNNCellBase

    def forward(self, input: Tensor, hx: Any = None) -> Any:
        """Return the next state, or states, as torch's cell does."""
        count = 2 if isinstance(self, _LSTM) else 1
        if hx is None:
            states: States = (input.new_zeros(*input.shape[:-1], self.fused.hidden_size),) * count
        else:
            states = tuple(hx) if count == 2 else (hx,)
        moved = self._step("", self.get_submodule("weight_ih")(input), states)
        return moved if count == 2 else moved[0]


class _OpenRNN(_RNN, _Sequence):
    twin = ph.PHRNN


class _OpenGRU(_GRU, _Sequence):
    twin = ph.PHGRU


class _OpenLSTM(_LSTM, _Sequence):
    twin = ph.PHLSTM


class _OpenRNNCell(_RNN, _Cell):
    twin = ph.PHRNNCell


class _OpenGRUCell(_GRU, _Cell):
    twin = ph.PHGRUCell


class _OpenLSTMCell(_LSTM, _Cell):
    twin = ph.PHLSTMCell


RECURRENT: dict[type[nn.Module], type[Opened]] = {
    nn.RNN: _OpenRNN,
    nn.GRU: _OpenGRU,
    nn.LSTM: _OpenLSTM,
    nn.RNNCell: _OpenRNNCell,
    nn.GRUCell: _OpenGRUCell,
    nn.LSTMCell: _OpenLSTMCell,
}
