"""What a runtime is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

from torch import nn

from phnn.runtimes.timing import interleave

Key = TypeVar("Key", bound=Hashable)
Arguments = tuple[tuple[Any, ...], dict[str, Any]]  # of a call: by order, and by name


class Runtime(ABC):
    """Where modules run and are timed.

    Attributes:
        name: What `accelerate(runtime=…)` calls it.
    """

    name: ClassVar[str]

    @abstractmethod
    def prepare(self, module: nn.Module, calls: Sequence[Arguments]) -> Callable[[], object]:
        """Return a function that runs a module, in evaluation mode, on the arguments of each call.

        All that happens once, such as compiling, happens here. The function returns when the
        device is done.
        """

    def prepare_step(self, module: nn.Module, call: Arguments) -> Callable[[], object]:
        """Return a function that runs a module, in training mode, forward and backward."""
        raise ValueError(f"the runtime {self.name!r} does not train")

    def time(
        self,
        contenders: Mapping[Key, Callable[[], object]],
        rounds: int,
        warmup: int = 2,
        seconds: float = 0.0,
    ) -> dict[Key, float]:
        """Return the least seconds of each contender; see `interleave`."""
        return interleave(contenders, rounds, warmup, seconds)
