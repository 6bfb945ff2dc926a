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
    terms, n_out, n_in = A.shape
    rows, columns = F.shape[0] // (groups * terms), F.shape[1]
    above, beside = (n_in, n_out) if transposed else (n_out, n_in)
    H = F.new_zeros(groups * above * rows, beside * columns, *F.shape[2:])
    for g in range(groups):
        for i in range(terms):
            first = (g * terms + i) * rows
            block = F[first : first + rows]
            for a in range(n_out):
                for b in range(n_in):
                    row, column = (b, a) if transposed else (a, b)
                    top, left = (g * above + row) * rows, column * columns
                    H[top : top + rows, left : left + columns] += A[i, a, b] * block
    return H


def slow_components(x, A, F, bias=None, groups=1, transposed=False, **options):
    """y_a = Σ_i Σ_b A[i, a, b] (F_i ∗ x_b) + bias_a, one pair of components at a time.

    For a linear layer, whose F has two axes, and for convolutions with the options of torch.
    """
    terms, n_out, n_in = A.shape
    dims = F.dim() - 2
    axis = -dims - 1
    functions = {0: nn.functional.linear, **(TRANSPOSE if transposed else CONVOLVE)}
    blocks = F.unflatten(0, (groups, terms, -1))
    outputs = []
    for g, of_group in enumerate(x.chunk(groups, axis)):
        components = of_group.chunk(n_in, axis)
        for a in range(n_out):
            y = 0
            for i in range(terms):
                for b in range(n_in):
                    y = y + A[i, a, b] * functions[dims](components[b], blocks[g, i], **options)
            outputs.append(y)
    y = torch.cat(outputs, axis)
    return y if bias is None else y + bias.reshape(-1, *(1,) * dims)


def slow_algebra(layer):
    """A[i, a, b] = Σ_r U[i, r] W[a, r] V[b, r] entry by entry, where the layer has a rank."""
    if layer.rank is None:
        return layer.A
    terms, rank = layer.terms, layer.rank
    V, W = layer.V.tolist(), layer.W.tolist()
    U = torch.eye(terms).tolist() if layer.U is None else layer.U.tolist()
    A = [
        [[sum(U[i][r] * w[r] * v[r] for r in range(rank)) for v in V] for w in W]
        for i in range(terms)
    ]
    return torch.tensor(A, dtype=layer.F.dtype)


def slow_layer(layer, x):
    """What a layer computes, one pair of components at a time."""
    options = {}
    if layer.F.dim() > 2:
        options = {"stride": layer.stride, "padding": layer.padding, "dilation": layer.dilation}
        if layer.transposed:
            options["output_padding"] = layer.output_padding
        elif layer.padding_mode != "zeros":
            x = nn.functional.pad(x, _pads(layer), mode=layer.padding_mode)
            options["padding"] = 0
    A = slow_algebra(layer)
    return slow_components(x, A, layer.F, layer.bias, layer.groups, layer.transposed, **options)


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
