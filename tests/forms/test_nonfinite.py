"""How far an infinite or NaN value reaches."""

import pytest
import torch

from helpers.accelerating import all_forms, make_source
from phnn import PHConv1d, PHConv2d, PHConvTranspose2d, PHLinear

LAYERS = {
    "learned": lambda: (PHConv2d(16, 16, 3, padding=1, n=4), (2, 16, 12, 12)),
    "complex": lambda: (PHConv2d(16, 16, 3, padding=1, algebra="complex"), (2, 16, 12, 12)),
    "pointwise": lambda: (PHConv2d(16, 16, 1, n=2), (2, 16, 6, 6)),
    "groups": lambda: (PHConv1d(16, 16, 3, padding=1, groups=2, n=4), (2, 16, 9)),
    "transposed": lambda: (PHConvTranspose2d(8, 8, 3, n=2), (2, 8, 6, 6)),
    "low rank": lambda: (PHConv2d(16, 16, 3, padding=1, n=(16, 1), terms=3), (2, 16, 6, 6)),
    "linear": lambda: (PHLinear(16, 16, n=4), (3, 16)),
}


@torch.no_grad()
@pytest.mark.parametrize("value", [float("inf"), float("nan")])
@pytest.mark.parametrize("name", LAYERS)
def test_no_further_than_in_torch_but_for_winograd(name, value):
    layer, shape = LAYERS[name]()
    layer.eval()
    x = torch.randn(shape)
    x[(0, 3, *[4] * (len(shape) - 2))] = value
    # channels are mixed in every layer: positions and samples are what can be spared
    reached = (~layer.to_dense()(x).isfinite()).any(1)
    assert not reached.all()
    own = (~layer(x).isfinite()).any(1)
    assert not (own & ~reached).any()
    source = make_source(layer)
    forms = all_forms(source)
    assert len(forms) > 1
    for form in forms:
        found = (~form.build(source)(x).isfinite()).any(1)
        spread = bool((found & ~reached).any())
        assert not spread or form.is_winograd, form.label
        assert not found[1:].any()
