"""The PH layers: the signatures of `torch.nn`, then `n=`, `algebra=`, … `rank=`."""

from phnn.nn._layer import PHLayer
from phnn.nn.authors import from_authors
from phnn.nn.conv import (
    PHConv1d,
    PHConv2d,
    PHConv3d,
    PHConvTranspose1d,
    PHConvTranspose2d,
    PHConvTranspose3d,
)
from phnn.nn.groups import param_groups
from phnn.nn.linear import PHLinear

__all__ = [
    "PHConv1d",
    "PHConv2d",
    "PHConv3d",
    "PHConvTranspose1d",
    "PHConvTranspose2d",
    "PHConvTranspose3d",
    "PHLayer",
    "PHLinear",
    "from_authors",
    "param_groups",
]
