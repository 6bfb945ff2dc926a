r"""The arithmetic of PH layers on plain tensors.

Every function computes the same equation, with input components :math:`x_b`, output components
:math:`y_a` and Kronecker terms :math:`i`:

.. math:: y_a = \sum_i \sum_b A[i, a, b] \cdot (F_i * x_b) + \mathrm{bias}_a

The names and the order of the arguments are those of `torch.nn.functional`, with `A, F` in the
position of the weight. A is (terms, n_out, n_in), in the paper (n, n, n), or given as `Factors` of
R products. The functions choose the computation by the sizes: A and F are assembled into a weight;
the filters are applied to all components and A to the result, or in the other order; or, for
`Factors`, R mixed components are multiplied by R mixed filters:

.. math:: y_a = \sum_r W[a, r] \cdot \Bigl( \bigl(\textstyle\sum_i U[i, r] \, F_i\bigr) *
    \bigl(\sum_b V[b, r] \, x_b\bigr) \Bigr) + \mathrm{bias}_a
"""

from phnn.functional._assembly import kronecker_sum
from phnn.functional._factors import Factors, Known, each
from phnn.functional._layers import (
    conv1d,
    conv2d,
    conv3d,
    conv_transpose1d,
    conv_transpose2d,
    conv_transpose3d,
    linear,
)
from phnn.functional._sizes import Sizes

__all__ = [
    "Factors",
    "Known",
    "Sizes",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "each",
    "kronecker_sum",
    "linear",
]
