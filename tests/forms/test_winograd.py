"""Winograd convolutions: fewest products, bounded rounding."""

from itertools import product

import pytest
import torch

from helpers.accelerating import form
from phnn import PHConv2d
from phnn.analysis.counting import count_multiplications
from phnn.forms import Source
from phnn.forms.winograd import toom_cook
from phnn.functional import Factors


@pytest.mark.parametrize("tile_size", [2, 4])
def test_the_fewest_products(tile_size):
    P, G, B = toom_cook(tile_size)
    slid = torch.zeros(tile_size, 3, tile_size + 2, dtype=torch.float64)  # y_j = Σ_k g_k x_{j+k}
    for j, k in product(range(tile_size), range(3)):
        slid[j, k, j + k] = 1
    assert P.shape[0] == tile_size + 2
    assert torch.allclose(torch.einsum("pj,pk,px->jkx", P, G, B), slid, rtol=0, atol=1e-14)
    assert torch.equal(B, B.float().double())


@pytest.mark.parametrize("tile_size", [2, 4])
def test_multiplications(tile_size):
    n, R, channels, points = 4, 7, 512, (tile_size + 2) ** 2
    layer = PHConv2d(channels, channels, 3, padding=1, n=n, bias=False).eval()
    source = Source(layer, Factors(torch.randn(n, R), torch.randn(n, R), torch.randn(n, R)))
    x = torch.randn(2, channels, 8, 8)
    plain = count_multiplications(layer.to_dense(), x)
    for label, share in ((f"cp_winograd_{tile_size}", R / n**2), (f"winograd_{tile_size}", 1)):
        products = share * plain * points / (9 * tile_size**2)
        count = count_multiplications(form(label, R).build(source), x)
        assert products < count < 1.4 * products, label


@torch.no_grad()
def test_rounding_is_about_that_of_plain_convolutions():
    layer = PHConv2d(128, 128, 3, padding=1, n=4, bias=False).eval()
    x = torch.randn(4, 128, 16, 16)
    exact = layer.double()(x.double())
    layer.float()
    plain = (layer.to_dense()(x) - exact).square().mean()
    for label in ("winograd_2", "winograd_4"):
        error = (form(label).build(Source(layer))(x) - exact).square().mean()
        # how much a plain convolution rounds depends on the processor
        assert error.sqrt() < 8 * plain.sqrt(), label


@pytest.mark.parametrize(
    ("options", "exists"),
    [
        ({}, True),
        ({"stride": 2}, False),
        ({"dilation": 2}, False),
        ({"groups": 2}, False),
        ({"padding": 1, "padding_mode": "circular"}, False),
        ({"dtype": torch.bfloat16}, False),
    ],
    ids=str,
)
def test_layers_that_have_it(options, exists):
    source = Source(PHConv2d(8, 8, 3, n=2, **options))
    assert form("winograd_4").exists(source) == exists


def test_the_tile_size_is_that_of_the_largest_output():
    source = Source(PHConv2d(8, 8, 3, n=1))
    sizes = {}
    for largest in (4, 5, 6, 7):
        shapes = [(1, 8, largest, 3), (1, 8, 3, 3)]
        forms = (form(f"winograd_{size}") for size in (2, 4))
        sizes[largest] = [f.tile_size for f in forms if f.is_promising(source, shapes)]
    assert sizes == {4: [2], 5: [2, 4], 6: [2, 4], 7: [4]}


def test_not_in_autocast():
    source = Source(PHConv2d(8, 8, 3, n=1))
    with torch.autocast("cpu", torch.bfloat16):
        assert not form("winograd_4").is_promising(source, [(1, 8, 8, 8)])
