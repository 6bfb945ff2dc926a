"""Models side by side on one input."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from phnn._screen import Progress
from phnn.acceleration.accelerating import accelerate
from phnn.analysis.counting import count_multiplications
from phnn.conversion.converting import convert
from phnn.conversion.folding import to_dense
from phnn.conversion.sites import find_ph_sites
from phnn.functional._formats import put_channels_last
from phnn.runtimes import GraphRuntime, Runtime, find_runtime
from phnn.runtimes.base import Arguments

ROUND_SECONDS = 0.5  # least time of a round on average, in which short calls are repeated


@dataclass(frozen=True)
class Result:
    """What one model takes.

    Attributes:
        runtime: Where it runs.
        name: Of the model.
        size: Bytes of the tensors in its file.
        parameters: Number of its parameters.
        multiplications: Of one inference.
        inference: Seconds of one inference.
        training: Seconds of forward and backward in training mode; None where it was not timed.
    """

    runtime: str
    name: str
    size: int
    parameters: int
    multiplications: int
    inference: float
    training: float | None


def make_contestants(
    model: nn.Module,
    example: Tensor,
    n: int,
    rounds: int = 7,
    runtime: str | Runtime = "torch",
    progress: Progress | None = None,
) -> dict[str, nn.Module]:
    """Return a model and what this library makes of it, in evaluation mode.

    Args:
        model: Any model. One with PH layers is the assembled one, and its plain twin the real one.
        example: An input.
        n: Dimension of the algebras.
        rounds: Of acceleration.
        runtime: Where they will run. They are accelerated for it; for `torch.compile` with
            channels last, because it converts other weights on every call.
        progress: Called with what is done, how far, and of how much.

    Returns:
        The models "real", "real, accelerated" (as far as that goes without an algebra),
        "assembled" (PH layers as they are trained), "folded" and "accelerated".
    """
    runtime = find_runtime(runtime)
    model.eval()
    if find_ph_sites(model):
        real, assembled = to_dense(model), model
    else:
        # a random start will do: the time does not depend on the numbers
        real, assembled = model, convert(model, n, start="random")
    x = put_channels_last(example) if runtime.prefers_channels_last else example

    def speed_up(ph: nn.Module) -> nn.Module:
        return accelerate(ph, x, runtime=runtime, rounds=rounds, progress=progress)

    return {
        "real": real,
        "real, accelerated": speed_up(convert(real, n=1, start="random")),
        "assembled": assembled,
        "folded": to_dense(assembled, fuse=True, example_input=example),
        "accelerated": speed_up(assembled),
    }


def compete(
    models: Mapping[str, nn.Module],
    example: Tensor,
    train: Iterable[str] = (),
    rounds: int = 7,
    runtime: str | Runtime = "torch",
    progress: Progress | None = None,
) -> list[Result]:
    """Time the models by turns, so that their ratios hold on a busy machine, too.

    Args:
        models: In evaluation mode, by name.
        example: The input of all.
        train: Names of those whose training is timed as well, where the runtime trains.
        rounds: Timed calls of each, more of short ones.
        runtime: Where they run.
        progress: Called with what is done, how far, and of how much.
    """
    train, runtime, seconds = tuple(train), find_runtime(runtime), rounds * ROUND_SECONDS
    if not runtime.trains:
        train = ()
    call: Arguments = ((example,), {})
    calls = {name: runtime.prepare(model, [call]) for name, model in models.items()}
    inference = runtime.time(
        calls, rounds, seconds=seconds, tick=_tell(progress, f"timing inference in {runtime.name}")
    )
    for name in train:
        models[name].train()
    steps = {name: runtime.prepare_step(models[name], call) for name in train}
    training = runtime.time(
        steps, rounds, seconds=seconds, tick=_tell(progress, f"timing training in {runtime.name}")
    )
    for name in train:
        models[name].eval().zero_grad()
    return [
        Result(
            runtime=runtime.name,
            name=name,
            size=_weigh(models, name, runtime),
            parameters=sum(parameter.numel() for parameter in model.parameters()),
            multiplications=count_multiplications(model, example),
            inference=inference[name],
            training=training.get(name),
        )
        for name, model in models.items()
    ]


def _tell(progress: Progress | None, what: str) -> Callable[[float], None] | None:
    """Return a function of the share of a step that is done, in percent for people."""
    if progress is None:
        return None
    return lambda share: progress(f"{what} (%)", round(100 * share), 100)


def _weigh(models: Mapping[str, nn.Module], name: str, runtime: Runtime) -> int:
    """Return the bytes of the tensors in the file that a model is loaded from.

    An accelerated program holds the filters of the PH layers; what runs is computed at load.
    """
    if name == "accelerated" and isinstance(runtime, GraphRuntime) and "assembled" in models:
        name = "assembled"
    tensors = (*models[name].parameters(), *models[name].buffers())
    return sum(tensor.nbytes for tensor in tensors)
