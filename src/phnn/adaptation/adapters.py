"""The adapters of a model: which there are, and which is in use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import nn

from phnn._tables import align
from phnn.conversion.specs import LayerSpec
from phnn.nn.delta import AdaptedLayer

__all__ = ["Adapter", "adapted_layers", "find_adapter", "list_adapters"]


@dataclass(frozen=True)
class Adapter:
    """What one adapter is made of; prints as a table.

    Attributes:
        layers: What is added to which layer, by the first name of the layer.
        filter_rank: Rank of the filters; None for any.
        share_algebra: Whether deltas of the same structure share one A.
        dropout: Dropout of what the deltas receive.
        parameters: How many numbers the adapter has.
        model_parameters: How many the model has without it.
        left_alone: Layers that were not adapted, with the reasons.
    """

    layers: Mapping[str, LayerSpec]
    filter_rank: int | None
    share_algebra: bool
    dropout: float
    parameters: int
    model_parameters: int
    left_alone: Mapping[str, str]

    def __str__(self) -> str:
        share = self.parameters / max(self.model_parameters, 1)
        rank = "" if self.filter_rank is None else f", filter_rank={self.filter_rank}"
        rows = [("layer", "delta"), *((name, str(spec)) for name, spec in self.layers.items())]
        rows += [(name, f"none: {reason}") for name, reason in self.left_alone.items()]
        return "\n".join(
            [
                f"{self.parameters:,} parameters learn, {share:.2%} of the model's "
                f"{self.model_parameters:,}{rank}",
                *align(rows),
            ]
        )


def adapted_layers(model: nn.Module) -> dict[str, AdaptedLayer]:
    """Return the adapted layers of a model by their first names."""
    return {name: m for name, m in model.named_modules() if isinstance(m, AdaptedLayer)}


def list_adapters(model: nn.Module) -> dict[str, Adapter]:
    """Return the adapters of a model by name; the names are those of `use_adapter`."""
    return dict(getattr(model, "phnn_adapters", {}))


def find_adapter(model: nn.Module, name: str) -> Adapter:
    """Return one adapter of a model, or say which there are."""
    found = list_adapters(model)
    if name in found:
        return found[name]
    if not found:
        raise ValueError(
            "the model has no adapter: it was merged or removed, or never added; phnn.adapt and "
            "phnn.load_adapter add one"
        )
    raise ValueError(f"the model has no adapter {name!r}, it has {', '.join(map(repr, found))}")
