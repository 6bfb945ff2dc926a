"""The nearest sum of Kronecker products, against what explicit loops and LAPACK's SVD find."""

import math
import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.twins import slow_kronecker_sum
from phnn import algebra
from phnn.decompose import divisors, errors, nearest, nearest_shared, spectrum
from phnn.decompose.threads import one_thread
from phnn.functional import kronecker_sum
from phnn.testing import assert_close


def slow_rearranged(weight, n, groups=1, transposed=False):
    """R[(a, b), (g, o, c, *k)], one block at a time."""
    rows, columns = weight.shape[0] // (groups * n), weight.shape[1] // n
    lines = []
    for a in range(n):
        for b in range(n):
            row, column = (b, a) if transposed else (a, b)
            blocks = []
            for g in range(groups):
                top, left = (g * n + row) * rows, column * columns
                blocks.append(weight[top : top + rows, left : left + columns].flatten())
            lines.append(torch.cat(blocks))
    return torch.stack(lines)


@st.composite
def layouts(draw):
    """Dimension, terms, groups, direction and the shape of a weight that they fit."""
    n = draw(st.integers(1, 4))
    groups = draw(st.integers(1, 3))
    rows, columns = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    kernel = [2, 3, 2][: draw(st.integers(0, 3))]
    shape = (groups * n * rows, n * columns, *kernel)
    return n, draw(st.integers(1, n * n)), groups, draw(st.booleans()), shape


def relative(difference, weight):
    return (difference.norm() / weight.norm()).item()


@given(layouts())
@settings(max_examples=60, deadline=None)
def test_no_sum_of_as_many_terms_is_nearer(layout):
    n, terms, groups, transposed, shape = layout
    weight = torch.randn(shape, dtype=torch.float64)
    found = nearest(weight, n, terms=terms, groups=groups, transposed=transposed)
    values = torch.linalg.svdvals(slow_rearranged(weight, n, groups, transposed))
    least = values[terms:].square().sum().sqrt() / weight.norm()
    H = slow_kronecker_sum(found.A, found.F, groups, transposed)
    assert H.shape == weight.shape
    assert relative(H - weight, weight) == pytest.approx(least.item(), abs=1e-9)
    # the error comes from the Gram matrix, which squares: half of the digits remain near zero
    assert found.error == pytest.approx(least.item(), abs=1e-7)


@given(layouts())
@settings(max_examples=40, deadline=None)
def test_the_spectrum_is_that_of_the_rearranged_matrix(layout):
    n, terms, groups, transposed, shape = layout
    weight = torch.randn(shape, dtype=torch.float64)
    values = torch.linalg.svdvals(slow_rearranged(weight, n, groups, transposed))
    found = spectrum(weight, n, groups, transposed)
    assert found.shape == (n * n,)
    values = torch.nn.functional.pad(values, (0, n * n - len(values)))
    assert_close(found, values, tolerance=1e-7)
    fit = nearest(weight, n, terms=terms, groups=groups, transposed=transposed)
    assert torch.equal(fit.spectrum, found)
    assert errors(found)[terms].item() == pytest.approx(fit.error, abs=1e-7)


