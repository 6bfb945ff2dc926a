"""Algebras as sums of few products: exact algorithms, the solver, the search for the rank."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from phnn import algebra
from phnn.algebra import Algebra
from phnn.decompose.bilinear import Declined, Decomposition, bilinear, bilinear_many
from phnn.decompose.bounds import lower_bound
from phnn.decompose.exact import find

EXACT = {
    "real": 1,
    "split_complex": 2,
    "complex": 3,
    "dual": 3,
    "tessarine": 6,
    "split_quaternion": 7,
    "matrix(2)": 7,
    "quaternion": 8,
    "clifford(2)": 7,
    "tensor_product(complex, complex)": 6,
    "clifford(0, 3)": 16,
    "clifford(2, 1)": 14,
    "clifford(3)": 21,
    "dual_quaternion": 24,
    "split_octonion": 28,
    "octonion": 30,
    "tensor_product(matrix(2), complex)": 21,
    "direct_sum(quaternion, dual)": 11,
    "clifford(3, 1)": 49,
    "matrix(4)": 49,
    "sedenion": 122,
}


def random_algebras(count: int, *shape: int, seed: int = 0) -> Tensor:
    """Learned algebras at their start: normal, with ‖A‖² = n²."""
    generator = torch.Generator().manual_seed(seed)
    A = torch.randn(count, *shape, generator=generator, dtype=torch.float64)
    return A * shape[-1] / A.flatten(1).norm(dim=1).view(-1, 1, 1, 1)


def multiply_out(found: Decomposition) -> Tensor:
    """The slow twin: the sum over products, one at a time."""
    U, V, W = found.factors
    A = torch.zeros(len(U), len(W), len(V), dtype=torch.float64)
    for r in range(found.rank):
        A += torch.einsum("i,a,b->iab", U[:, r], W[:, r], V[:, r])
    return A


def check(found: Decomposition | Declined, A: Tensor, bound: float = 30) -> Decomposition:
    assert isinstance(found, Decomposition)
    terms, n = A.shape[:2]
    assert found.factors.U.shape == (terms, found.rank)
    assert found.factors.V.shape == found.factors.W.shape == (n, found.rank)
    assert found.error <= 1e-12
    assert (multiply_out(found) - A).norm() <= 1e-12 * A.norm()
    norms = [factor.norm(dim=0) for factor in found.factors]
    growth = float((norms[0] * norms[1] * norms[2]).sum() / A.norm())
    assert found.growth == pytest.approx(growth)
    assert 1 - 1e-9 <= growth <= bound
    return found


class TestExact:
    @pytest.mark.parametrize(("name", "rank"), EXACT.items())
    def test_structure_constants_in_rational_arithmetic(self, name: str, rank: int) -> None:
        A = algebra.get(name).structure
        known = find(A)
        assert known is not None
        assert known.factors.rank == rank
        # a float is a fraction, so nothing is rounded here; only the terms that are not zero
        U, V, W = ([fractions(row) for row in factor] for factor in known.factors)
        for (i, u), (a, w), (b, v) in product(enumerate(U), enumerate(W), enumerate(V)):
            total = sum(u[r] * w[r] * v[r] for r in u.keys() & w.keys() & v.keys())
            assert total == int(A[i, a, b])

    @pytest.mark.parametrize("name", EXACT)
    def test_entries_are_small_and_dyadic(self, name: str) -> None:
        known = find(algebra.get(name).structure)
        assert known is not None
        for factor in known.factors:
            for entry in map(Fraction, factor.flatten().tolist()):
                assert abs(entry) <= 4
                assert entry.denominator in (1, 2, 4, 8, 16)

    @pytest.mark.parametrize("n", range(2, 12))
    def test_circular_convolution_has_the_rank_of_winograd(self, n: int) -> None:
        A = algebra.cyclic(n).structure
        found = check(bilinear(A), A)
        assert found.rank == 2 * n - (n // 2 + 1)

    def test_unknown_constants_have_none(self) -> None:
        assert find(random_algebras(1, 4, 4, 4)[0]) is None
        assert find(random_algebras(1, 2, 4, 4)[0]) is None
        assert find(algebra.quaternion.structure * 2) is None

    @pytest.mark.parametrize(
        ("known", "rank"),
        [(algebra.split_complex, 2), (algebra.dual, 3), (algebra.quaternion, 8)],
        ids=str,
    )
    def test_is_used_for_algebras_and_for_their_tensors(self, known: Algebra, rank: int) -> None:
        for A in (known, known.structure, known.structure.float().requires_grad_()):
            found = bilinear(A)
            assert (found.rank, found.error, found.searched) == (rank, 0.0, True)

    def test_large_ones_are_not_searched_and_say_so(self) -> None:
        found = bilinear(algebra.sedenion)
        assert (found.rank, found.error, found.searched) == (122, 0.0, False)


def fractions(row: Tensor) -> dict[int, Fraction]:
    return {r: Fraction(value) for r, value in enumerate(row.tolist()) if value}


class TestRank:
    def test_random_of_dimension_two_by_the_sign_of_the_hyperdeterminant(self) -> None:
        tensors = random_algebras(20, 2, 2, 2)
        found = bilinear_many(tensors)
        for A, result in zip(tensors, found, strict=True):
            # det(X + tY) has real roots in t exactly when the rank is 2
            c, a = torch.linalg.det(A[0]), torch.linalg.det(A[1])
            b = torch.linalg.det(A[0] + A[1]) - a - c
            assert check(result, A).rank == (2 if b * b - 4 * a * c > 0 else 3)

    @pytest.mark.parametrize(
        ("shape", "rank"),
        [
            ((1, 4, 4), 4),
            ((3, 3, 3), 5),
            ((3, 4, 4), 6),
            ((4, 4, 4), 7),
            ((8, 4, 4), 10),
            ((16, 4, 4), 16),
        ],
        ids=str,
    )
    def test_random(self, shape: Sequence[int], rank: int) -> None:
        tensors = random_algebras(3, *shape)
        for A, result in zip(tensors, bilinear_many(tensors), strict=True):
            found = check(result, A)
            assert (found.rank, found.searched) == (rank, True)

    def test_near_the_quaternions(self) -> None:
        noise = torch.randn(3, 4, 4, 4, generator=torch.Generator().manual_seed(3))
        tensors = algebra.quaternion.structure + 0.1 * noise.double()
        for A, result in zip(tensors, bilinear_many(tensors), strict=True):
            assert check(result, A).rank == 8

    @pytest.mark.parametrize(
        ("known", "rank"),
        [
            (algebra.complex, 3),
            (algebra.tessarine, 6),
            (algebra.matrix(2), 7),
            (algebra.quaternion, 8),
            (algebra.clifford(1, 0, 1), 6),
        ],
        ids=str,
    )
    def test_of_a_known_algebra_in_a_scrambled_basis(self, known: Algebra, rank: int) -> None:
        generator = torch.Generator().manual_seed(0)
        bases = [
            torch.linalg.qr(torch.randn(known.n, known.n, generator=generator).double()).Q
            for _ in range(3)
        ]
        A = torch.einsum("iab,ij,ac,bd->jcd", known.structure, *bases)
        assert check(bilinear(A), A).rank == rank

    @settings(max_examples=12, deadline=None)
    @given(
        st.tuples(st.integers(1, 5), st.integers(1, 4)),
        st.integers(1, 5),
        st.integers(0, 2**16),
    )
    def test_is_not_above_the_one_a_tensor_was_made_of(
        self, size: tuple[int, int], rank: int, seed: int
    ) -> None:
        terms, n = size
        generator = torch.Generator().manual_seed(seed)
        U, V, W = (
            torch.linalg.qr(torch.randn(max(d, rank), rank, generator=generator).double()).Q[:d]
            for d in (terms, n, n)
        )
        A = torch.einsum("ir,ar,br->iab", U, W, V)
        assert check(bilinear(A), A).rank <= rank

    def test_columns_found_by_the_solver_are_balanced(self) -> None:
        found = bilinear(random_algebras(1, 4, 4, 4)[0])
        norms = torch.stack([factor.norm(dim=0) for factor in found.factors])
        torch.testing.assert_close(norms, norms[:1].expand_as(norms))

    @pytest.mark.slow
    def test_of_dimension_eight(self) -> None:
        A = random_algebras(1, 8, 8, 8)[0]
        assert check(bilinear(A, seconds=300), A).rank == 24
        A = algebra.octonion.structure
        assert check(bilinear(A, seconds=300), A).rank <= 26


class TestBounds:
    @settings(max_examples=30, deadline=None)
    @given(st.integers(1, 8), st.integers(3, 5), st.integers(0, 2**16))
    def test_lower_bound_is_not_above_the_rank(self, rank: int, n: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        U, V, W = torch.randn(3, n, rank, generator=generator, dtype=torch.float64)
        assert lower_bound(torch.einsum("ir,ar,br->iab", U, W, V), 1e-10) <= rank

    def test_strassens_equations_exclude_more_than_the_unfoldings(self) -> None:
        assert lower_bound(random_algebras(1, 4, 4, 4)[0], 1e-10) == 6
        assert lower_bound(random_algebras(1, 3, 3, 3)[0], 1e-10) == 5

    def test_growth_keeps_a_border_rank_from_being_accepted(self) -> None:
        """The dual numbers are a limit of tensors of rank 2: any error, at the price of growth."""
        with pytest.raises(RuntimeError, match="rank 2 leaves an error of"):
            bilinear(algebra.dual, rank=2)
        with pytest.raises(RuntimeError, match="growth below bound=4"):
            bilinear(algebra.dual, rank=2, tol=5e-3, bound=4)
        loose = bilinear(algebra.dual, rank=2, tol=5e-3)
        assert 4 < loose.growth <= 30
        assert 1e-5 < loose.error <= 5e-3

    def test_growth_bound_chooses_among_algorithms(self) -> None:
        """Gauss's three products grow by 2.41; others of the same rank by 2."""
        assert bilinear(algebra.complex).growth == pytest.approx(1 + 2**0.5)
        found = check(bilinear(algebra.complex, bound=2.1), algebra.complex.structure, bound=2.1)
        assert found.rank == 3

    def test_a_looser_tolerance_is_reported(self) -> None:
        A = algebra.split_complex.structure
        A[0, 0, 0] += 1e-6
        noisy = A + 1e-7 * random_algebras(1, 2, 2, 2)[0]
        found = bilinear(noisy, rank=2, tol=1e-3)
        assert found.error <= 1e-3
        assert found.error == pytest.approx(
            float((multiply_out(found) - noisy).norm() / noisy.norm())
        )


