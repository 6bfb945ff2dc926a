import pickle
from copy import deepcopy
from itertools import combinations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from phnn import algebra
from phnn.algebra import Algebra

CONSTANTS = [algebra.get(name) for name in algebra.names()]
CONSTRUCTED = [
    algebra.clifford(3),
    algebra.clifford(1, 1, 1),
    algebra.clifford(0, 3),
    algebra.cyclic(5),
    algebra.matrix(2),
    algebra.matrix(3),
    algebra.tensor_product(algebra.complex, algebra.quaternion),
    algebra.direct_sum(algebra.complex, algebra.quaternion),
    algebra.cayley_dickson((-1, 0, 1)),
]
ALL = CONSTANTS + CONSTRUCTED


def draw(a: Algebra, count: int, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 7, a.n, dtype=torch.float64, generator=generator)


def basis(a: Algebra):
    return torch.eye(a.n, dtype=torch.float64)


@pytest.mark.parametrize("a", ALL, ids=lambda a: a.name)
def test_the_unit_leaves_everything_unchanged(a):
    (x,) = draw(a, 1)
    assert torch.allclose(a.multiply(a.unit.expand_as(x), x), x)
    assert torch.allclose(a.multiply(x, a.unit.expand_as(x)), x)


@pytest.mark.parametrize("a", ALL, ids=lambda a: a.name)
def test_flags_agree_with_random_elements(a):
    x, y, z = draw(a, 3)
    m = a.multiply
    assert a.is_commutative == torch.allclose(m(x, y), m(y, x))
    assert a.is_associative == torch.allclose(m(m(x, y), z), m(x, m(y, z)))
    alternative = torch.allclose(m(m(x, x), y), m(x, m(x, y)))
    alternative &= torch.allclose(m(m(y, x), x), m(y, m(x, x)))
    assert a.is_alternative == alternative


@pytest.mark.parametrize("a", ALL, ids=lambda a: a.name)
def test_conjugation_is_an_involution_that_reverses_products(a):
    x, y = draw(a, 2)
    assert torch.allclose(a.conjugate(a.conjugate(x)), x)
    reversed_product = a.multiply(a.conjugate(y), a.conjugate(x))
    assert torch.allclose(a.conjugate(a.multiply(x, y)), reversed_product)


def test_quaternion_units():
    one, i, j, k = basis(algebra.quaternion)
    m = algebra.quaternion.multiply
    assert torch.equal(m(i, j), k)
    assert torch.equal(m(j, i), -k)
    assert torch.equal(m(j, k), i)
    assert torch.equal(m(k, i), j)
    for unit in (i, j, k):
        assert torch.equal(m(unit, unit), -one)


def test_left_multiplications_are_the_matrix_of_equation_3():
    """The Hamilton matrix of the paper, block row a and block column b, from A."""
    W = torch.tensor([2.0, 3.0, 5.0, 7.0], dtype=torch.float64)
    w0, w1, w2, w3 = W.tolist()
    paper = [[w0, -w1, -w2, -w3], [w1, w0, -w3, w2], [w2, w3, w0, -w1], [w3, -w2, w1, w0]]
    H = torch.einsum("i,iab->ab", W, algebra.quaternion.structure)
    assert torch.equal(H, torch.tensor(paper, dtype=torch.float64))


def test_squares_of_split_and_tessarine_units():
    one, i, j, k = basis(algebra.split_quaternion)
    m = algebra.split_quaternion.multiply
    assert [torch.equal(m(u, u), s * one) for u, s in ((i, -1), (j, 1), (k, 1))] == [True] * 3
    assert torch.equal(m(i, j), k)
    m = algebra.tessarine.multiply
    assert [torch.equal(m(u, u), s * one) for u, s in ((i, -1), (j, 1), (k, -1))] == [True] * 3
    assert torch.equal(m(i, j), k)
    assert algebra.tessarine.is_commutative