@given(layouts(), st.sampled_from([torch.float32, torch.float64]))
@settings(max_examples=60, deadline=None)
def test_a_kronecker_sum_is_recovered(layout, dtype):
    n, terms, groups, transposed, shape = layout
    A = torch.randn(terms, n, n, dtype=dtype)
    F = torch.randn(shape[0] // n * terms, shape[1] // n, *shape[2:], dtype=dtype)
    weight = slow_kronecker_sum(A, F, groups, transposed)
    found = nearest(weight, n, terms=terms, groups=groups, transposed=transposed)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-9
    assert_close(kronecker_sum(found.A, found.F, groups, transposed), weight, tolerance)
    assert found.error < 1e-6
    assert found.A.dtype == found.F.dtype == dtype
    assert found.A.shape == A.shape
    assert found.F.shape == F.shape


@given(layouts())
@settings(max_examples=40, deadline=None)
def test_n_squared_terms_reproduce_any_weight(layout):
    n, _, groups, transposed, shape = layout
    weight = torch.randn(shape)
    found = nearest(weight, n, terms=n * n, groups=groups, transposed=transposed)
    assert_close(kronecker_sum(found.A, found.F, groups, transposed), weight, tolerance=1e-5)
    assert found.error < 1e-6


@pytest.mark.parametrize("n", [1, 2, 4])
def test_every_term_has_the_norm_of_the_root_of_n_and_is_orthogonal_to_the_others(n):
    A = nearest(torch.randn(8, 16, 3, dtype=torch.float64), n).A.flatten(1)
    assert_close(A @ A.mT, n * torch.eye(n, dtype=torch.float64), tolerance=1e-12)
    assert A.norm(dim=1)[0].item() == pytest.approx(math.sqrt(n))


@pytest.mark.parametrize("name", ["complex", "dual", "quaternion", "tessarine"])
@pytest.mark.parametrize("transposed", [False, True])
def test_a_fixed_algebra_gets_the_least_squares_filters(name, transposed):
    fixed = algebra.get(name)
    n, groups = fixed.n, 2
    weight = torch.randn(groups * n * 2, n * 3, 2, dtype=torch.float64)
    found = nearest(weight, algebra=fixed, groups=groups, transposed=transposed)
    assert torch.equal(found.A, fixed.structure)
    # every entry of F gets a column: the weight that it alone would make
    columns = []
    for where in range(found.F.numel()):
        unit = torch.zeros(found.F.numel(), dtype=torch.float64)
        unit[where] = 1
        unit = unit.view(found.F.shape)
        columns.append(slow_kronecker_sum(fixed.structure, unit, groups, transposed).flatten())
    best = torch.linalg.lstsq(torch.stack(columns, dim=1), weight.flatten()[:, None]).solution
    assert_close(found.F.flatten(), best[:, 0], tolerance=1e-10)
    H = kronecker_sum(found.A, found.F, groups, transposed)
    assert found.error == pytest.approx(relative(H - weight, weight), abs=1e-9)


def test_a_quaternion_weight_is_recovered_by_its_algebra():
    F = torch.randn(8, 3)
    weight = kronecker_sum(algebra.quaternion.structure.float(), F)
    found = nearest(weight, algebra=algebra.quaternion)
    assert_close(found.F, F)
    assert found.error < 1e-6


def test_shared_weights_get_the_best_common_algebra():
    weights = [torch.randn(8, 4, 3), torch.randn(4, 8, 3, 3), torch.randn(8, 4)]
    groups, transposed = [2, 1, 1], [False, True, False]
    found = nearest_shared(weights, 2, terms=3, groups=groups, transposed=transposed)
    assert all(torch.equal(fit.A, found[0].A) for fit in found)
    # the best common algebra is that of the rearranged matrices side by side
    parts = zip(weights, groups, transposed, strict=True)
    joint = torch.cat([slow_rearranged(w, 2, g, t) for w, g, t in parts], dim=1)
    least = torch.linalg.svdvals(joint)[3:].square().sum().item()
    parts = zip(found, weights, groups, transposed, strict=True)
    left = [(kronecker_sum(f.A, f.F, g, t) - w).square().sum().item() for f, w, g, t in parts]
    assert sum(left) == pytest.approx(least, rel=1e-4)
    for fit, weight, energy in zip(found, weights, left, strict=True):
        assert fit.error == pytest.approx(math.sqrt(energy) / weight.norm().item(), rel=1e-4)


def test_sharing_with_nobody_is_the_nearest():
    weight = torch.randn(8, 8)
    alone, shared = nearest(weight, 4), nearest_shared([weight], 4)[0]
    assert torch.equal(alone.F, shared.F)
    assert alone.error == shared.error


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_is_decomposed_in_float32(dtype):
    weight = kronecker_sum(torch.randn(2, 2, 2), torch.randn(8, 4)).to(dtype)
    found = nearest(weight, 2)
    assert found.A.dtype == found.F.dtype == dtype
    assert found.spectrum.dtype == torch.float64
    assert_close(kronecker_sum(found.A.float(), found.F.float()), weight.float(), tolerance=2e-2)


def test_a_weight_of_zeros_has_no_error():
    found = nearest(torch.zeros(4, 4), 2)
    assert found.error == 0
    assert not found.F.any()
    assert not errors(found.spectrum).any()


def test_errors_fall_from_one_to_zero():
    curve = errors(spectrum(torch.randn(12, 8, 3), 4))
    assert curve.shape == (17,)
    assert curve[0] == 1
    assert curve[-1] == 0
    assert (curve.diff() <= 0).all()


def test_the_weight_is_left_as_it_was_and_no_graph_is_kept():
    weight = torch.nn.Parameter(torch.randn(4, 4))
    before = weight.detach().clone()
    found = nearest(weight, 2)
    assert torch.equal(weight, before)
    assert not found.A.requires_grad
    assert not found.F.requires_grad


def test_the_number_of_threads_is_restored():
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        nearest(torch.randn(4, 4), 2)
        with pytest.raises(ValueError, match="n=3"):
            spectrum(torch.randn(4, 4), 3)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize(
    ("shape", "groups", "most", "expected"),
    [
        ((12, 8), 1, None, [2, 4]),
        ((64, 48, 3, 3), 1, None, [2, 4, 8, 16]),
        ((64, 64), 1, 8, [2, 4, 8]),
        ((12, 6), 1, None, [2, 3, 6]),
        ((16, 8, 3), 4, None, [2, 4]),
        ((32, 1, 3, 3), 32, None, []),
        ((7, 5), 1, None, []),
    ],
)
def test_divisors(shape, groups, most, expected):
    assert divisors(shape, groups, most) == expected


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: nearest(torch.ones(4, 4)), TypeError, "give n=.* or algebra="),
        (lambda: nearest(torch.ones(4, 4), 0), ValueError, "n must be at least 1, got n="),
        (lambda: nearest(torch.ones(4, 4), 2.0), TypeError, "n must be an integer.*got 2.0"),
        (lambda: spectrum(torch.ones(4, 4), 0), ValueError, "n must be at least 1, got n="),
        (lambda: nearest(torch.ones(4, 4), 2, terms=5), ValueError, "n²=4, got terms=5"),
        (lambda: nearest(torch.ones(4, 4), 2, terms=0), ValueError, "got terms=0"),
        (
            lambda: nearest(torch.ones(4, 6), 4),
            ValueError,
            r"n=4 must divide both channel counts of the weight \(4, 6\)",
        ),
        (lambda: nearest(torch.ones(4), 2), ValueError, r"the weight \(4,\)"),
        (lambda: nearest(torch.ones(8, 4), 4, groups=4), ValueError, r"\(8, 4\) with groups=4"),
        (
            lambda: nearest(torch.ones(4, 4), 2, algebra=algebra.quaternion),
            ValueError,
            "quaternion has n=4, which contradicts n=2",
        ),
        (
            lambda: nearest(torch.ones(4, 4), terms=3, algebra=algebra.quaternion),
            ValueError,
            "terms=3",
        ),
        (lambda: nearest(torch.ones(4, 4, device="meta"), 2), ValueError, "meta device"),
        (lambda: nearest(torch.full((4, 4), math.nan), 2), ValueError, "NaN or infinite"),
        (lambda: spectrum(torch.full((4, 4), math.inf), 2), ValueError, "NaN or infinite"),
        (lambda: nearest(torch.ones(4, 4, dtype=torch.int64), 2), TypeError, "torch.int64"),
        (lambda: nearest(torch.ones(4, 4, dtype=torch.complex64), 2), TypeError, "complex64"),
        (lambda: nearest_shared([], 2), ValueError, "at least one weight"),
        (
            lambda: nearest_shared([torch.ones(4, 4)], 2, groups=[1, 1]),
            ValueError,
            "argument 2 is longer",
        ),
    ],
)
def test_message(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_sections_of_one_thread_may_overlap():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    first_in, second_in, first_out = (threading.Event() for _ in range(3))
    counts = []

    def first():
        with one_thread():
            first_in.set()
            second_in.wait()
        first_out.set()
        counts.append(torch.get_num_threads())

    def second():
        first_in.wait()
        with one_thread():
            second_in.set()
            first_out.wait()
        counts.append(torch.get_num_threads())

    def after():
        counts.append(torch.get_num_threads())

    workers = [threading.Thread(target=work) for work in (first, second)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(10)
    last = threading.Thread(target=after)
    last.start()
    last.join(10)
    torch.set_num_threads(before)
    assert counts == [2, 2, 2]
