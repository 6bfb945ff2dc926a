"""The networks of the paper; arguments choose between real and hypercomplex layers."""

from phnn.models._network import Network
from phnn.models.registry import create_model, list_models
from phnn.models.resnet import ResNet
from phnn.models.sednet import SEDnet
from phnn.models.vgg import VGG

__all__ = ["VGG", "Network", "ResNet", "SEDnet", "create_model", "list_models"]