class TestMany:
    def test_mixed_shapes_in_order(self) -> None:
        tensors = [*random_algebras(2, 3, 3, 3), algebra.complex, random_algebras(1, 2, 4, 4)[0]]
        found = bilinear_many(tensors)
        for A, result in zip(tensors, found, strict=True):
            check(result, A.structure if isinstance(A, Algebra) else A)

    def test_the_same_result_every_time_and_for_equal_ones(self) -> None:
        A = random_algebras(1, 4, 4, 4)[0]
        torch.manual_seed(1)
        first, twin = bilinear_many([A, A.clone()])
        torch.manual_seed(2)
        again = bilinear(A)
        assert isinstance(first, Decomposition)
        assert first is twin
        for ours, theirs in zip(first.factors, again.factors, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=0)

    def test_leaves_the_random_state_and_the_threads_alone(self) -> None:
        state, threads = torch.get_rng_state(), torch.get_num_threads()
        bilinear(random_algebras(1, 3, 3, 3)[0])
        assert torch.equal(state, torch.get_rng_state())
        assert threads == torch.get_num_threads()

    def test_on_any_default_device(self) -> None:
        A = random_algebras(1, 3, 3, 3)[0]
        with torch.device("meta"):
            found = bilinear(A)
        check(found, A)

    def test_what_is_done_to_a_result_stays_there(self) -> None:
        bilinear(algebra.complex).factors.U.zero_()
        check(bilinear(algebra.complex), algebra.complex.structure)

    def test_progress_reaches_the_end(self) -> None:
        seen: list[tuple[int, int]] = []
        bilinear_many(
            [*random_algebras(2, 3, 3, 3), algebra.complex],
            progress=lambda done, total: seen.append((done, total)),
        )
        assert seen[0] == (1, 3)
        assert seen[-1] == (3, 3)
        assert seen == sorted(set(seen))

    def test_nothing(self) -> None:
        assert bilinear_many([]) == []


