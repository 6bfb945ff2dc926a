"""Layers of a transformer: attention and a feed-forward part, all with PH projections."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from phnn.algebra import Algebra
from phnn.nn._weight import check_divisible
from phnn.nn.attention import PHMultiheadAttention
from phnn.nn.linear import PHLinear
from phnn.structure import Choice, Dimension, Structure

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

Activation = Callable[[Tensor], Tensor]
_ACTIVATIONS: dict[str, Activation] = {"relu": nn.functional.relu, "gelu": nn.functional.gelu}


class _PHTransformerLayer(nn.Module):
    """What the encoder layer and the decoder layer share."""

    dense_type: ClassVar[type[nn.Module]]
    _attentions: ClassVar[tuple[str, ...]]  # torch's names; each has a norm and a dropout

    self_attn: nn.Module
    linear1: nn.Module
    linear2: nn.Module
    dropout: nn.Dropout

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Activation = nn.functional.relu,
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
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
        super().__init__()
        self.structure = Structure.of(
            n, algebra=algebra, learn_algebra=learn_algebra, terms=terms, rank=rank
        )
        model = "d_model", d_model
        for other in (model, ("dim_feedforward", dim_feedforward)):
            check_divisible(self.structure, model, other)
            check_divisible(self.structure, other, model)
        if isinstance(activation, str):
            if activation not in _ACTIVATIONS:
                raise ValueError(
                    f'activation is "relu", "gelu" or a function of a tensor, got {activation!r}'
                )
            activation = _ACTIVATIONS[activation]
        choice = self.structure.arguments
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        for name in self._attentions:
            attention = PHMultiheadAttention(
                d_model, nhead, dropout, bias, batch_first=batch_first, **factory, **choice
            )
            self.add_module(name, attention)
        self.linear1 = PHLinear(d_model, dim_feedforward, bias, **factory, **choice)
        self.dropout = nn.Dropout(dropout)
        self.linear2 = PHLinear(dim_feedforward, d_model, bias, **factory, **choice)
        self.norm_first = norm_first
        branches = range(1, len(self._attentions) + 2)
        for branch in branches:
            norm = nn.LayerNorm(d_model, eps=layer_norm_eps, bias=bias, **factory)
            self.add_module(f"norm{branch}", norm)
        for branch in branches:
            self.add_module(f"dropout{branch}", nn.Dropout(dropout))
        self.activation = activation

    def _add(self, branch: int, x: Tensor, function: Activation) -> Tensor:
        """Add one residual branch, with its norm before the function or after the sum."""
        norm, drop = getattr(self, f"norm{branch}"), getattr(self, f"dropout{branch}")
        y: Tensor = x + drop(function(norm(x))) if self.norm_first else norm(x + drop(function(x)))
        return y

    def _feed_forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear2(self.dropout(self.activation(self.linear1(x))))
        return y

    @classmethod
    def like(cls, dense: nn.Module, **choice: Unpack[Choice]) -> Self:
        """Make a new PH layer with the arguments, device, dtype and mode of a torch layer."""
        attention, linear = dense.get_submodule("self_attn"), dense.get_submodule("linear1")
        weight = linear.get_parameter("weight")
        layer = cls(
            attention.embed_dim,  # type: ignore[arg-type]
            attention.num_heads,  # type: ignore[arg-type]
            linear.out_features,  # type: ignore[arg-type]
            attention.dropout,  # type: ignore[arg-type]
            dense.activation,  # type: ignore[arg-type]
            batch_first=attention.batch_first,  # type: ignore[arg-type]
            norm_first=dense.norm_first,  # type: ignore[arg-type]
            bias=linear.bias is not None,
            device=weight.device,
            dtype=weight.dtype,
            **choice,
        )
        for name, kept in layer._plain_parts(dense):
            setattr(layer, name, kept)
        return layer.train(dense.training)

    def to_dense(self) -> nn.Module:
        """Return the torch layer that computes the same, with torch's keys and in this mode."""
        attention: PHMultiheadAttention = getattr(self, self._attentions[0])
        dense = self.dense_type(
            attention.embed_dim,
            attention.num_heads,
            self.linear1.out_features,
            attention.dropout,
            self.activation,
            batch_first=attention.batch_first,
            norm_first=self.norm_first,
            bias=self.linear1.bias is not None,
            device="meta",
        )
        for name in (*self._attentions, "linear1", "linear2"):
            part = self.get_submodule(name)
            fold: Callable[[], nn.Module] | None = getattr(part, "to_dense", None)
            setattr(dense, name, copy.deepcopy(part) if fold is None else fold())
        for name, kept in self._plain_parts(self):
            setattr(dense, name, kept)
        return dense.train(self.training)

    def _plain_parts(self, source: nn.Module) -> list[tuple[str, nn.Module]]:
        """Return copies of the norms and dropouts of a layer, ours or torch's."""
        names = [name for name, _ in self.named_children() if name.startswith(("norm", "dropout"))]
        return [(name, copy.deepcopy(source.get_submodule(name))) for name in names]


