"""Kronecker sums fitted to activations, against brute force."""

import math

import pytest
import torch

from phnn.decompose import activations, nearest
from phnn.decompose.activations import Moments, assemble, dense_fit, fit, low_rank_fit
from phnn.decompose.blocks import Blocks, canonical
from phnn.functional import kronecker_sum


def draw(groups=1, terms=3, n=(4, 2), P=2, Q=3, K=2, samples=60):
    A = torch.randn(terms, *n).double()
    F = torch.randn(groups, terms, P, Q, K).double()
    mix = torch.randn(groups, n[1] * Q * K, n[1] * Q * K).double()
    x = torch.randn(groups, samples, n[1] * Q * K).double() @ mix
    W = torch.randn(groups, n[0] * P, n[1] * Q, K).double()
    return A, F, x, W


def brute_error(W, H, x):
    y = x @ W.flatten(2).mT
    return float((y - x @ H.flatten(2).mT).square().sum() / y.square().sum())


@pytest.mark.parametrize("groups", [1, 2])
def test_the_error_is_that_of_the_outputs(groups):
    A, F, x, W = draw(groups)
    moments = Moments.of(W, x.mT @ x)
    H = assemble(A, F)
    assert math.isclose(moments.error(H), brute_error(W, H, x), rel_tol=1e-9)
    assert moments.error(W) < 1e-12


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("unknowns", [10**6, 0])  # by factorisation, and by conjugate gradients
def test_each_step_solves_its_least_squares(groups, unknowns, monkeypatch):
    monkeypatch.setattr(activations, "UNKNOWNS", unknowns)
    monkeypatch.setattr(activations, "ITERATIONS", 200)
    A, F, x, W = draw(groups)
    moments = Moments.of(W, x.mT @ x)
    for variable, solve in ((F, activations._solve_filters), (A, activations._solve_algebra)):
        solved = solve(moments, A, F, 0.0)
        free = solved.clone().requires_grad_()
        H = assemble(A, free) if variable is F else assemble(free, F)
        y = x @ (W - H).flatten(2).mT
        (gradient,) = torch.autograd.grad(y.square().sum(), free)
        scale = float((x @ W.flatten(2).mT).square().sum())
        assert gradient.abs().max() < 1e-5 * scale


def in_metric(moments, W, x, groups):
    root = torch.randn(groups, W.shape[1], W.shape[1]).double()
    G = root @ root.mT + 0.1 * torch.eye(W.shape[1]).double()
    y = x @ W.flatten(2).mT
    return Moments(moments.C, moments.B, float(((y @ G) * y).sum()), G), G


@pytest.mark.parametrize("groups", [1, 2])
def test_a_metric_weighs_the_errors_of_the_outputs(groups, monkeypatch):
    monkeypatch.setattr(activations, "ITERATIONS", 300)
    A, F, x, W = draw(groups)
    moments, G = in_metric(Moments.of(W, x.mT @ x), W, x, groups)

    def cost(H):
        y = x @ (W - H).flatten(2).mT
        return ((y @ G) * y).sum()

    H = assemble(A, F)
    assert math.isclose(moments.error(H), float(cost(H)) / moments.energy, rel_tol=1e-9)
    for variable, solve in ((F, activations._solve_filters), (A, activations._solve_algebra)):
        free = solve(moments, A, F, 0.0).clone().requires_grad_()
        H = assemble(A, free) if variable is F else assemble(free, F)
        (gradient,) = torch.autograd.grad(cost(H), free)
        assert gradient.abs().max() < 1e-5 * moments.energy


def test_low_rank_in_a_metric_is_the_best(monkeypatch):
    monkeypatch.setattr(activations, "ITERATIONS", 100)
    _, _, x, W = draw()
    moments, _ = in_metric(Moments.of(W, x.mT @ x), W, x, 1)
    A, F, error = low_rank_fit(moments, W, 3)
    assert A.shape == (3, 8, 1)
    for _ in range(3):  # from anywhere, alternating least squares end no lower
        start = torch.randn_like(A), torch.randn_like(F)
        *_, other = fit(moments, *start, rounds=30, gain=0.0)
        assert error <= other * (1 + 1e-6)


@pytest.mark.parametrize("groups", [1, 2])
def test_rounds_never_raise_the_error_and_find_what_is_there(groups):
    A, F, x, W = draw(groups)
    moments = Moments.of(W, x.mT @ x)
    start = moments.error(assemble(A, F))
    found_A, found_F, error = fit(moments, A, F, rounds=5)
    assert error < start
    assert math.isclose(error, moments.error(assemble(found_A, found_F)), abs_tol=1e-12)
    exact = Moments.of(assemble(A, F), x.mT @ x)
    noisy = A + 0.1 * torch.randn_like(A), F + 0.1 * torch.randn_like(F)
    *_, error = fit(exact, *noisy, rounds=50)
    assert error < 1e-4


