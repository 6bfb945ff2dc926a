r"""Hypercomplex algebras as immutable values.

An algebra of dimension n is given by its structure constants, the tensor `A` in

.. math:: e_i \cdot e_b = \sum_a A[i, a, b]\, e_a

so that `A[i]` is the matrix of "multiply from the left by basis element i". A PH layer uses that
same tensor, learned or fixed:

>>> from phnn import algebra
>>> print(algebra.quaternion.table())
×   1   i   j   k
1   1   i   j   k
i   i  -1   k  -j
j   j  -k  -1   i
k   k   j  -i  -1
>>> algebra.get("clifford(0, 2)") == algebra.quaternion
True
"""

from phnn.algebra._algebra import Algebra
from phnn.algebra._families import (
    cayley_dickson,
    clifford,
    complex,
    cyclic,
    direct_sum,
    dual,
    dual_quaternion,
    matrix,
    octonion,
    quaternion,
    real,
    sedenion,
    split_complex,
    split_octonion,
    split_quaternion,
    tensor_product,
    tessarine,
)
from phnn.algebra._reading import dimension, get, names

__all__ = [
    "Algebra",
    "cayley_dickson",
    "clifford",
    "complex",
    "cyclic",
    "dimension",
    "direct_sum",
    "dual",
    "dual_quaternion",
    "get",
    "matrix",
    "names",
    "octonion",
    "quaternion",
    "real",
    "sedenion",
    "split_complex",
    "split_octonion",
    "split_quaternion",
    "tensor_product",
    "tessarine",
]
