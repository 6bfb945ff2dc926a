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
        has_formats: Whether it minds how the tensors of torch lie in memory.
        has_winograd: Whether Winograd forms are worth a try.
        prefers_channels_last: Whether it converts all weights to channels last on every call.
        trains: Whether it runs backward, too.
    """

    name: ClassVar[str]
    has_formats: ClassVar[bool] = True
    has_winograd: ClassVar[bool] = True
    prefers_channels_last: ClassVar[bool] = False
    trains: ClassVar[bool] = True

    @property
    @abstractmethod
    def version(self) -> str:
        """Version of the package that runs modules."""

    def check(self) -> None:  # noqa: B027, most are always there
        """Raise an ImportError where the runtime is not installed, or too old."""

    @abstractmethod
    def prepare(self, module: nn.Module, calls: Sequence[Arguments]) -> Callable[[], object]:
        """Return a function that runs a module, in evaluation mode, on the arguments of each call.

        The function returns the outputs of all calls, as a list, when the device is done. All that
        happens once, such as compiling, happens here.
        """

    def prepare_all(
        self, modules: Mapping[Key, nn.Module], calls: Sequence[Arguments]
    ) -> dict[Key, Callable[[], object]]:
        """Return a function for each of several modules, without those that cannot run here.

        Args:
            modules: Modules with one tensor as input and one as output; the first is of the kind
                that always runs.
            calls: The arguments of all.

        Raises:
            ExportError: The first cannot run.
        """
        return {key: self.prepare(module, calls) for key, module in modules.items()}

    def prepare_step(self, module: nn.Module, call: Arguments) -> Callable[[], object]:
        """Return a function that runs a module, in training mode, forward and backward."""
        raise ValueError(f"the runtime {self.name!r} does not train")

    def time(
        self,
        contenders: Mapping[Key, Callable[[], object]],
        rounds: int,
        warmup: int = 2,
        seconds: float = 0.0,
        tick: Callable[[float], None] | None = None,
    ) -> dict[Key, float]:
        """Return the least seconds of each contender; see `interleave`."""
        return interleave(contenders, rounds, warmup, seconds, tick)
