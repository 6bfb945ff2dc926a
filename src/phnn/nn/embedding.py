"""The PH embedding: a lookup table with 1/n of the parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from phnn import functional, init
from phnn.algebra import Algebra
from phnn.nn._layer import PHLayer
from phnn.structure import Choice, Dimension, Structure

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack


class PHEmbedding(PHLayer):
    r"""A lookup table with 1/n of the parameters.

    The table is :math:`H = \sum_i A_i \otimes F_i`. Row r is in component a = r // (rows/n) at
    position o = r % (rows/n), so it is :math:`\sum_i A_i[a, b]\, F_i[o]` in its components b. Only
    the rows that are asked for are computed. The arguments up to `dtype` are those of
    `torch.nn.Embedding` without `_weight` and `_freeze`.

    Args:
        num_embeddings: Rows; n must divide it. A pair n=(1, n_in) admits any number.
        embedding_dim: Features of a row; n must divide it.
        padding_idx: A row that is always zero, and learns nothing.
        max_norm: Rows of a larger norm are scaled to it, when they are looked up.
        norm_type: The p of that norm.
        scale_grad_by_freq: Whether gradients are divided by how often a row occurs in the input.
        sparse: Whether the gradient of F is sparse.
        device: Where the parameters live.
        dtype: Their real floating-point type.
        n: Dimension of the algebra, to be learned; a pair (n_out, n_in) for rows and features.
        algebra: A known algebra to compute with, or its name; it implies n.
        learn_algebra: Whether A is learned; by default exactly when no algebra is given.
        terms: Number of Kronecker terms, n by default.
        rank: CP rank that the learned algebra is limited to.

    Example:
        >>> table = PHEmbedding(1000, 64, n=4)
        >>> table(torch.tensor([[1, 2, 999]])).shape
        torch.Size([1, 3, 64])
        >>> sum(p.numel() for p in table.parameters())  # nn.Embedding has 64,000
        16064
    """

    dense_type = nn.Embedding
    dense_args = (
        "num_embeddings",
        "embedding_dim",
        "padding_idx",
        "max_norm",
        "norm_type",
        "scale_grad_by_freq",
        "sparse",
    )

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
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
        self._check_divisible(("embedding_dim", embedding_dim), ("num_embeddings", num_embeddings))
        if padding_idx is not None:
            if not -num_embeddings <= padding_idx < num_embeddings:
                raise ValueError(
                    f"padding_idx={padding_idx} is no row of num_embeddings={num_embeddings}"
                )
            padding_idx %= num_embeddings
        self.num_embeddings = num_embeddings
        self.embedding_dim = embedding_dim
        self.padding_idx = padding_idx
        self.max_norm = max_norm
        self.norm_type = norm_type
        self.scale_grad_by_freq = scale_grad_by_freq
        self.sparse = sparse
        self._make_state(num_embeddings, embedding_dim, (), None, device, dtype)

    @property
    def default_std(self) -> float:
        """Standard deviation of torch's default table."""
        return 1.0

    def reset_parameters(self) -> None:
        """Draw A as in other layers, and normal filters, so that H has torch's variance of 1."""
        init.embedding_(self)

    @property
    def weight(self) -> Tensor:
        """The whole table H; for reading only."""
        rules = self.algebra_tensor if self.rank is None else self.factors
        H = functional.kronecker_sum(rules, self.F)
        if self.padding_idx is None:
            return H
        is_padding = torch.arange(len(H), device=H.device) == self.padding_idx
        return H.masked_fill(is_padding.unsqueeze(1), 0)

    def forward(self, input: Tensor) -> Tensor:
        """Return the rows with these numbers."""
        if not isinstance(input, Tensor) or input.dtype not in (torch.int32, torch.int64):
            kind = input.dtype if isinstance(input, Tensor) else type(input).__name__
            raise TypeError(f"{type(self).__name__} expects int32 or int64 row numbers, got {kind}")
        rows = self.num_embeddings // self.n_out
        # a row number is checked by the lookup of its component
        component, position = input.div(rows, rounding_mode="floor"), input.remainder(rows)
        rules = nn.functional.embedding(component, self.algebra_tensor.transpose(0, 1).flatten(1))
        rules = rules.unflatten(-1, (self.terms, self.n_in))
        if rows == 1 and not self.sparse:  # low rank: all rows of the table use the same filters
            output = torch.einsum("...ib,ic->...bc", rules, self.F).flatten(-2)
        else:
            terms = torch.arange(self.terms, device=input.device, dtype=input.dtype)
            positions = position.unsqueeze(-1) + rows * terms
            filters = nn.functional.embedding(positions, self.F, sparse=self.sparse)
            output = torch.einsum("...ib,...ic->...bc", rules, filters).flatten(-2)
        if self.padding_idx is not None:
            output = output.masked_fill((input == self.padding_idx).unsqueeze(-1), 0)
        if self.max_norm is not None:
            norm = output.detach().norm(self.norm_type, dim=-1, keepdim=True)
            output = output * torch.where(norm > self.max_norm, self.max_norm / (norm + 1e-7), 1.0)
        return self._divide_gradients(output, input) if self.scale_grad_by_freq else output

    def _divide_gradients(self, output: Tensor, input: Tensor) -> Tensor:
        """Return the output, whose gradient is divided by the counts of its rows."""
        counts = torch.bincount(input.flatten(), minlength=self.num_embeddings)
        share = output / counts[input].unsqueeze(-1)
        return share + (output - share).detach()

    @classmethod
    def like(cls, dense: nn.Module, **choice: Unpack[Choice]) -> Self:
        """Make a new PH table with the arguments, device, dtype and mode of a torch table."""
        weight = dense.get_parameter("weight")
        arguments = {name: getattr(dense, name) for name in cls.dense_args}
        layer = cls(**arguments, device=weight.device, dtype=weight.dtype, **choice)
        return layer.train(dense.training)

    def to_dense(self) -> nn.Module:
        """Return the torch table with the same rows, equally trainable and in the same mode."""
        arguments = {name: getattr(self, name) for name in self.dense_args}
        dense = nn.Embedding(**arguments, device="meta", dtype=self.F.dtype)
        dense.weight = nn.Parameter(self.weight.detach(), requires_grad=self.F.requires_grad)
        return dense.train(self.training)

    def extra_repr(self) -> str:
        """Return the arguments, as `repr` shows them."""
        shown = [str(self.num_embeddings), str(self.embedding_dim)]
        defaults = {"padding_idx": None, "max_norm": None, "norm_type": 2.0}
        for name in self.dense_args[2:]:
            if (value := getattr(self, name)) != defaults.get(name, False):
                shown.append(f"{name}={value}")
        return ", ".join([*shown, str(self.structure)])
