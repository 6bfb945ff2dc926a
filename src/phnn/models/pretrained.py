"""Trained networks that come with the package.

The files are those of `phnn.save`, so that `phnn.load` reads them, too. Here they are read with
safetensors alone: the room that writes and checks files lies above this one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import safe_open
from torch import nn

from phnn._names import suggest
from phnn.algebra import Algebra
from phnn.algebra import get as get_algebra
from phnn.conversion.specs import LayerSpec, install_layers

FOLDER = Path(__file__).parent / "weights"


@dataclass(frozen=True)
class Pretrained:
    """A trained network: a file, and what it says about itself.

    Attributes:
        file: Named NETWORK-PRETRAINED-LAYERS, such as `cifarnet-cifar10-n4`.
        config: The arguments of `create_model` that build the network.
        layers: The layers that conversion has put in the place of those, as the file has them.
        metadata: Classes, means and deviations of the inputs, score.
    """

    file: Path
    config: Mapping[str, Any]
    layers: Mapping[str, Any]
    metadata: Mapping[str, Any]

    @classmethod
    def read(cls, file: Path) -> Pretrained:
        """Read what a file says, without its tensors."""
        with safe_open(file, "pt") as opened:
            header = json.loads(opened.metadata()["phnn"])
        return cls(file, header["config"], header["layers"], header["metadata"])

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of `create_model` that return this network."""
        name, pretrained = self.file.stem.split("-")[:2]
        structure = {key: self.config[key] for key in ("n", "algebra") if self.config[key]}
        return {"name": name, "pretrained": pretrained, **structure}

    def fill(self, model: nn.Module) -> None:
        """Put the trained values into a network that `config` has built."""
        if self.layers:
            layers = {name: spec and LayerSpec(**spec) for name, spec in self.layers.items()}
            install_layers(model, layers)
        with safe_open(self.file, "pt") as opened:
            # filters are stored in float16; the copy makes them float32 again
            model.load_state_dict({name: opened.get_tensor(name) for name in opened.keys()})  # noqa: SIM118
        model.phnn_metadata = dict(self.metadata)  # type: ignore[assignment]


def list_pretrained() -> list[dict[str, Any]]:
    """Return the arguments of `create_model` for each trained network of the package.

    Example:
        >>> {"name": "cifarnet", "pretrained": "cifar10", "n": 4} in list_pretrained()
        True
    """
    return [Pretrained.read(file).arguments for file in _list_files()]


def find_pretrained(
    name: str, pretrained: str, *, n: int | None, algebra: Algebra | str | None
) -> Pretrained:
    """Return the trained network with these layers; raise a ValueError that lists all there are.

    Args:
        name: The network.
        pretrained: What it was trained on.
        n: Dimension of the learned algebra.
        algebra: The fixed algebra, or its name.
    """
    if isinstance(algebra, str):
        algebra = get_algebra(algebra)
    layers = algebra.name if algebra is not None else f"n{n}" if n is not None else "real"
    wanted = f"{name}-{pretrained}-{layers}"
    known = [file.stem for file in _list_files()]
    if wanted not in known:
        every = ", ".join(known) or "none"
        raise ValueError(
            f"no trained network {wanted}; {suggest(wanted, known)}this version has {every}. Leave "
            "pretrained= out for starting values"
        )
    return Pretrained.read(FOLDER / f"{wanted}.safetensors")


def _list_files() -> list[Path]:
    return sorted(FOLDER.glob("*.safetensors"))
