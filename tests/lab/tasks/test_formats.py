import copy

import torch
from torch import nn

from phnn.lab.tasks.formats import put_channels_last


def test_few_channels_last_and_a_stride():
    # torch alone aborts here, or its gradients are wrong: uxlfoundation/oneDNN, issue 6035
    shortcut = nn.Conv2d(4, 8, 1, stride=2, bias=False)
    model = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), shortcut, nn.Conv2d(8, 8, 3, bias=False))
    other = copy.deepcopy(model)
    put_channels_last(other)
    assert other[0].weight.is_contiguous(memory_format=torch.channels_last)
    for _ in range(3):
        x = torch.randn(32, 3, 18, 18)
        expected, output = model(x), other(x.to(memory_format=torch.channels_last))
        torch.testing.assert_close(output, expected)
        seen = torch.randn_like(expected)
        of_model = torch.autograd.grad(expected, list(model.parameters()), seen)
        of_other = torch.autograd.grad(output, list(other.parameters()), seen)
        torch.testing.assert_close(of_other, of_model, rtol=1e-4, atol=1e-3)
    assert output.is_contiguous(memory_format=torch.channels_last)
