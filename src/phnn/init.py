r"""Starting values of PH layers.

The default gives the assembled weight H the variance of the torch layer's default, for every n,
number of terms, algebra and rank, with groups and transposed: with :math:`\sigma^2` that variance,

.. math:: \sigma_F^2 = \sigma^2\, n_{out} n_{in} / \lVert A \rVert_F^2

because the mean square of H over its n_out × n_in blocks is :math:`\sigma_F^2 \lVert A \rVert_F^2 /
(n_{out} n_{in})`.

The functions that end in an underscore write into the given tensor or layer, as those of
`torch.nn.init` do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from phnn.algebra import Algebra
from phnn.functional import Factors

__all__ = [
    "algebra_",
    "authors_",
    "default_",
    "embedding_",
    "factors_",
    "filters_",
    "identity_",
    "orthogonal_",
    "polar_",
    "zero_",
]


class PHLayer(Protocol):
    """What the starting values need to know of a layer."""

    A: Tensor
    F: Tensor
    bias: Tensor | None
    groups: int
    transposed: bool

    @property
    def algebra(self) -> Algebra | None:
        """The known algebra that the layer holds or starts from."""
        ...

    @property
    def rank(self) -> int | None:
        """CP rank that the algebra is limited to."""
        ...

    @property
    def algebra_tensor(self) -> Tensor:
        """The algebra, multiplied out where the layer has a rank."""
        ...

    @property
    def default_std(self) -> float:
        """Standard deviation of the torch layer's default weight."""
        ...

    @property
    def factors(self) -> Factors:
        """The parameters that a layer with a rank has instead of A."""
        ...

    def decompose_algebra(self) -> Factors:
        """Return the known algebra in as many products as the layer's rank allows."""
        ...


@runtime_checkable
class Recurrent(Protocol):
    """What an orthogonal start needs to know of a recurrent layer."""

    @property
    def matrices(self) -> Mapping[str, Any]:
        """Its matrices, by torch's names."""
        ...


def algebra_(A: Tensor, distribution: str = "normal") -> Tensor:
    r"""Draw a learned algebra with :math:`\lVert A \rVert_F^2 = n_{out} n_{in}` exactly.

    Args:
        A: The (terms, n_out, n_in) tensor to fill.
        distribution: "normal" for independent entries, the default by measurement
            (results/algebra-start.md); "orthonormal" for terms that are orthogonal
            to each other and of equal norm, as the left multiplications of a division algebra are.

    Example:
        >>> A = algebra_(torch.empty(4, 4, 4))
        >>> round(A.square().sum().item(), 4)
        16.0
    """
    with torch.no_grad():
        if distribution == "normal":
            A.normal_()
        elif distribution == "orthonormal":
            nn.init.orthogonal_(A.view(A.shape[0], -1))
        else:
            raise ValueError(
                f'distribution must be "normal" or "orthonormal", got {distribution!r}'
            )
        return A.mul_(_size(A) / A.norm())


def factors_(factors: Factors) -> Factors:
    r"""Draw a learned algebra of limited rank with the same norm.

    U, V and W are random tight frames, orthogonal along their shorter axis and of nearly equal
    norms along the longer one, so that the mixes are well conditioned and every product has the
    same share, as in a good decomposition of a random algebra, without the search for one.

    Args:
        factors: The tensors to fill: U (terms, R) or None, V (n_in, R), W (n_out, R).

    Example:
        >>> A = factors_(Factors(torch.empty(4, 7), torch.empty(4, 7), torch.empty(4, 7))).tensor()
        >>> round(A.square().sum().item(), 4)
        16.0
    """
    U, V, W = factors
    if V.is_meta:
        return factors
    mixes = _frame(V), _frame(W)  # in this order: a seed keeps its values
    drawn = Factors(None if U is None else _frame(U), *mixes)
    A = drawn.tensor()
    size = (_size(A) / A.norm()) ** (1 / (2 if U is None else 3))
    _write_factors(factors, drawn, size)
    return factors


