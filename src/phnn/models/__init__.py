"""The networks of the zoo; arguments choose between real and hypercomplex layers."""

from phnn.models._network import Network
from phnn.models.authors import load_authors
from phnn.models.cifarnet import CifarNet
from phnn.models.fusion import FusionNet
from phnn.models.multiview import MultiViewNet
from phnn.models.pretrained import list_pretrained
from phnn.models.registry import create_model, list_models
from phnn.models.resnet import ResNet
from phnn.models.sednet import SEDnet
from phnn.models.vgg import VGG
from phnn.models.vit import ViT

__all__ = [
    "VGG",
    "CifarNet",
    "FusionNet",
    "MultiViewNet",
    "Network",
    "ResNet",
    "SEDnet",
    "ViT",
    "create_model",
    "list_models",
    "list_pretrained",
    "load_authors",
]
