"""What PH layers learned, told from their tensors."""

import math

import pytest
import torch
from torch import nn

import phnn
from phnn import algebra, analysis
from phnn.algebra import Algebra
from phnn.analysis import Plane, distance, known, neighbours
from phnn.decompose import Declined

GENERATOR = torch.Generator().manual_seed(20)


def draw(*shape: int):
    return torch.randn(shape, generator=GENERATOR, dtype=torch.float64)


def orthogonal(n: int):
    return torch.linalg.qr(draw(n, n)).Q


def scramble(a: Algebra):
    """The algebra in orthogonal bases of inputs and outputs, and any basis of its terms."""
    turned = orthogonal(a.n) @ a.structure @ orthogonal(a.n).mT
    return torch.einsum("ij,jab->iab", draw(a.n, a.n), turned)


def brute_force(A, a: Algebra):
    """For n = 2 every pair of orthogonal matrices, on a grid."""
    angles = torch.linspace(0, 2 * math.pi, 181, dtype=torch.float64)[:-1]
    c, s = angles.cos(), angles.sin()
    turns = torch.stack([torch.stack([c, -s], -1), torch.stack([s, c], -1)], -2)
    turns = torch.cat([turns, turns @ torch.diag(torch.tensor([1.0, -1.0])).double()])
    span = torch.linalg.qr(A.flatten(1).mT).Q
    other = torch.linalg.qr(a.structure.flatten(1).mT).Q.mT.unflatten(1, (2, 2))
    turned = torch.einsum("pab,jbc,qdc->pqjad", turns, other, turns).flatten(-2)
    trace = (turned @ span).square().sum((-2, -1)).max()
    return (1 - trace / 2).clamp_min(0).sqrt().item()


NAMED = [
    "complex",
    "split_complex",
    "dual",
    "cyclic(3)",
    "quaternion",
    "tessarine",
    "split_quaternion",
    "clifford(0, 0, 2)",
    "octonion",
    "dual_quaternion",
    "cyclic(8)",
]


@pytest.mark.parametrize("name", NAMED)
def test_a_known_algebra_in_scrambled_bases_is_found_again(name):
    a = algebra.get(name)
    found = neighbours(scramble(a), known(a.n))
    assert found[0].algebra == a
    assert found[0].distance < 1e-6
    assert found[0].is_match
    assert not any(other.is_match for other in found[1:])


@pytest.mark.parametrize("n", [2, 3, pytest.param(4, marks=pytest.mark.slow)])
def test_no_known_algebra_stands_twice(n):
    for a in known(n):
        assert all(found.distance > 0.3 for found in neighbours(a.structure, known(n))[1:])


def test_matrices_are_the_split_quaternions():
    assert distance(scramble(algebra.matrix(2)), algebra.split_quaternion) < 1e-6


@pytest.mark.parametrize("a", known(2), ids=lambda a: a.name)
def test_the_distance_is_the_smallest_over_all_orthogonal_bases(a):
    for _ in range(3):
        A = draw(2, 2, 2)
        grid = brute_force(A, a)
        assert grid - 1e-2 < distance(A, a) <= grid + 1e-9


def test_a_random_algebra_matches_none():
    for n in (2, 2, 2, 3, 3, 4, 4):
        found = neighbours(draw(n, n, n), known(n))
        assert found[0].distance > (0.02 if n == 2 else 0.3)
        assert not any(neighbour.is_match for neighbour in found)


def test_noise_moves_an_algebra_away_by_its_size():
    a = algebra.quaternion
    A = a.structure + 0.01 * draw(4, 4, 4)
    # twelve of sixteen directions lead out of the span, and P and Q undo some of that
    assert 0.001 < distance(A, a) < analysis.MATCH


def test_distances_do_not_depend_on_bases_and_are_reproducible():
    A, a = draw(4, 4, 4), algebra.tessarine
    first = distance(A, a)
    assert distance(A, a) == first
    turned = torch.einsum("ij,jab->iab", draw(4, 4), orthogonal(4) @ A @ orthogonal(4).mT)
    assert distance(turned, a) == pytest.approx(first, abs=0.02)  # of local minima, the best found


def test_algebras_may_be_given_by_name():
    A = algebra.complex.structure
    assert distance(A, "dual") == distance(A, algebra.dual)
    assert neighbours(A, ["dual", "complex"])[0].algebra == algebra.complex


def test_a_part_of_an_algebra_lies_within_it_and_is_no_match():
    imaginary = scramble(algebra.quaternion)[:3]
    found = neighbours(imaginary, [algebra.quaternion])[0]
    assert found.distance < 1e-6
    assert found.dimension == 3
    assert not found.is_match


def test_more_dimensions_than_the_algebra_are_a_distance():
    """All 16 matrices: 4 of them are the quaternions, 1 − 4/16 of the square is outside."""
    assert distance(draw(16, 4, 4), algebra.quaternion) == pytest.approx(math.sqrt(12 / 16))


