"""Counts of multiplications, here and in other libraries."""

import torch
from torch import nn

import phnn
from phnn.analysis import count_multiplications, thop_ops


def profile(model, x, custom_ops):
    """What `thop.profile` does with the hooks of a user."""
    handles = []
    for module in model.modules():
        module.register_buffer("total_ops", torch.zeros(1, dtype=torch.float64), persistent=False)
        if type(module) in custom_ops:
            handles.append(module.register_forward_hook(custom_ops[type(module)]))
    model(x)
    return sum(float(module.total_ops) for module in model.modules())


def test_thop_counts_what_is_computed():
    x = torch.randn(2, 8, 6, 6)
    model = nn.Sequential(
        phnn.PHConv2d(8, 8, 3, n=2), nn.ReLU(), phnn.PHConv2d(8, 8, 1, n=4)
    ).eval()
    expected = count_multiplications(model, x)
    assert expected > 2 * 16 * 8 * 8 * 9  # of the real 3×3 layer; the weights are made, too
    assert profile(model, x, thop_ops()) == expected
