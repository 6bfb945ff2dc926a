"""Multi-head attention with PH projections."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn

from phnn import init
from phnn.algebra import Algebra
from phnn.nn._weight import check_divisible
from phnn.nn.linear import PHLinear
from phnn.structure import Choice, Dimension, Structure

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

_INPUTS = ("q_proj", "k_proj", "v_proj")


class PHMultiheadAttention(nn.Module):
    r"""Multi-head attention whose four projections have 1/n of the parameters.

    The projections of query, key, value and output are PH layers, each with an algebra of its own.
    Between them is torch's attention: :math:`\mathrm{softmax}(qk^\top/\sqrt{d})\,v` in each head.
    The arguments up to `dtype` are those of `torch.nn.MultiheadAttention`.

    Heads are cut from the features exactly as torch does: head j has the features
    :math:`[jE/h, (j+1)E/h)`, and component a has :math:`[aE/n, (a+1)E/n)`. So n must divide
    `embed_dim`, not `num_heads`. If n divides the number of heads, each head lies in one component;
    if the number of heads divides n, each head has n/h whole components. With one head, the score
    of two hypercomplex vectors is the sum of the products of their components: for complex numbers
    the real part of the Hermitian product.

    Args:
        embed_dim: Features of the queries and the output; n and num_heads must divide it.
        num_heads: Parallel heads.
        dropout: Dropout of the attention weights.
        bias: Whether the projections have learned biases.
        add_bias_kv: Whether a learned key and a learned value are added to the others.
        add_zero_attn: Whether a key and a value of zeros are added.
        kdim: Features of the keys, `embed_dim` by default; n must divide it.
        vdim: Features of the values, `embed_dim` by default; n must divide it.
        batch_first: Whether inputs and output are (batch, steps, features).
        device: Where the parameters live.
        dtype: Their real floating-point type.
        n: Dimension of the algebras, to be learned; a pair (n_out, n_in) for rectangular ones.
        algebra: A known algebra to compute with, or its name; it implies n.
        learn_algebra: Whether the algebras are learned; by default exactly when none is given.
        terms: Number of Kronecker terms, n by default.
        rank: CP rank that the learned algebras are limited to.

    Shape:
        - `q_proj.F`: :math:`(E\cdot\mathrm{terms}/n_{out}, E/n_{in})`. torch has the weights of q,
          k and v below each other in `in_proj_weight`.

    Example:
        >>> attention = PHMultiheadAttention(64, 8, batch_first=True, n=4)
        >>> x = torch.randn(2, 10, 64)
        >>> output, weights = attention(x, x, x)
        >>> output.shape, weights.shape
        (torch.Size([2, 10, 64]), torch.Size([2, 10, 10]))
        >>> list(attention.state_dict())[:3]
        ['q_proj.A', 'q_proj.F', 'q_proj.bias']
    """

    dense_type: ClassVar[type[nn.Module]] = nn.MultiheadAttention
    dense_args: ClassVar[tuple[str, ...]] = (
        "embed_dim",
        "num_heads",
        "dropout",
        "add_zero_attn",
        "kdim",
        "vdim",
        "batch_first",
    )

    bias_k: Tensor | None
    bias_v: Tensor | None

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
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
        structure = Structure.of(
            n, algebra=algebra, learn_algebra=learn_algebra, terms=terms, rank=rank
        )
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.dropout = dropout
        self.add_zero_attn = add_zero_attn
        self.kdim = embed_dim if kdim is None else kdim
        self.vdim = embed_dim if vdim is None else vdim
        self.batch_first = batch_first
        self.structure = structure
        output = "embed_dim", embed_dim
        for inputs in (output, ("kdim", self.kdim), ("vdim", self.vdim)):
            check_divisible(structure, inputs, output)
        if num_heads < 1 or embed_dim % num_heads:
            raise ValueError(f"num_heads={num_heads} must divide embed_dim={embed_dim}")

        def project(features: int) -> PHLinear:
            return PHLinear(features, embed_dim, bias, device, dtype, **structure.arguments)

        self.q_proj = project(embed_dim)
        self.k_proj = project(self.kdim)
        self.v_proj = project(self.vdim)
        self.out_proj = project(embed_dim)
        for name in ("bias_k", "bias_v"):
            empty = torch.empty(1, 1, embed_dim, device=device, dtype=dtype)
            self.register_parameter(name, nn.Parameter(empty) if add_bias_kv else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weights with the variance of torch's; biases are zero. Restore a fixed algebra."""
        is_packed = self.embed_dim == self.kdim == self.vdim
        for name in (*_INPUTS, "out_proj"):
            projection = self.get_submodule(name)
            if not isinstance(projection, PHLinear):
                continue
            projection.reset_parameters()
            if projection.bias is not None:
                nn.init.zeros_(projection.bias)
            if name in _INPUTS:
                # torch draws the three as one matrix where they have one shape
                fans = projection.in_features + self.embed_dim * (3 if is_packed else 1)
                A = projection.algebra_tensor
                init.filters_(projection.F, A, std=math.sqrt(2 / fans))
        for bias in (self.bias_k, self.bias_v):
            if bias is not None:
                nn.init.xavier_normal_(bias)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the output, and the attention weights where they are asked for.

        Without weights, torch's fused `scaled_dot_product_attention` computes.

        Args:
            query: (targets, batch, embed_dim), batch first if `batch_first`, (targets, embed_dim)
                without a batch.
            key: (sources, batch, kdim), likewise.
            value: (sources, batch, vdim), likewise.
            key_padding_mask: (batch, sources): True where a key is ignored, or what is added to
                its scores.
            need_weights: Whether to return the weights.
            attn_mask: (targets, sources), or (batch · num_heads, targets, sources): True where a
                key is ignored, or what is added to the scores.
            average_attn_weights: Whether the weights are averaged over the heads.
            is_causal: A hint that `attn_mask` is the causal mask.
        """
        self._check_inputs(query, key, value)
        is_batch = query.dim() == 3
        if not is_batch:
            query, key, value = query.unsqueeze(0), key.unsqueeze(0), value.unsqueeze(0)
        elif not self.batch_first:
            query, key, value = query.transpose(0, 1), key.transpose(0, 1), value.transpose(0, 1)
        batch, targets, sources = query.shape[0], query.shape[1], key.shape[1]
        if is_causal and attn_mask is None:
            raise ValueError(
                "is_causal=True is a hint about attn_mask, got no attn_mask; give "
                f"torch.nn.Transformer.generate_square_subsequent_mask({targets})"
            )
        if key_padding_mask is not None and not is_batch:
            self._check_mask("key_padding_mask", key_padding_mask, (sources,))
            key_padding_mask = key_padding_mask.unsqueeze(0)
        mask = self._merge_masks(attn_mask, key_padding_mask, batch, targets, sources)

        q, k, v = self.q_proj(query), self.k_proj(key), self.v_proj(value)
        if self.bias_k is not None and self.bias_v is not None:
            k = torch.cat([k, self.bias_k.to(k.dtype).expand(batch, 1, -1)], dim=1)
            v = torch.cat([v, self.bias_v.to(v.dtype).expand(batch, 1, -1)], dim=1)
        q, k, v = (x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for x in (q, k, v))
        if self.add_zero_attn:
            k, v = (nn.functional.pad(x, (0, 0, 0, 1)) for x in (k, v))
        added = k.shape[2] - sources
        if mask is not None:
            mask = nn.functional.pad(mask, (0, added)).to(q.dtype)
        dropout = self.dropout if self.training else 0.0
        if need_weights:
            scores = q @ k.mT / math.sqrt(q.shape[-1])
            scores = scores if mask is None else scores + mask
            weights = nn.functional.dropout(scores.softmax(-1), dropout)
            output = weights @ v
        else:
            # a kernel that knows the causal mask need not read it
            knows = is_causal and key_padding_mask is None and not added and targets == sources
            output = nn.functional.scaled_dot_product_attention(
                q, k, v, None if knows else mask, dropout, is_causal=knows
            )
        output = self.out_proj(output.transpose(1, 2).flatten(-2))
        if not is_batch:
            output = output.squeeze(0)
        elif not self.batch_first:
            output = output.transpose(0, 1)
        if not need_weights:
            return output, None
        weights = weights.mean(dim=1) if average_attn_weights else weights
        return output, weights if is_batch else weights.squeeze(0)

    def _check_inputs(self, query: Tensor, key: Tensor, value: Tensor) -> None:
        name = type(self).__name__
        sizes = {"query": self.embed_dim, "key": self.kdim, "value": self.vdim}
        for (role, size), x in zip(sizes.items(), (query, key, value), strict=True):
            if not isinstance(x, Tensor):
                raise TypeError(f"{name} expects the {role} as a torch.Tensor, got {x!r}")
            if x.dim() not in (2, 3) or x.dim() != query.dim() or x.shape[-1] != size:
                kind = f"{query.dim()}D" if role != "query" else "2D (unbatched) or 3D"
                raise ValueError(
                    f"{name} expects a {kind} {role} with {size} features in its last axis, "
                    f"got shape {tuple(x.shape)}"
                )
        axis = 0 if self.batch_first else 1
        if key.shape[:-1] != value.shape[:-1] or (
            query.dim() == 3 and query.shape[axis] != key.shape[axis]
        ):
            shapes = ", ".join(
                f"{role} {tuple(x.shape)}"
                for role, x in zip(sizes, (query, key, value), strict=True)
            )
            raise ValueError(
                f"{name} needs a value for each key, and one batch size, got {shapes} "
                f"with batch_first={self.batch_first}"
            )

    def _check_mask(self, name: str, mask: Tensor, *shapes: tuple[int, ...]) -> None:
        if mask.dtype != torch.bool and not mask.is_floating_point():
            raise TypeError(
                f"{name} must be boolean, True where a key is ignored, or floating-point, got "
                f"{mask.dtype}; convert it with {name}.bool()"
            )
        if tuple(mask.shape) not in shapes:
            wanted = " or ".join(str(shape) for shape in shapes)
            raise ValueError(
                f"{name} must have the shape {wanted} for these inputs and "
                f"num_heads={self.num_heads}, got {tuple(mask.shape)}"
            )

    def _merge_masks(
        self,
        attn_mask: Tensor | None,
        key_padding_mask: Tensor | None,
        batch: int,
        targets: int,
        sources: int,
    ) -> Tensor | None:
        """Return what is added to the scores, broadcast to (batch, heads, targets, sources)."""
        merged = None
        if attn_mask is not None:
            plane = targets, sources
            of_heads = batch * self.num_heads, *plane
            self._check_mask("attn_mask", attn_mask, plane, of_heads)
            merged = _additive(attn_mask)
            if attn_mask.dim() == 3:
                merged = merged.unflatten(0, (batch, self.num_heads))
            else:
                merged = merged[None, None]
        if key_padding_mask is not None:
            self._check_mask("key_padding_mask", key_padding_mask, (batch, sources))
            padding = _additive(key_padding_mask)[:, None, None]
            merged = padding if merged is None else merged + padding
        return merged

    @classmethod
    def like(cls, dense: nn.Module, **choice: Unpack[Choice]) -> Self:
        """Make new attention with the arguments, device, dtype and mode of torch's."""
        arguments = {name: getattr(dense, name) for name in cls.dense_args}
        weight = dense.get_submodule("out_proj").get_parameter("weight")
        layer = cls(
            **arguments,
            bias=dense.in_proj_bias is not None,
            add_bias_kv=dense.bias_k is not None,
            device=weight.device,
            dtype=weight.dtype,
            **choice,
        )
        return layer.train(dense.training)

    def to_dense(self) -> nn.Module:
        """Return torch's attention that computes the same, with torch's keys and in this mode."""
        arguments = {name: getattr(self, name) for name in self.dense_args}
        bias, added = self.q_proj.bias is not None, self.bias_k is not None
        dense = nn.MultiheadAttention(**arguments, bias=bias, add_bias_kv=added, device="meta")
        inputs = [self.q_proj, self.k_proj, self.v_proj]

        def learned(tensors: list[Tensor], sources: list[Tensor]) -> nn.Parameter:
            learns = any(source.requires_grad for source in sources)
            return nn.Parameter(torch.cat(tensors).detach().clone(), requires_grad=learns)

        filters = [getattr(projection, "F", projection.weight) for projection in inputs]
        weights = [projection.weight for projection in inputs]
        if dense.in_proj_weight is not None:
            dense.in_proj_weight = learned(weights, filters)
        else:
            for name, weight, source in zip(_INPUTS, weights, filters, strict=True):
                setattr(dense, f"{name}_weight", learned([weight], [source]))
        if bias:
            biases = [projection.bias for projection in inputs if projection.bias is not None]
            dense.in_proj_bias = learned(biases, biases)
        for name in ("bias_k", "bias_v"):
            if added:
                tensor = getattr(self, name)
                setattr(dense, name, learned([tensor], [tensor]))
        output = getattr(self.out_proj, "F", self.out_proj.weight)
        dense.out_proj.weight = learned([self.out_proj.weight], [output])
        if self.out_proj.bias is not None:
            dense.out_proj.bias = learned([self.out_proj.bias], [self.out_proj.bias])
        return dense.train(self.training)

    # torch's transformer layers read these of their attention, and compute in fused kernels

    merge_masks = nn.MultiheadAttention.merge_masks

    @property
    def _qkv_same_embed_dim(self) -> bool:
        return self.embed_dim == self.kdim == self.vdim

    @property
    def in_proj_weight(self) -> Tensor | None:
        """The weights of q, k and v below each other, for reading only; None if sizes differ."""
        if not self._qkv_same_embed_dim:
            return None
        return torch.cat([self.q_proj.weight, self.k_proj.weight, self.v_proj.weight])

    @property
    def in_proj_bias(self) -> Tensor | None:
        """Their biases, for reading only."""
        biases = [p.bias for p in (self.q_proj, self.k_proj, self.v_proj) if p.bias is not None]
        return torch.cat(biases) if biases else None

    def extra_repr(self) -> str:
        """Return the arguments that differ from torch's defaults."""
        shown = [str(self.embed_dim), str(self.num_heads)]
        defaults = {"dropout": 0.0, "kdim": self.embed_dim, "vdim": self.embed_dim}
        for name in self.dense_args[2:]:
            if (value := getattr(self, name)) != defaults.get(name, False):
                shown.append(f"{name}={value}")
        return ", ".join(shown + ["add_bias_kv=True"] * (self.bias_k is not None))


def _additive(mask: Tensor) -> Tensor:
    if mask.dtype != torch.bool:
        return mask
    zeros = torch.zeros_like(mask, dtype=torch.get_default_dtype())
    return zeros.masked_fill(mask, -math.inf)