@pytest.mark.parametrize(
    ("a", "kind"),
    [
        (algebra.complex, Plane.COMPLEX),
        (algebra.split_complex, Plane.SPLIT),
        (algebra.dual, Plane.DEGENERATE),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_the_hyperdeterminant_tells_the_plane_whatever_the_bases(a, kind):
    for _ in range(5):
        C, P, Q = torch.eye(2) + 0.3 * draw(3, 2, 2)
        skewed = torch.einsum("ij,pa,jab,qb->ipq", C, P, a.structure, Q)
        assert analysis.classify(skewed) is kind


def test_the_hyperdeterminant_is_cayleys_polynomial():
    A = torch.linalg.qr(draw(4, 2)).Q.mT.reshape(2, 2, 2)
    a = {f"{i}{j}{k}": A[i, j, k].item() for i in (0, 1) for j in (0, 1) for k in (0, 1)}
    pairs = [("000", "111"), ("001", "110"), ("010", "101"), ("100", "011")]
    p = [a[x] * a[y] for x, y in pairs]
    polynomial = sum(x * x for x in p)
    polynomial -= 2 * sum(p[i] * p[j] for i in range(4) for j in range(i))
    polynomial += 4 * a["000"] * a["011"] * a["101"] * a["110"]
    polynomial += 4 * a["111"] * a["100"] * a["010"] * a["001"]
    assert analysis.hyperdeterminant(A) == pytest.approx(polynomial, abs=1e-12)


def build():
    torch.manual_seed(0)
    return nn.Sequential(
        phnn.PHConv2d(8, 16, 3, algebra=algebra.tessarine, groups=2),
        nn.ReLU(),
        phnn.PHConvTranspose2d(16, 8, 3, n=4, terms=2),
        phnn.PHLinear(8, 4, algebra=algebra.split_complex, learn_algebra=True),
        nn.Linear(4, 2),
    )


def test_a_model_is_described_layer_by_layer():
    found = analysis.describe(build())
    assert [layer.name for layer in found] == ["0", "2", "3"]
    assert found["0"].match == algebra.tessarine
    assert found["0"].rank.rank == 6
    assert found["2"].match is None
    assert found["2"].terms == found["2"].dimension == 2
    assert found["3"].match == algebra.split_complex
    assert found["3"].plane is Plane.SPLIT
    head, *rows = str(found).splitlines()
    assert head.split()[:4] == ["layer", "type", "n", "terms"]
    assert len(rows) == 3
    assert rows[0].split()[:3] == ["0", "PHConv2d", "4"]
    assert rows[0].endswith("tessarine")


def test_a_learned_basis_does_not_hide_the_algebra():
    """What a layer exchanges between A and F leaves H, and so what it learned, as it was."""
    layer = phnn.PHConv2d(8, 8, 3, algebra=algebra.quaternion, learn_algebra=True)
    H, C = layer.weight.detach(), draw(4, 4).float()
    with torch.no_grad():
        layer.A.copy_(torch.einsum("ij,jab->iab", C, layer.A))
        filters = torch.einsum("ji,jo...->io...", C.inverse(), layer.F.unflatten(0, (4, 2)))
        layer.F.copy_(filters.flatten(0, 1))
    assert torch.allclose(layer.weight, H, atol=1e-4)
    assert analysis.describe(layer, rank=False).layers[0].match == algebra.quaternion


def test_terms_are_weighed_with_their_filters():
    layer = phnn.PHConv2d(8, 8, 3, groups=2, algebra=algebra.quaternion, learn_algebra=True)
    with torch.no_grad():
        layer.F.unflatten(0, (2, 4, 1))[:, 0] *= 1e-6
    found = analysis.describe(layer, rank=False).layers[0]
    H = layer.weight.detach()
    assert found.unused == (0,)
    assert found.usage.square().sum() == pytest.approx(1)
    assert found.dimension == 3
    assert found.match is None
    assert found.spectrum.norm() == pytest.approx(H.norm().item(), rel=1e-5)
    assert found.errors.tolist()[3] < 1e-5
    assert 2 < found.effective_terms < 3 + 1e-6
    assert "within it, 3 of 4 dimensions" in str(found)
    assert found.rank is None
    assert "multiplications" not in str(found)


def test_a_layer_of_zeros_is_like_nothing():
    layer = phnn.PHLinear(4, 4, n=2)
    nn.init.zeros_(layer.F)
    found = analysis.describe(layer, rank=False).layers[0]
    assert found.neighbours == ()
    assert found.match is None
    assert found.unused == (0, 1)
    nn.init.zeros_(layer.A)
    assert analysis.describe(layer).layers[0].rank == Declined("A is zero everywhere")
    assert str(analysis.describe(layer))


def test_own_algebras_can_be_compared_with():
    layer = phnn.PHLinear(6, 6, algebra=analysis.cross)
    found = analysis.describe(layer, algebras=[analysis.cross, algebra.complex], rank=False)
    assert [near.algebra for near in found.layers[0].neighbours] == [analysis.cross]


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="Linear holds no PH layer"):
        analysis.describe(nn.Linear(2, 2))
    with pytest.raises(ValueError, match="PHLinear is on the meta device"):
        analysis.describe(phnn.PHLinear(4, 4, n=2, device="meta"))
    layer = phnn.PHLinear(4, 4, n=2)
    nn.init.constant_(layer.F, math.nan)
    with pytest.raises(ValueError, match="0 holds values that are NaN"):
        analysis.describe(nn.Sequential(layer))
    with pytest.raises(ValueError, match=r"shape \(2, 2, 2\) has n=2, but quaternion has n=4"):
        distance(draw(2, 2, 2), algebra.quaternion)
    with pytest.raises(ValueError, match="zero everywhere"):
        distance(torch.zeros(2, 2, 2), algebra.complex)
    with pytest.raises(ValueError, match=r"\(terms, n_out, n_in\), got \(2, 2\)"):
        distance(torch.eye(2), algebra.complex)
    with pytest.raises(ValueError, match="a span of 1 dimensions"):
        analysis.hyperdeterminant(torch.ones(2, 2, 2))
    with pytest.raises(ValueError, match="n=0"):
        known(0)
    with pytest.raises(KeyError, match="no PH layer is called 'x'; there are 0, 2, 3"):
        analysis.describe(build(), rank=False, algebras=[])["x"]


@pytest.mark.parametrize("n", [5, 9])
def test_other_sizes_have_the_general_algebras(n):
    names = [a.name for a in known(n)]
    assert names == [f"cyclic({n})", *(["matrix(3)"] if n == 9 else [])]