class TestDeclined:
    def test_too_large_for_the_time(self) -> None:
        (found,) = bilinear_many(random_algebras(1, 16, 16, 16))
        assert isinstance(found, Declined)
        assert "(16, 16, 16) would take the solver" in found.reason
        assert "seconds=60" in found.reason

    def test_no_time(self) -> None:
        with pytest.raises(RuntimeError, match="seconds=0 is allowed"):
            bilinear(random_algebras(1, 4, 4, 4)[0], seconds=0)

    def test_time_ends(self, monkeypatch: pytest.MonkeyPatch) -> None:
        ticks = iter(range(10**6))
        monkeypatch.setattr("time.thread_time", lambda: float(next(ticks)))
        with pytest.raises(RuntimeError, match="seconds=20 was not enough"):
            bilinear(random_algebras(1, 4, 4, 4)[0], seconds=20)

    def test_rank_below_the_bound(self) -> None:
        with pytest.raises(RuntimeError, match="cannot have rank=5: its rank is at least 6"):
            bilinear(random_algebras(1, 4, 4, 4)[0], rank=5)

    def test_rank_that_is_not_found(self) -> None:
        with pytest.raises(
            RuntimeError, match=r"tol=1e-10 .* rank 6 leaves an error of 0?\.?[1-9]"
        ):
            bilinear(random_algebras(1, 4, 4, 4)[0], rank=6)

    def test_given_rank_above_the_smallest(self) -> None:
        found = check(bilinear(algebra.complex, rank=4), algebra.complex.structure)
        assert (found.rank, found.searched) == (4, False)


