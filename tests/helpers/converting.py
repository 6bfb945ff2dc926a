"""Small models for the tests of conversion."""

import copy

import torch
from torch import nn

from phnn.conversion.sites import PH_LAYERS
from phnn.nn import PHLayer

CONVS = [nn.Conv1d, nn.Conv2d, nn.Conv3d]
TRANSPOSED = [nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d]
COUNTERPARTS = {layer.dense_type: layer for layer in PH_LAYERS}


def small_network():
    return nn.Sequential(
        nn.Conv2d(4, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, stride=2),
        nn.Flatten(),
        nn.Linear(72, 12),
    )


def parameters(model):
    return sum(parameter.numel() for parameter in model.parameters())


def snapshot(model):
    """What must not change: the very modules, their mode, and every number."""
    modules = [(name, module, module.training) for name, module in model.named_modules()]
    return modules, copy.deepcopy(model.state_dict()), sorted(vars(model))


def assert_untouched(model, before):
    modules, state, attributes = before
    now = [(name, module, module.training) for name, module in model.named_modules()]
    assert [(name, id(module), mode) for name, module, mode in now] == [
        (name, id(module), mode) for name, module, mode in modules
    ]
    assert model.state_dict().keys() == state.keys()
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    assert sorted(vars(model)) == attributes


def decaying(layer, power):
    """Gives a layer a spectrum that falls like a trained one's: few terms say much of it."""
    with torch.no_grad():
        left, _, right = torch.linalg.svd(layer.weight.flatten(1), full_matrices=False)
        values = torch.arange(1, len(right) + 1).float() ** -power
        layer.weight.copy_((left * values @ right).view(layer.weight.shape))
    return layer


def sizes(model):
    """n and terms of each layer by name; dense layers are left out."""
    return {
        name: (layer.n, layer.terms)
        for name, layer in model.named_modules()
        if isinstance(layer, PHLayer)
    }