class PHTransformerEncoderLayer(_PHTransformerLayer):
    r"""Self-attention and a feed-forward part with 1/n of the parameters.

    The arguments up to `dtype` are those of `torch.nn.TransformerEncoderLayer`; `n` and what
    follows are those of `PHMultiheadAttention`. n must divide d_model and dim_feedforward. Children
    have torch's names. `torch.nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)` stacks
    them.

    Example:
        >>> layer = PHTransformerEncoderLayer(64, 8, 256, batch_first=True, n=4)
        >>> layer(torch.randn(2, 10, 64)).shape
        torch.Size([2, 10, 64])
    """

    dense_type = nn.TransformerEncoderLayer
    _attentions = ("self_attn",)

    def forward(
        self,
        src: Tensor,
        src_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        """Return the sequence after attention and feed-forward part.

        Args:
            src: (steps, batch, d_model), batch first if `batch_first`, or without a batch.
            src_mask: The `attn_mask` of `PHMultiheadAttention`.
            src_key_padding_mask: Its `key_padding_mask`.
            is_causal: A hint that `src_mask` is the causal mask.
        """

        def attend(x: Tensor) -> Tensor:
            y: Tensor = self.self_attn(
                x, x, x, src_key_padding_mask, False, src_mask, is_causal=is_causal
            )[0]
            return y

        return self._add(2, self._add(1, src, attend), self._feed_forward)


class PHTransformerDecoderLayer(_PHTransformerLayer):
    r"""Self-attention, attention to a memory, and a feed-forward part, with 1/n of the parameters.

    The arguments up to `dtype` are those of `torch.nn.TransformerDecoderLayer`; `n` and what
    follows are those of `PHMultiheadAttention`. Children have torch's names.

    Example:
        >>> layer = PHTransformerDecoderLayer(64, 8, 256, batch_first=True, n=4)
        >>> layer(torch.randn(2, 7, 64), torch.randn(2, 10, 64)).shape
        torch.Size([2, 7, 64])
    """

    dense_type = nn.TransformerDecoderLayer
    _attentions = ("self_attn", "multihead_attn")
    multihead_attn: nn.Module

    def forward(
        self,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
    ) -> Tensor:
        """Return the targets after both attentions and the feed-forward part.

        Args:
            tgt: (targets, batch, d_model), batch first if `batch_first`, or without a batch.
            memory: (sources, batch, d_model), likewise.
            tgt_mask: The `attn_mask` of the self-attention.
            memory_mask: That of the attention to the memory.
            tgt_key_padding_mask: The `key_padding_mask` of the self-attention.
            memory_key_padding_mask: That of the attention to the memory.
            tgt_is_causal: A hint that `tgt_mask` is the causal mask.
            memory_is_causal: A hint that `memory_mask` is the causal mask.
        """

        def attend(x: Tensor) -> Tensor:
            y: Tensor = self.self_attn(
                x, x, x, tgt_key_padding_mask, False, tgt_mask, is_causal=tgt_is_causal
            )[0]
            return y

        def look_up(x: Tensor) -> Tensor:
            y: Tensor = self.multihead_attn(
                x,
                memory,
                memory,
                memory_key_padding_mask,
                False,
                memory_mask,
                is_causal=memory_is_causal,
            )[0]
            return y

        x = self._add(2, self._add(1, tgt, attend), look_up)
        return self._add(3, x, self._feed_forward)
