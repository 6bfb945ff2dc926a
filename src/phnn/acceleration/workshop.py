"""Copies of a model, with its PH layers in chosen forms."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from phnn.acceleration.observation import Observation, ObservedLayer, find_folded
from phnn.conversion.folding import weight_key
from phnn.forms import Folded, Form
from phnn.forms.computed import Stored, compute_weight, store_filters
from phnn.forms.norms import Norm, add_bias
from phnn.functional._formats import put_channels_last

COLLECT = 2**25  # bytes of dropped modules that are worth the time of a collection


@dataclass(frozen=True)
class Choice:
    """A form for each layer of a model, by their names."""

    forms: tuple[tuple[str, Form], ...]

    @classmethod
    def of(cls, forms: Mapping[str, Form]) -> Choice:
        """Make a choice of a mapping."""
        return cls(tuple(forms.items()))

    def folded(self) -> Choice:
        """Return the same with folded layers alone."""
        return Choice(
            tuple((name, Folded(channels_last=form.channels_last)) for name, form in self.forms)
        )

    def __getitem__(self, name: str) -> Form:
        return dict(self.forms)[name]


class Workshop:
    """Builds forms and puts them into copies of a model.

    A form is built once, and kept until it is dropped. All copies share what they have in common.

    Args:
        seen: The model.
        layers: Its layers, with what their forms are built from.
    """

    def __init__(self, seen: Observation, layers: Iterable[ObservedLayer]) -> None:
        self.seen, self.layers = seen, {layer.name: layer for layer in layers}
        self._built: dict[tuple[str, Form], nn.Module] = {}
        # what replaces recurrent layers and embeddings of the copy
        self._plain = {id(layer): layer.to_dense() for layer in find_folded(seen.base).values()}

    def build(self, name: str, form: Form) -> nn.Module:
        """Return a layer in a form, with its batch norm if the form takes it."""
        if (name, form) not in self._built:
            layer = self.layers[name]
            module = form.build(layer.source)
            if layer.serves_attention:
                module.__class__ = NonDynamicallyQuantizableLinear
            self._tie(module, layer, form)
            self._built[name, form] = module
        return self._built[name, form]

    def norm_after(self, name: str, form: Form) -> Norm | None:
        """Return the batch norm that stays behind a layer in this form, with its bias."""
        source = self.layers[name].source
        if source.norm is None or form.takes_norm(source):
            return None
        return add_bias(source.norm, source.layer.bias)

    def keep(self, choices: Iterable[Choice]) -> None:
        """Drop all modules that are in none of the choices."""
        kept = {pair for choice in choices for pair in choice.forms}
        self._drop(pair for pair in self._built if pair not in kept)

    def drop(self, name: str, besides: Container[Form]) -> None:
        """Drop the modules of a layer besides those in some forms."""
        built = (pair for pair in self._built if pair[0] == name)
        self._drop(pair for pair in built if pair[1] not in besides)

    def _drop(self, pairs: Iterable[tuple[str, Form]]) -> None:
        dropped = [self._built.pop(pair) for pair in list(pairs)]
        bytes_ = sum(p.nbytes for module in dropped for p in module.parameters())
        dropped.clear()
        if bytes_ > COLLECT:
            gc.collect()  # graph modules refer to themselves, and would stay for a while

    def assemble(self, choice: Choice) -> nn.Module:
        """Return a copy of the model with its layers as chosen."""
        return self._assemble(choice, self.build, self._plain)

    def assemble_small(self, choice: Choice, storage: str) -> nn.Module:
        """Return the same as one that computes its large weights from the filters, for a file.

        Args:
            choice: The forms.
            storage: The type of the filters.
        """

        def build(name: str, form: Form) -> nn.Module:
            source = self.layers[name].source
            module, recipe = form.build(source), form.recipe(source)
            if recipe is not None:
                path, compute = recipe
                compute_weight(module, path, Stored(source.layer.F, storage, compute))
            return module

        return store_filters(self._assemble(choice, build, {}), storage)

    def _assemble(
        self,
        choice: Choice,
        build: Callable[[str, Form], nn.Module],
        plain: Mapping[int, nn.Module],
    ) -> nn.Module:
        base = self.seen.base
        new: dict[int, object] = dict(plain)
        tensors: list[Tensor] = []  # which all copies share
        for module in base.modules():
            held = (*module._parameters.values(), *module._buffers.values())
            tensors += [value for value in held if isinstance(value, Tensor)]
        new.update((id(tensor), tensor) for tensor in tensors)
        modules: set[nn.Module] = set()
        for name, form in choice.forms:
            layer = self.layers[name]
            built = build(name, form)
            modules.update(built.modules())
            new[id(layer.placeholder)] = built
            if layer.source.norm is not None:
                new[id(layer.source.norm)] = self.norm_after(name, form) or nn.Identity()
        fast = copy.deepcopy(base, new)
        formats = [choice[layer.name].channels_last for layer in self._formatted()]
        if formats and all(formats):  # then the convolutions that are no PH layers, too
            _put_last(fast, besides=modules)
        return fast

    def count_fused(self, choice: Choice) -> int:
        """Return the number of batch norms that are part of layers before them."""
        layers = [(self.layers[name].source, form) for name, form in choice.forms]
        fused = [form.takes_norm(source) for source, form in layers if source.norm is not None]
        return self.seen.fused + sum(fused)

    def _formatted(self) -> list[ObservedLayer]:
        return [layer for layer in self.layers.values() if layer.has_format]

    def _tie(self, module: nn.Module, layer: ObservedLayer, form: Form) -> None:
        """Share the parameters that are equal in other memory formats, and in tied layers."""
        key = weight_key(layer.layer)
        for (name, other_form), other in self._built.items():
            if type(other_form) is not type(form) or weight_key(self.layers[name].layer) != key:
                continue
            theirs = dict(other.named_parameters(remove_duplicate=False))
            for path, parameter in list(module.named_parameters()):
                if path in theirs and _is_same(parameter, theirs[path]):
                    parent, _, child = path.rpartition(".")
                    setattr(module.get_submodule(parent), child, theirs[path])


def _is_same(one: Tensor, other: Tensor) -> bool:
    is_alike = one.shape == other.shape and one.stride() == other.stride()
    return is_alike and torch.equal(one, other)


def _put_last(model: nn.Module, besides: Container[nn.Module]) -> None:
    """Give the convolutions of a copy weights with the channels last in memory.

    Args:
        model: The copy, which shares its parameters with others.
        besides: Modules of it that stay as they are.
    """
    weights: dict[int, nn.Parameter] = {}
    for module in model.modules():
        if not isinstance(module, nn.modules.conv._ConvNd) or module in besides:
            continue
        weight = module._parameters.get("weight")
        if weight is not None:
            last = nn.Parameter(put_channels_last(weight.detach()), weight.requires_grad)
            module.weight = weights.setdefault(id(weight), last)