@pytest.mark.parametrize("name", ["real", "complex", "quaternion", "octonion"])
def test_norms_are_multiplicative(name):
    a = algebra.get(name)
    x, y = draw(a, 2)
    norms = x.norm(dim=-1) * y.norm(dim=-1)
    assert torch.allclose(a.multiply(x, y).norm(dim=-1), norms)
    scalar = a.multiply(x, a.conjugate(x))
    assert torch.allclose(scalar, x.square().sum(-1, keepdim=True) * a.unit)


def test_octonions_are_alternative_and_not_associative():
    assert algebra.octonion.is_alternative
    assert not algebra.octonion.is_associative
    assert algebra.split_octonion.is_alternative


def test_sedenions_have_zero_divisors():
    a = algebra.sedenion
    assert not a.is_alternative
    e = basis(a)
    signs = (1, -1)
    pairs = [e[i] + s * e[j] for i, j in combinations(range(1, 16), 2) for s in signs]
    x = torch.stack(pairs)
    products = a.multiply(x[:, None], x[None])
    assert (products.abs().sum(-1) == 0).any()
    # and the algebras before it have none among the same combinations
    o = torch.stack(
        [
            basis(algebra.octonion)[i] + basis(algebra.octonion)[j]
            for i, j in combinations(range(1, 8), 2)
        ]
    )
    assert not (algebra.octonion.multiply(o[:, None], o[None]).abs().sum(-1) == 0).any()


@pytest.mark.parametrize(("p", "q", "r"), [(3, 0, 0), (0, 3, 0), (1, 1, 1), (2, 1, 0), (0, 0, 2)])
def test_clifford_generators_anticommute_to_the_metric(p, q, r):
    a = algebra.clifford(p, q, r)
    metric = [1] * p + [-1] * q + [0] * r
    e, one = basis(a), basis(a)[0]
    for i in range(len(metric)):
        for j in range(len(metric)):
            gi, gj = e[1 << i], e[1 << j]
            anticommutator = a.multiply(gi, gj) + a.multiply(gj, gi)
            assert torch.equal(anticommutator, 2 * metric[i] * (i == j) * one)
    assert a.is_associative


def test_isomorphic_constructions_are_equal_values():
    assert algebra.clifford(0, 1) == algebra.complex
    assert algebra.clifford(0, 2) == algebra.quaternion
    assert algebra.clifford(1) == algebra.split_complex == algebra.cyclic(2)
    assert algebra.clifford(0, 0, 1) == algebra.dual
    assert algebra.quaternion != algebra.tessarine
    assert hash(algebra.clifford(0, 2)) == hash(algebra.quaternion)


def test_matrices_multiply_as_matrices():
    a = algebra.matrix(3)
    x, y = draw(a, 2)
    product = x.unflatten(-1, (3, 3)) @ y.unflatten(-1, (3, 3))
    assert torch.allclose(a.multiply(x, y), product.flatten(-2))


def test_tensor_product_and_direct_sum_act_on_their_parts():
    a, b = algebra.complex, algebra.quaternion
    (x,), (y,) = draw(a, 1), draw(b, 1)
    (u,), (v,) = draw(a, 1, seed=1), draw(b, 1, seed=1)
    outer = lambda p, q: (p[..., :, None] * q[..., None, :]).flatten(-2)  # noqa: E731
    product = algebra.tensor_product(a, b).multiply(outer(x, y), outer(u, v))
    assert torch.allclose(product, outer(a.multiply(x, u), b.multiply(y, v)))
    both = algebra.direct_sum(a, b).multiply(torch.cat([x, y], -1), torch.cat([u, v], -1))
    assert torch.allclose(both, torch.cat([a.multiply(x, u), b.multiply(y, v)], -1))