def test_an_algebra_may_be_given_by_name() -> None:
    assert bilinear("complex").rank == bilinear(algebra.complex).rank == 3


class TestBadInput:
    @pytest.mark.parametrize(
        ("A", "error", "message"),
        [
            (torch.ones(4, 4), ValueError, r"shape \(terms, n_out, n_in\), got \(4, 4\)"),
            (torch.ones(2, 2, 2, 2), ValueError, r"n_in\), got \(2, 2, 2, 2\)"),
            (torch.ones(0, 4, 4), ValueError, r"got \(0, 4, 4\)"),
            (torch.ones(2, 2, 2, dtype=torch.int64), TypeError, "got torch.int64"),
            (torch.ones(2, 2, 2, dtype=torch.complex64), TypeError, "got torch.complex64"),
            (torch.ones(2, 2, 2, device="meta"), ValueError, "meta device"),
            (torch.full((2, 2, 2), torch.nan), ValueError, "NaN or infinite"),
            (torch.zeros(2, 2, 2), ValueError, "zero everywhere"),
            (4, TypeError, "a phnn.algebra.Algebra or its name, got int"),
            ("quaternions", ValueError, "unknown algebra 'quaternions'"),
        ],
    )
    def test_algebra(self, A: Tensor, error: type[Exception], message: str) -> None:
        with pytest.raises(error, match=message):
            bilinear(A)

    @pytest.mark.parametrize(
        ("option", "message"),
        [
            ({"rank": 0}, "got rank=0"),
            ({"rank": 2.5}, "got rank=2.5"),
            ({"tol": 0}, "got tol=0"),
            ({"tol": 1.5}, "got tol=1.5"),
            ({"bound": 0.5}, "got bound=0.5"),
            ({"seconds": -1}, "got seconds=-1"),
        ],
    )
    def test_option(self, option: dict[str, float], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            bilinear(algebra.complex, **option)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [-1.0, 1.0, 2.0])
def test_one_dimension(value: float) -> None:
    found = bilinear(torch.full((1, 1, 1), value))
    assert (found.rank, found.error) == (1, 0)
    entries = torch.zeros(2, 2, 2)
    entries[0, 0, 0] = value
    assert bilinear(entries).rank == 1


@pytest.mark.parametrize("small", [1e-2, 1e-4])
def test_a_small_term_costs_no_more_products(small):
    generator = torch.Generator().manual_seed(3)
    A = torch.randn(4, 4, 4, generator=generator, dtype=torch.float64)
    even = bilinear(A)
    A[2] *= small
    found = bilinear(A)
    assert found.rank == even.rank == 7
    assert found.error < 1e-10
    error = (found.factors.tensor() - A)[2].norm() / A[2].norm()
    assert error < 1e-8  # of the small term itself, too
    assert found.growth < 30
