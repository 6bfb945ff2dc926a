"""One test per message: each names the values and the way out."""

import pytest
import torch

import phnn
from phnn import PHConv2d, PHConvTranspose2d, PHLinear
from phnn.algebra import quaternion


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: PHLinear(8, 8), TypeError, "give n=.* or algebra="),
        (lambda: PHLinear(8, 8, n=0), ValueError, "n must be at least 1, got n=0"),
        (lambda: PHLinear(8, 8, n=-2), ValueError, "got n=-2"),
        (lambda: PHLinear(8, 8, n=2.0), TypeError, "n must be an integer or a pair .* got 2.0"),
        (lambda: PHLinear(8, 8, n=True), TypeError, "n must be an integer or a pair .* got True"),
        (lambda: PHLinear(8, 8, n=2, terms=0), ValueError, "between 1 and n²=4, got terms=0"),
        (lambda: PHLinear(8, 8, n=2, terms=5), ValueError, "between 1 and n²=4, got terms=5"),
        (lambda: PHLinear(8, 8, n=2, terms=1.5), TypeError, "terms must be an integer, got 1.5"),
        (lambda: PHLinear(8, 8, n=2, rank=0), ValueError, "between 1 and n²=4, got rank=0"),
        (lambda: PHLinear(8, 8, n=2, rank=5), ValueError, "between 1 and n²=4, got rank=5"),
        (lambda: PHLinear(8, 8, n=2, rank=2.0), TypeError, "rank must be an integer, got 2.0"),
        (lambda: PHLinear(8, 8, n=2, rank=True), TypeError, "rank must be an integer, got True"),
        (
            lambda: PHLinear(8, 8, n=4, terms=4, rank=3),
            ValueError,
            "rank=3 must be at least terms=4; raise rank to 4, or lower terms to 3",
        ),
        (
            lambda: PHLinear(8, 8, algebra=quaternion, learn_algebra=True, rank=3),
            ValueError,
            "rank=3 must be at least terms=4; raise rank to 4$",
        ),
        (
            lambda: PHLinear(8, 8, algebra=quaternion, learn_algebra=True, rank=5),
            ValueError,
            r"quaternion was not found .* rank=5 products \(.*at least 6\); phnn.decompose",
        ),
        (
            lambda: PHLinear(8, 8, algebra=quaternion, rank=8),
            ValueError,
            "rank=8 limits an algebra that is learned, and quaternion is fixed; leave rank out, or",
        ),
        (
            lambda: PHLinear(30, 8, n=4),
            ValueError,
            "n=4 must divide in_features=30; the nearest that work are 28 and 32",
        ),
        (lambda: PHLinear(8, 2, n=4), ValueError, "out_features=2; the least is 4"),
        (lambda: PHLinear(0, 8, n=4), ValueError, "in_features must be at least 1"),
        (
            lambda: PHConv2d(3, 64, 3, n=4),
            ValueError,
            "n=4 must divide in_channels=3; the least is 4",
        ),
        (
            lambda: (
                PHConv2d(8, 24, 3, groups=2, n=4, bias=False).to_dense()
                and PHConv2d(8, 20, 3, groups=2, n=4)
            ),
            ValueError,
            "n=4 must divide out_channels/groups=20/2; for out_channels, .* 16 and 24",
        ),
        (lambda: PHConv2d(8, 8, 3, groups=8, n=2), ValueError, "depthwise layer admits only n=1"),
        (
            lambda: PHConv2d(8, 8, 3, groups=3, n=2),
            ValueError,
            "groups=3 must divide in_channels=8",
        ),
        (lambda: PHConv2d(8, 8, 3, groups=0, n=2), ValueError, "at least 1, got groups=0"),
        (lambda: PHConv2d(8, 8, 3, stride=0, n=2), ValueError, "at least 1, got stride=0"),
        (lambda: PHConv2d(8, 8, 3, (1, 0), n=2), ValueError, r"got stride=\(1, 0\)"),
        (lambda: PHConv2d(8, 8, 3, dilation=0, n=2), ValueError, "at least 1, got dilation=0"),
        (lambda: PHConv2d(8, 8, 0, n=2), ValueError, "at least 1, got kernel_size=0"),
        (lambda: PHConvTranspose2d(8, 8, 3, 0, n=2), ValueError, "at least 1, got stride=0"),
        (
            lambda: PHLinear(8, 8, n=8, algebra=quaternion),
            ValueError,
            "quaternion has n=4, which contradicts n=8",
        ),
        (
            lambda: PHLinear(8, 8, terms=3, algebra=quaternion),
            ValueError,
            "quaternion has 4 terms, which contradicts terms=3",
        ),
        (
            lambda: PHLinear(6, 6, algebra=quaternion),
            ValueError,
            "n=4 must divide in_features=6; the nearest that work are 4 and 8",
        ),
        (
            lambda: PHLinear(8, 8, algebra="quaternoin"),
            ValueError,
            "unknown algebra 'quaternoin'; did you mean quaternion",
        ),
        (
            lambda: PHLinear(8, 8, algebra=4),
            TypeError,
            "algebra must be a phnn.algebra.Algebra or its name, got 4",
        ),
        (
            lambda: PHLinear(8, 8, n=(4, 2)),
            TypeError,
            "terms= is required for the pair",
        ),
        (
            lambda: PHLinear(8, 8, n=(4, 2), terms=9),
            ValueError,
            "terms must be between 1 and n_out·n_in=8, got terms=9",
        ),
        (
            lambda: PHLinear(9, 8, n=(4, 2), terms=1),
            ValueError,
            r"n_in=2 of n=\(4, 2\) must divide in_features=9; the nearest that work are 8 and 10",
        ),
        (
            lambda: PHLinear(8, 8, n=2, learn_algebra=False),
            ValueError,
            "learn_algebra=False needs an algebra=",
        ),
        (
            lambda: PHLinear(8, 8, n=2, dtype=torch.int64),
            TypeError,
            "real floating-point dtype, got torch.int64",
        ),
        (
            lambda: PHLinear(8, 8, n=2, dtype=torch.complex64),
            TypeError,
            "torch.complex64; algebra=phnn.algebra.complex",
        ),
        (
            lambda: PHConv2d(8, 8, 3, padding="half", n=2),
            ValueError,
            "Invalid padding string 'half'",
        ),
        (
            lambda: PHConv2d(8, 8, 3, 2, padding="same", n=2),
            ValueError,
            "padding='same' is not supported for strided",
        ),
        (
            lambda: PHConv2d(8, 8, 3, padding_mode="mirror", n=2),
            ValueError,
            "padding_mode='mirror'",
        ),
        (
            lambda: PHConvTranspose2d(8, 8, 3, padding_mode="reflect", n=2),
            ValueError,
            "[Oo]nly .*zeros.* padding mode is supported",
        ),
        (
            lambda: PHConv2d(8, 8, 3, n=2)(torch.ones(1, 4, 5, 5)),
            ValueError,
            r"PHConv2d expects 8 channels in axis -3, got input of shape \(1, 4, 5, 5\)",
        ),
        (
            lambda: PHConv2d(8, 8, 3, n=2)(torch.ones(8, 8)),
            ValueError,
            r"3D \(unbatched\) or 4D \(batched\) input, got shape \(8, 8\)",
        ),
        (
            lambda: PHLinear(8, 8, n=2)(torch.ones(3, 4)),
            ValueError,
            r"PHLinear expects 8 channels in axis -1, got input of shape \(3, 4\)",
        ),
        (lambda: PHLinear(8, 8, n=2)([1.0]), TypeError, "expects a torch.Tensor, got list"),
        (
            lambda: PHLinear(8, 8, n=2)(torch.ones(8, dtype=torch.int64)),
            TypeError,
            "floating-point input, got torch.int64",
        ),
        (lambda: PHLinear(8, 8, n=2)(torch.tensor(1.0)), ValueError, r"shape \(\)"),
        (
            lambda: phnn.nn.from_authors({"conv.weight": torch.ones(1)}),
            ValueError,
            r"no layer of the authors' code .* among \['conv.weight'\]",
        ),
        (
            lambda: phnn.nn.from_authors({"A": torch.ones(2, 2), "F": torch.ones(2, 1, 1)}),
            ValueError,
            r"not a pair .* \(2, 2\) and \(2, 1, 1\)",
        ),
    ],
)
def test_message(call, error, message):
    with pytest.raises(error, match=message):
        call()
