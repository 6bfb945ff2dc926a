"""The weight, assembled at once and in graphs."""

import pytest
import torch

from phnn.functional._assembly import _sum, _sum_in_graph


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("n", [1, 2, 3, 4])
@pytest.mark.parametrize("transposed", [False, True])
def test_graphs_sum_to_the_same_bits(groups, n, transposed):
    A = torch.randn(n, n, n, requires_grad=True)
    blocks = torch.randn(groups, n, 8, 6, 3, 3, requires_grad=True)
    found = []
    for add in (_sum, _sum_in_graph):
        H = add(A.mT if transposed else A, blocks)
        found.append((H, *torch.autograd.grad(H.square().sum(), (A, blocks))))
    for ours, theirs in zip(*found, strict=True):
        assert torch.equal(ours, theirs)