def filters_(F: Tensor, A: Tensor, std: float) -> Tensor:
    """Draw uniform filters such that H has the given standard deviation with this algebra."""
    bound = math.sqrt(3) * std * _size(A) / _norm(A)
    return nn.init.uniform_(F, -bound, bound)


def default_(layer: PHLayer) -> None:
    """Draw the values of a new layer: H and the bias vary as much as torch's default.

    A learned algebra is drawn by `algebra_`, or starts from the layer's algebra when it has one.
    """
    _start_algebra(layer)
    filters_(layer.F, layer.algebra_tensor, std=layer.default_std)
    _default_bias_(layer)


def embedding_(layer: PHLayer) -> None:
    """Draw the values of a new lookup table: normal filters, for the variance of torch's table."""
    _start_algebra(layer)
    A = layer.algebra_tensor
    nn.init.normal_(layer.F, std=layer.default_std * _size(A) / _norm(A))


def authors_(layer: PHLayer) -> None:
    """Draw the values of the authors' code: Xavier-uniform on the stacked tensors A and F.

    H then comes out up to 20 times narrower than torch's default; for reproduction only.
    """
    if layer.rank is not None:
        raise ValueError(
            f"the authors' code has no layers of limited rank, got rank={layer.rank}; "
            "use the default start, or leave rank out"
        )
    _require_square(layer, "the authors' start")
    if layer.algebra is None:
        bound = math.sqrt(3) / layer.A.shape[-1]
        nn.init.uniform_(layer.A, -bound, bound)
    else:
        _start_algebra(layer)
    blocks = layer.F.unflatten(0, (layer.groups, layer.A.shape[0], -1))
    terms, rows, columns = blocks.shape[1:4]
    receptive = blocks[0, 0, 0, 0].numel()
    fan_in, fan_out = rows * columns * receptive, terms * columns * receptive
    bound = math.sqrt(6 / (fan_in + fan_out))
    nn.init.uniform_(layer.F, -bound, bound)
    _default_bias_(layer)


def polar_(layer: PHLayer, criterion: str = "glorot") -> None:
    r"""Draw hypercomplex filters with uniform direction and chi-distributed modulus.

    The modulus of each filter entry, over its n components, is :math:`s\,\chi_n` with
    :math:`n s^2 = 2/(\mathrm{fan\_in} + \mathrm{fan\_out})` ("glorot") or
    :math:`2/\mathrm{fan\_in}` ("he"), the fans counted in hypercomplex channels. For n = 2 it is
    the start of Trabelsi et al., "Deep Complex Networks" (2018), for n = 4 that of Parcollet et
    al., "Quaternion Recurrent Neural Networks" (2019). The bias starts at zero.
    """
    terms, n, n_in = layer.algebra_tensor.shape
    if not terms == n == n_in:
        raise ValueError(
            f"a polar start needs one filter per component, got terms={terms}, "
            f"n={n if n == n_in else (n, n_in)}"
        )
    if criterion not in ("glorot", "he"):
        raise ValueError(f'criterion must be "glorot" or "he", got {criterion!r}')
    _start_algebra(layer)
    blocks = layer.F.unflatten(0, (layer.groups, terms, -1))
    rows, columns = blocks.shape[2:4]
    fan_out, fan_in = (columns, rows) if layer.transposed else (rows, columns)
    receptive = blocks[0, 0, 0, 0].numel()
    fans = (fan_in + fan_out if criterion == "glorot" else fan_in) * receptive
    s = math.sqrt(2 / (n * fans))
    # n independent normals have a uniform direction and a chi-distributed modulus
    nn.init.normal_(layer.F, std=s)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


def zero_(layer: PHLayer) -> None:
    """Set H = 0, for the last layer of a residual branch: the block starts as the identity.

    After Mancanelli et al., "PHYDI: Initializing Parameterized Hypercomplex Neural Networks as
    Identity Functions" (2023). A keeps its draw, so the first gradient reaches F.
    """
    default_(layer)
    nn.init.zeros_(layer.F)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