def test_low_rank_has_the_best_closed_form():
    _, _, x, W = draw(n=(8, 1), P=1, Q=6)
    moments = Moments.of(W, x.mT @ x)
    A, F, error = low_rank_fit(moments, W, 3)
    y = (x @ W.flatten(2).mT)[0]
    tail = torch.linalg.svdvals(y)[3:].square().sum() / y.square().sum()
    assert math.isclose(error, float(tail), rel_tol=1e-5)
    *_, better = fit(moments, A, F, rounds=3)
    assert better >= error * (1 - 1e-6)


def test_targets_of_other_inputs_are_met():
    *_, x, W = draw()
    changed = x + 0.3 * torch.randn_like(x)
    y = x @ W.flatten(2).mT
    moments = Moments(changed.mT @ changed, changed.mT @ y, float(y.square().sum()))
    H = dense_fit(moments, W, 0.0)
    solution = torch.linalg.lstsq(changed[0], y[0]).solution
    assert torch.allclose(H.flatten(2)[0].mT, solution, atol=1e-6)
    before = float((y - changed @ W.flatten(2).mT).square().sum() / y.square().sum())
    assert moments.error(H) < before


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("n", [(4, 2), (2, 4), (8, 1), (1, 8), 2])
def test_nearest_keeps_the_layout_of_a_layer(n, transposed):
    groups, kernel = 2, (3, 2)
    shape = (16, 8, *kernel)
    weight = torch.randn(shape).double()
    out, inputs = (8, 8)
    patches = torch.randn(groups, 400, inputs * 6).double()
    found = nearest(
        weight,
        n,
        terms=3,
        groups=groups,
        transposed=transposed,
        second_moment=patches.mT @ patches,
    )
    H = kronecker_sum(found.A, found.F, groups, transposed)
    assert H.shape == weight.shape
    W, approximation = (canonical(w, groups, transposed) for w in (weight, H))
    assert math.isclose(found.error**2, brute_error(W, approximation, patches), rel_tol=1e-6)
    by_weight = nearest(weight, n, terms=3, groups=groups, transposed=transposed)
    H = kronecker_sum(by_weight.A, by_weight.F, groups, transposed)
    assert found.error**2 <= brute_error(W, canonical(H, groups, transposed), patches) + 1e-12
    assert math.isclose(by_weight.error, float((weight - H).norm() / weight.norm()), rel_tol=1e-9)
    assert out == W.shape[1]


def test_all_terms_reproduce_every_weight():
    weight = torch.randn(6, 10, 3).double()
    for n, terms in (((3, 5), 12), ((6, 1), 6), ((1, 10), 10), ((2, 2), 4)):
        assert nearest(weight, n, terms=terms).error < 1e-7


def test_a_wrong_second_moment_is_refused():
    with pytest.raises(ValueError, match=r"patches of 12 numbers in 1 groups.* got \(3, 3\)"):
        nearest(torch.randn(4, 4, 3), (2, 2), terms=1, second_moment=torch.eye(3))
    bad = torch.full((12, 12), torch.nan)
    with pytest.raises(ValueError, match="second_moment holds values that are NaN"):
        nearest(torch.randn(4, 4, 3), (2, 2), terms=1, second_moment=bad)


def test_blocks_fold_and_unfold_filters():
    for transposed in (False, True):
        blocks = Blocks((8, 12, 3), 4, 2, 2, transposed)
        F = torch.randn(2, 3, *blocks.inner, 3)
        assert torch.equal(blocks.unfold(blocks.fold(F), 3), F)


@pytest.mark.parametrize("unknowns", [10**6, 0])
@pytest.mark.parametrize("metric", [False, True])
@pytest.mark.parametrize("samples", [0, 1, 3])
def test_few_or_no_samples_leave_finite_weights(samples, metric, unknowns, monkeypatch):
    monkeypatch.setattr(activations, "UNKNOWNS", unknowns)
    A, F, x, W = draw(samples=samples)
    moments = Moments.of(W, x.mT @ x)
    if metric:
        moments, _ = in_metric(moments, W, x, 1)
    A, F, error = fit(moments, A, F)
    assert torch.isfinite(assemble(A, F)).all()
    assert math.isfinite(error)


def test_a_weight_that_is_not_finite_has_an_infinite_error():
    *_, x, W = draw()
    moments = Moments.of(W, x.mT @ x)
    W[0, 0, 0, 0] = math.nan
    assert moments.error(W) == math.inf
