"""Slow twins: the layers' one equation written with explicit loops over groups and components."""

import torch
from torch import nn

CONVOLVE = {1: nn.functional.conv1d, 2: nn.functional.conv2d, 3: nn.functional.conv3d}
TRANSPOSE = {
    1: nn.functional.conv_transpose1d,
    2: nn.functional.conv_transpose2d,
    3: nn.functional.conv_transpose3d,
}


def slow_kronecker_sum(A, F, groups=1, transposed=False):
    """H entry block by entry block, from the two index formulas."""
    terms, n, _ = A.shape
    rows, columns = F.shape[0] // (groups * terms), F.shape[1]
    H = F.new_zeros(groups * n * rows, n * columns, *F.shape[2:])
    for g in range(groups):
        for i in range(terms):
            first = (g * terms + i) * rows
            block = F[first : first + rows]
            for a in range(n):
                for b in range(n):
                    row, column = (b, a) if transposed else (a, b)
                    top, left = (g * n + row) * rows, column * columns
                    H[top : top + rows, left : left + columns] += A[i, a, b] * block
    return H


def slow_algebra(layer):
    """A[i, a, b] = Σ_r U[i, r] W[a, r] V[b, r] entry by entry, where the layer has a rank."""
    if layer.rank is None:
        return layer.A
    n, terms, rank = layer.n, layer.terms, layer.rank
    V, W = layer.V.tolist(), layer.W.tolist()
    U = torch.eye(terms).tolist() if layer.U is None else layer.U.tolist()
    A = [
        [
            [sum(U[i][r] * W[a][r] * V[b][r] for r in range(rank)) for b in range(n)]
            for a in range(n)
        ]
        for i in range(terms)
    ]
    return torch.tensor(A, dtype=layer.F.dtype)


def slow_layer(layer, x):
    """y_a = Σ_i Σ_b A[i, a, b] (F_i ∗ x_b) + bias_a, one component pair at a time."""
    n, terms, groups, A = layer.n, layer.terms, layer.groups, slow_algebra(layer)
    blocks = layer.F.unflatten(0, (groups, terms, -1))
    if isinstance(layer, _linear()):
        axis, convolve = -1, nn.functional.linear
    else:
        dims = layer.dims
        axis = -dims - 1
        convolve = _transpose(layer, dims) if layer.transposed else _convolve(layer, dims)
        if not layer.transposed and layer.padding_mode != "zeros":
            x = nn.functional.pad(x, _pads(layer), mode=layer.padding_mode)
    outputs = []
    for g, of_group in enumerate(x.chunk(groups, axis)):
        components = of_group.chunk(n, axis)
        for a in range(n):
            y = 0
            for i in range(terms):
                for b in range(n):
                    y = y + A[i, a, b] * convolve(components[b], blocks[g, i])
            outputs.append(y)
    y = torch.cat(outputs, axis)
    if layer.bias is None:
        return y
    return y + layer.bias.reshape(-1, *(1,) * (-axis - 1))


def _linear():
    from phnn import PHLinear

    return PHLinear


def _convolve(layer, dims):
    padding = layer.padding if layer.padding_mode == "zeros" else 0
    return lambda x, F: CONVOLVE[dims](x, F, None, layer.stride, padding, layer.dilation)


def _transpose(layer, dims):
    return lambda x, F: TRANSPOSE[dims](
        x, F, None, layer.stride, layer.padding, layer.output_padding, 1, layer.dilation
    )


def _pads(layer):
    pads = []
    for d in reversed(range(layer.dims)):
        if layer.padding == "same":
            total = layer.dilation[d] * (layer.kernel_size[d] - 1)
            pads += [total // 2, total - total // 2]
        elif layer.padding == "valid":
            pads += [0, 0]
        else:
            pads += [layer.padding[d]] * 2
    return pads
