"""The PH layers: the signatures of `torch.nn`, then `n=`, `algebra=`, … `rank=`."""

from phnn.nn._layer import PHLayer
from phnn.nn._matrices import named_weights
from phnn.nn.attention import PHMultiheadAttention
from phnn.nn.authors import from_authors
from phnn.nn.batch_norms import ComponentBatchNorm, WhiteningBatchNorm
from phnn.nn.cells import PHGRUCell, PHLSTMCell, PHRNNCell
from phnn.nn.conv import (
    PHConv1d,
    PHConv2d,
    PHConv3d,
    PHConvTranspose1d,
    PHConvTranspose2d,
    PHConvTranspose3d,
)
from phnn.nn.dropout import ComponentDropout
from phnn.nn.embedding import PHEmbedding
from phnn.nn.groups import param_groups
from phnn.nn.layer_norm import ComponentLayerNorm
from phnn.nn.linear import PHLinear
from phnn.nn.rates import balance_rates
from phnn.nn.recurrent import PHGRU, PHLSTM, PHRNN
from phnn.nn.transformer import PHTransformerDecoderLayer, PHTransformerEncoderLayer

__all__ = [
    "PHGRU",
    "PHLSTM",
    "PHRNN",
    "ComponentBatchNorm",
    "ComponentDropout",
    "ComponentLayerNorm",
    "PHConv1d",
    "PHConv2d",
    "PHConv3d",
    "PHConvTranspose1d",
    "PHConvTranspose2d",
    "PHConvTranspose3d",
    "PHEmbedding",
    "PHGRUCell",
    "PHLSTMCell",
    "PHLayer",
    "PHLinear",
    "PHMultiheadAttention",
    "PHRNNCell",
    "PHTransformerDecoderLayer",
    "PHTransformerEncoderLayer",
    "WhiteningBatchNorm",
    "balance_rates",
    "from_authors",
    "named_weights",
    "param_groups",
]