def identity_(layer: PHLayer, *, rest: str = "zero") -> None:
    """Let H pass each channel to the one of the same number in the same component.

    With as many outputs as inputs that is what `torch.nn.init.dirac_` does.

    With a known algebra the filters are its unit; a learned algebra gets the identity as its first
    term, and its other terms start with zero filters. A learned algebra of limited rank gets equal
    mixes before and after the products, for which rank ≥ n is needed.

    Args:
        layer: The layer.
        rest: What the outputs beyond the number of inputs get: "zero" or "random", the default
            start of the layer.
    """
    if rest not in ("zero", "random"):
        raise ValueError(f'rest must be "zero" or "random", got {rest!r}')
    _require_square(layer, "an identity")
    default_(layer)
    if layer.F.is_meta:
        return
    with torch.no_grad():
        coefficients = _identity_coefficients(layer)
        blocks = layer.F.unflatten(0, (layer.groups, len(coefficients), -1))
        size = min(blocks.shape[2:4])
        centre = tuple(length // 2 for length in blocks.shape[4:])
        outputs = slice(size if rest == "random" else None)
        (blocks.transpose(2, 3) if layer.transposed else blocks)[:, :, outputs] = 0
        for term, coefficient in enumerate(coefficients):
            for channel in range(size):
                blocks[(slice(None), term, channel, channel, *centre)] = coefficient
        if layer.bias is not None:
            layer.bias.zero_()


def orthogonal_(layer: PHLayer | Recurrent, gain: float = 1.0) -> None:
    r"""Let H be nearly orthogonal, so that a recurrence neither grows nor shrinks its state.

    A learned algebra is drawn as orthogonal matrices. The filters then follow from Newton's
    iteration for the nearest orthogonal matrix, :math:`H \leftarrow H(3 - H^\top H)/2`, with a
    projection to :math:`\sum_i A_i \otimes F_i` after each step. The result is exact for
    associative algebras such as the quaternions, and mostly within some per cent for others. An
    algebra of limited rank, or of a pair n, stays as it is drawn, and the result is coarser.

    Args:
        layer: A linear layer, one matrix of a recurrent layer (`lstm.matrices["weight_hh_l0"]`), in
            which each gate becomes orthogonal, or a recurrent layer or cell: then all matrices of
            its hidden state. Biases, and the other matrices, keep their values.
        gain: The singular values.

    Example:
        >>> import phnn
        >>> gru = phnn.PHGRU(8, 16, n=4)
        >>> orthogonal_(gru)
        >>> gates = gru.weight_hh_l0.chunk(3)
        >>> all((torch.linalg.svdvals(gate) - 1).abs().max() < 0.2 for gate in gates)
        True
    """
    if isinstance(layer, Recurrent):
        for name, matrix in layer.matrices.items():
            if name.startswith("weight_hh"):
                orthogonal_(matrix, gain)
        return
    if layer.F.dim() != 2:
        raise ValueError(
            f"an orthogonal start is for matrices, got filters of shape {tuple(layer.F.shape)}"
        )
    terms, n_out, n_in = layer.algebra_tensor.shape
    _start_algebra(layer)
    if layer.F.is_meta:
        return
    with torch.no_grad():
        if layer.algebra is None and layer.rank is None and n_out == n_in:
            for matrix in layer.A:
                nn.init.orthogonal_(matrix, gain=math.sqrt(n_out / terms))
        A = layer.algebra_tensor.detach().to("cpu", torch.float64)
        blocks = layer.F.unflatten(0, (layer.groups, terms, -1))
        layer.F.copy_(gain * _orthogonal_filters(A, *blocks.shape[:1], *blocks.shape[2:]))


def _orthogonal_filters(A: Tensor, gates: int, rows: int, columns: int) -> Tensor:
    """Return filters, (gates · terms · rows, columns), with which H is nearly orthogonal."""
    terms, n_out, n_in = A.shape
    blocks = torch.randn(gates, terms, rows, columns, dtype=A.dtype, device="cpu")
    size = 0.8 * math.sqrt(gates * min(n_out * rows, n_in * columns))  # within reach of Newton
    projection = torch.linalg.pinv(A.flatten(1)).view(n_out, n_in, terms)
    for step in range(100):
        H = torch.einsum("iab,giop->gaobp", A, blocks).flatten(3).flatten(1, 2)
        H = H * (size / H.norm()) if step == 0 else H
        H = 1.5 * H - 0.5 * H @ (H.mT @ H)
        H = H.unflatten(1, (n_out, rows)).unflatten(3, (n_in, columns))
        blocks = torch.einsum("abi,gaobp->giop", projection, H)
    return blocks.flatten(0, 2)


def _identity_coefficients(layer: PHLayer) -> list[float]:
    """Make the identity one of the sums of the terms, and say which."""
    if layer.algebra is not None and layer.algebra.unit is None:
        raise ValueError(f"{layer.algebra.name} has no unit, so no filters give the identity")
    if layer.rank is not None:
        return _identity_of_factors(layer)
    terms, n, _ = layer.A.shape
    if layer.algebra is not None:
        assert layer.algebra.unit is not None
        return [float(coefficient) for coefficient in layer.algebra.unit]
    layer.A[0] = torch.eye(n, dtype=layer.A.dtype, device=layer.A.device)
    return [1.0] + [0.0] * (terms - 1)


def _identity_of_factors(layer: PHLayer) -> list[float]:
    U, V, W = layer.factors
    n, rank = V.shape
    if rank < n:
        raise ValueError(f"rank={rank} is too low for the identity of n={n}, which needs rank={n}")
    if layer.algebra is None:
        W.copy_(V)  # of a tight frame, Σ_r v_r v_rᵀ is a multiple of the identity
        if U is not None:
            U[0] = 1
    A = layer.algebra_tensor.detach().to("cpu", torch.float64).flatten(1)
    identity = torch.eye(n, dtype=torch.float64, device="cpu").flatten()
    found: list[float] = torch.linalg.lstsq(A.mT, identity).solution.tolist()
    return found


def _start_algebra(layer: PHLayer) -> None:
    """Draw a learned algebra, or write the known one that the layer keeps or starts from."""
    if layer.rank is None:
        if layer.algebra is None:
            algebra_(layer.A)
        else:
            with torch.no_grad():
                layer.A.copy_(layer.algebra.structure)
    elif layer.algebra is None:
        factors_(layer.factors)
    elif not layer.F.is_meta:
        _write_factors(layer.factors, layer.decompose_algebra())


def _write_factors(factors: Factors, values: Factors, size: Tensor | float = 1.0) -> None:
    with torch.no_grad():
        for factor, value in zip(factors, values, strict=True):
            if factor is not None and value is not None:
                factor.copy_(value * size)


def _frame(like: Tensor) -> Tensor:
    """Draw a random tight frame, in float64 on the CPU: bfloat16 has no singular values."""
    rows, columns = like.shape
    frame = torch.randn(rows, columns, dtype=torch.float64, device="cpu")
    for _ in range(20):  # the norms then differ by some per cent at most
        frame = nn.functional.normalize(frame, dim=0 if rows <= columns else 1)
        left, _, right = torch.linalg.svd(frame, full_matrices=False)
        frame = left @ right
    return frame


def _default_bias_(layer: PHLayer) -> None:
    if layer.bias is not None:
        bound = math.sqrt(3) * layer.default_std  # torch draws weights and biases alike
        nn.init.uniform_(layer.bias, -bound, bound)


def _norm(A: Tensor) -> float:
    # on the meta device there is nothing to measure and nothing to draw
    return _size(A) if A.is_meta else A.detach().norm().item()


def _size(A: Tensor) -> float:
    """Return the norm of a learned algebra at the start, √(n_out · n_in)."""
    return math.sqrt(A.shape[-2] * A.shape[-1])


def _require_square(layer: PHLayer, what: str) -> None:
    _, n_out, n_in = layer.algebra_tensor.shape
    if n_out != n_in:
        raise ValueError(f"{what} needs a square algebra, got n=({n_out}, {n_in})")
