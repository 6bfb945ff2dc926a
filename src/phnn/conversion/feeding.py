"""Which layers feed a batch norm and nothing else: read from a trace, or seen in a run."""

from __future__ import annotations

import copy
import inspect
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, get_args

import torch
from torch import Tensor, fx, nn
from torch.overrides import TorchFunctionMode

from phnn.forms.norms import Norm

__all__ = ["Feeds", "UntraceableError", "find_feeds", "trace_feeds", "watch_feeds"]

# pairs (layer, reader): both run once, and the reader alone reads the output of the layer
Feeds = frozenset[tuple[str, str]]
Run = Callable[[nn.Module], Any]

# what tells nothing of the values of a tensor
_HARMLESS = {"shape", "size", "dim", "ndim", "numel", "dtype", "device", "stride", "is_contiguous"}


class UntraceableError(ValueError):
    """A model that `torch.fx` cannot trace."""


def find_feeds(model: nn.Module, run: Run | None = None) -> Feeds:
    """Return which layers feed one module and nothing else; none for a model without batch norms.

    Args:
        model: A model in evaluation mode; it is not changed.
        run: Runs the model on an example, if it cannot be traced.

    Raises:
        ValueError: The model has batch norms, cannot be traced, and there is no example.
    """
    norms = [name for name, module in model.named_modules() if type(module) in get_args(Norm)]
    if not norms:
        return frozenset()
    try:
        return trace_feeds(model)
    except UntraceableError as error:
        if run is None:
            raise ValueError(
                f"{error}, so what feeds its {len(norms)} batch norms is unknown; give "
                "example_input=, on which it is run instead, or use fuse=False"
            ) from error
        return watch_feeds(model, run)


# --- traced ------------------------------------------------------------------------------------


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Look into containers only: a layer's own code may not be traceable."""
        return _is_leaf(m) or super().is_leaf_module(m, module_qualified_name)


def trace_feeds(model: nn.Module) -> Feeds:
    """Trace the calls of a model: with every argument given, and without optional ones.

    A model may do something else where an argument is left out.

    Raises:
        UntraceableError: It does something that depends on values.
    """
    try:
        others = list(inspect.signature(model.forward).parameters.values())[1:]
        absent = {other.name: None for other in others if other.default is None}
        found = _read_feeds(_Tracer().trace(_skeleton(model)))
        if absent:
            found &= _read_feeds(_Tracer().trace(_skeleton(model), concrete_args=absent))
        return found
    except Exception as error:
        reason = (str(error).splitlines() or [""])[0].partition(". ")[0]
        raise UntraceableError(f"torch.fx cannot trace this model ({reason})") from error


def _skeleton(model: nn.Module) -> nn.Module:
    """Return a copy that shares the tensors: what forward keeps in the model stays in the copy."""
    tensors: dict[int, object] = {}
    for module in model.modules():
        held = (*module._parameters.values(), *module._buffers.values(), *vars(module).values())
        tensors.update((id(value), value) for value in held if isinstance(value, Tensor))
    return copy.deepcopy(model, tensors)


def _read_feeds(graph: fx.Graph) -> Feeds:
    calls = Counter(node.target for node in graph.nodes if node.op == "call_module")
    # modules whose parameters the model uses itself
    read = {node.target.rpartition(".")[0] for node in graph.nodes if node.op == "get_attr"}
    found = set()
    for node in graph.nodes:
        source = node.args[0] if node.args else None
        if node.op != "call_module" or not isinstance(source, fx.Node):
            continue
        pair = (str(source.target), str(node.target))
        alone = source.op == "call_module" and len(source.users) == 1
        if alone and read.isdisjoint(pair) and all(calls[target] == 1 for target in pair):
            found.add(pair)
    return frozenset(found)


# --- watched -----------------------------------------------------------------------------------


def watch_feeds(model: nn.Module, run: Run) -> Feeds:
    """Run a model on an example, and see what reads the outputs of its layers.

    Another input may take another way through the model; what the example does not show is not
    known.
    """
    if any(isinstance(module, torch.jit.ScriptModule) for module in model.modules()):
        return frozenset()  # what scripted code reads is not seen
    skeleton = _skeleton(model)
    watch = _Watch(skeleton)
    with torch.no_grad(), watch:
        kept = run(skeleton)  # what is returned, or stored, is still alive now
        found = watch.find()
    del kept
    return found


class _Watch(TorchFunctionMode):
    """Notes who reads the outputs and the parameters of the innermost modules of a model."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.names = {module: name for name, module in model.named_modules() if _is_leaf(module)}
        self.owners = {
            id(tensor): name
            for module, name in self.names.items()
            for tensor in (*module.parameters(), *module.buffers())
        }
        self.running: list[str] = []
        self.calls: Counter[str] = Counter()
        self.read: set[str] = set()  # whose parameters somebody else uses
        self.outputs: dict[int, tuple[weakref.ref[Tensor], str]] = {}
        self.readers: dict[str, list[str]] = {}
        for module, name in self.names.items():
            module.register_forward_pre_hook(self._enter(name))
            module.register_forward_hook(self._leave(name))

    def _enter(self, name: str) -> Callable[..., None]:
        def enter(module: nn.Module, args: tuple[Any, ...]) -> None:
            self.calls[name] += 1
            self.running.append(name)

        return enter

    def _leave(self, name: str) -> Callable[..., None]:
        def leave(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            self.running.pop()
            if isinstance(output, Tensor):
                self.outputs[id(output)] = (weakref.ref(output), name)

        return leave

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if _name(func) not in _HARMLESS:
            reader = self.running[-1] if self.running else ""
            for tensor in _tensors_in((args, kwargs)):
                owner = self.owners.get(id(tensor), reader)
                if owner != reader:
                    self.read.add(owner)
                made, layer = self.outputs.get(id(tensor), (None, ""))
                if made is not None and made() is tensor:
                    self.readers.setdefault(layer, []).append(reader)
        return func(*args, **kwargs)

    def find(self) -> Feeds:
        """Return the pairs that were seen."""
        alive = {layer for made, layer in self.outputs.values() if made() is not None}
        found = set()
        for layer, readers in self.readers.items():
            pair = (layer, readers[0])
            alone = set(readers) == {readers[0]} != {""} and layer not in alive
            if alone and self.read.isdisjoint(pair) and all(self.calls[x] == 1 for x in pair):
                found.add(pair)
        return frozenset(found)


def _is_leaf(module: nn.Module) -> bool:
    return next(module.children(), None) is None


def _name(func: Callable[..., Any]) -> str:
    """Return the name of a function of torch, or of the attribute that it gets."""
    name = str(getattr(func, "__name__", ""))
    return str(getattr(func.__self__, "__name__", "")) if name == "__get__" else name  # type: ignore[attr-defined]


def _tensors_in(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors_in(item)
    elif isinstance(value, dict):
        yield from _tensors_in(list(value.values()))
