"""Networks by name."""

import fnmatch
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from phnn._names import check_choices, suggest
from phnn.algebra import Algebra
from phnn.models import resnet, vgg
from phnn.models._network import Network
from phnn.models.cifarnet import CifarNet
from phnn.models.fusion import FusionNet
from phnn.models.multiview import MultiViewNet
from phnn.models.pretrained import Pretrained, find_pretrained
from phnn.models.sednet import SEDnet
from phnn.models.vit import ViT

MODELS: dict[str, Callable[..., Network]] = {
    **{f"resnet{depth}": partial(resnet.ResNet, depth) for depth in sorted(resnet.PLANS)},
    **{f"vgg{depth}": partial(vgg.VGG, depth) for depth in sorted(vgg.PLANS)},
    "cifarnet": CifarNet,
    "fusion": FusionNet,
    "multiview": MultiViewNet,
    "sednet": SEDnet,
    "vit_tiny": ViT,
}


def list_models(pattern: str = "*") -> list[str]:
    """Return the names of the networks that match a pattern.

    Args:
        pattern: May have `*`, `?` and `[...]`, as for file names.

    Example:
        >>> list_models("vgg*")
        ['vgg11', 'vgg13', 'vgg16', 'vgg19']
    """
    return fnmatch.filter(MODELS, pattern)


def create_model(
    name: str,
    *,
    n: int | None = None,
    algebra: Algebra | str | None = None,
    num_classes: int | None = None,
    in_channels: int | None = None,
    pretrained: str | None = None,
    **options: Any,
) -> Network:
    """Build a network by its name.

    Args:
        name: One of `list_models()`.
        n: Dimension of the algebra that the layers learn; without n and algebra they are real.
        algebra: The fixed algebra of the layers, or its name.
        num_classes: Number of classes, by default the paper's (10; 14 for sednet); 0 for features.
        in_channels: Channels of the input, by default the paper's (3; 8 for sednet).
        pretrained: What the network was trained on, such as "cifar10": the package has a few small
            trained networks, see `phnn.models.list_pretrained`. With another num_classes, the last
            layer is new. By default the values are starting values.
        options: The other arguments of `Network` (`width_multiplier`, `init`, `terms`, `rank`)
            and of `ResNet`, `VGG`, `CifarNet`, `SEDnet`, `ViT`, `MultiViewNet` or `FusionNet`.

    Returns:
        The network. Its `config` holds the arguments that build it again.

    Example:
        >>> count = lambda model: sum(p.numel() for p in model.parameters())
        >>> count(create_model("resnet20")), count(create_model("resnet20", n=4))
        (272474, 71162)
    """
    check_choices("model", [name], MODELS)
    known = [p.name for p in inspect.signature(MODELS[name]).parameters.values()]
    if num_classes is not None:
        options["num_classes"] = num_classes
    if in_channels is not None:
        options["in_channels"] = in_channels
    for option in options.keys() - set(known):
        hint = f"{suggest(option, known)}known are {', '.join(known)}"
        raise TypeError(f"{name} has no option {option!r}; {hint}")
    if pretrained is None:
        return MODELS[name](n=n, algebra=algebra, **options)
    return _restore(find_pretrained(name, pretrained, n=n, algebra=algebra), options)


def _restore(found: Pretrained, options: dict[str, Any]) -> Network:
    """Build a trained network, with as many classes as the options say."""
    config = dict(found.config)
    num_classes = options.pop("num_classes", config["num_classes"])
    for option, value in options.items():
        if value != config[option]:
            raise ValueError(
                f"{option}={value!r} differs from that of the trained network {found.file.stem}, "
                f"{config[option]!r}; leave out {option}= or pretrained="
            )
    model = MODELS[config.pop("name")](**config)
    found.fill(model)
    if num_classes != config["num_classes"]:
        model.reset_classifier(num_classes)
    return model