def test_dual_quaternion_is_quaternions_over_dual_numbers():
    a, q = algebra.dual_quaternion, algebra.quaternion
    x, y = draw(a, 2)
    (x0, x1), (y0, y1) = x.split(4, -1), y.split(4, -1)
    expected = torch.cat([q.multiply(x0, y0), q.multiply(x0, y1) + q.multiply(x1, y0)], -1)
    assert torch.allclose(a.multiply(x, y), expected)


@given(st.integers(1, 6), st.integers(0, 2**32))
@settings(max_examples=20, deadline=None)
def test_multiplication_is_bilinear_and_reads_the_structure(n, seed):
    generator = torch.Generator().manual_seed(seed)
    structure = torch.randn(n, n, n, dtype=torch.float64, generator=generator)
    a = Algebra("random", structure.tolist())
    assert torch.equal(a.structure, structure)
    for i in range(n):
        for b in range(n):
            assert torch.equal(a.multiply(basis(a)[i], basis(a)[b]), structure[i, :, b])


def test_values_are_immutable_and_survive_copying():
    a = algebra.quaternion
    a.structure.zero_()
    assert a.structure.any()
    with pytest.raises(AttributeError):
        a.name = "other"
    for copied in (deepcopy(a), pickle.loads(pickle.dumps(a))):
        assert copied == a
        assert copied.name == a.name
    assert len({a, algebra.get("quaternion"), algebra.clifford(0, 2)}) == 1


def test_tables():
    assert algebra.complex.table() == "×   1   i\n1   1   i\ni   i  -1"
    markdown = algebra.complex.table("markdown").splitlines()
    assert markdown[:2] == ["| × | 1 | i |", "|---|---|---|"]
    assert markdown[3] == "| i | i | -1 |"
    half = Algebra("half", [[[1, 0], [0, 1]], [[0, 0.5], [1, -2]]], labels=("1", "u"))
    assert "0.5 - 2u" in half.table()
    with pytest.raises(ValueError, match='"text" or "markdown", got \'html\''):
        algebra.complex.table("html")


def test_get_reads_every_name_this_module_makes():
    for a in ALL:
        assert algebra.get(a.name) == a
    assert algebra.get("cayley_dickson(())") == algebra.real


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: algebra.get("quaternions"), "did you mean quaternion or"),
        (lambda: algebra.get("cyclic(300)"), r"cyclic\(300\) has n = 300.*at most n = 100"),
        (lambda: algebra.get("zzz"), "unknown algebra 'zzz'; known are real, complex"),
        (lambda: algebra.get("matrix(2, 3)"), r"matrix\(2, 3\): .* 1 positional argument"),
        (lambda: algebra.get("__import__('os')"), "unknown algebra"),
        (lambda: algebra.get("clifford(matricks(2))"), "unknown algebra"),
        (lambda: algebra.clifford(-1), "p=-1"),
        (lambda: algebra.cyclic(0), "n=0"),
        (lambda: algebra.matrix(0), "k=0"),
        (lambda: algebra.cayley_dickson((2,)), r"\(2,\)"),
        (lambda: Algebra("flat", [[1.0]]), r"\(n, n, n\), got \(1, 1\)"),
        (lambda: Algebra("zero", [[[0.0]]]), "not all zero"),
        (lambda: Algebra("one", [[[1.0]]], labels=("a", "b")), "has 1 labels, got 2"),
        (lambda: Algebra("one", [[[1.0]]], conjugation=[1.0]), r"\(1, 1\), got \(1,\)"),
        (lambda: algebra.complex.multiply(torch.ones(3), torch.ones(2)), r"2 components.*\(3,\)"),
        (lambda: Algebra("one", [[[1.0]]]).conjugate(torch.ones(1)), "without a conjugation"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_names_with_named_arguments():
    assert (
        algebra.get("clifford(0, q=2)") == algebra.clifford(0, q=2) == algebra.get("clifford(0, 2)")
    )
    assert algebra.get("clifford(3, r=1)").n == 16
    with pytest.raises(ValueError, match="unexpected keyword argument 's'"):
        algebra.get("clifford(3, s=1)")
