"""PH layers in the form that is fastest where the model runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from torch import nn

from phnn._screen import Progress
from phnn.acceleration.candidates import decompose_algebras, find_candidates
from phnn.acceleration.description import describe
from phnn.acceleration.measuring import Clock, Measured, find_choices, measure, race
from phnn.acceleration.observation import observe
from phnn.acceleration.plans import Origin, check_plan, read_plan
from phnn.acceleration.report import Acceleration
from phnn.acceleration.verifying import verify
from phnn.acceleration.workshop import Choice, Workshop
from phnn.conversion.sites import check_model
from phnn.runtimes import Runtime, find_runtime

# processor time for each decomposition that a plan asks for, which may come from a slow machine
PLAN_SECONDS = 30.0
Model = TypeVar("Model", bound=nn.Module)


def accelerate(
    model: Model,
    example_input: Any,
    *,
    plan: Mapping[str, Any] | str | Path | None = None,
    runtime: str | Runtime = "torch",
    rank: int | None = None,
    tol: float | None = None,
    fuse: bool = True,
    winograd: bool = True,
    rounds: int = 7,
    seconds: float = 10.0,
    progress: Progress | None = None,
) -> Model:
    """Return the fastest model that computes the same, for inference.

    Each PH layer is replaced by a module of torch alone, in one of its forms: a plain layer with
    the assembled weight; a plain layer with the filters for every component, and the algebra after
    it or before it; or the R products of the CP decomposition of the algebra, R/n² of the
    multiplications, between two mixings of the components. 3×3 convolutions may also be Winograd
    convolutions, with a quarter of the multiplications. Which is the fastest depends on sizes and
    on the machine, so all are timed, on the inputs that the layer receives from the example. The
    result needs nothing of this library: it pickles, moves, compiles, and is exported by
    `torch.export` and to ONNX. Where it is unpickled, its `phnn_report` is a dict.

    Args:
        model: A model in evaluation mode with PH layers; it is not changed.
        example_input: What the model will be used on: a tensor, a tuple of arguments or a dict of
            named ones. Its sizes, device and type are those that are timed. Its memory format is
            kept when its channels are last; otherwise both formats are tried, for all
            convolutions and for each alone.
        plan: Forms to repeat, `model.phnn_report.plan` or a JSON file of it, or forms by the names
            of layers; nothing is timed, so the same plan gives the same model, however long it
            takes. A plan of another runtime is refused.
        runtime: Where layers and models are timed: "torch" as it is; "compile" after
            `torch.compile`; "onnxruntime" or "openvino" as ONNX graphs, on the CPU with as many
            threads as torch has. All but "torch" take seconds for each form. What is returned is
            a module of torch in any case; `phnn.export` writes its graph.
        rank: CP rank for all layers; the least that is found for each by default.
        tol: Largest difference of the outputs that is accepted, relative to the largest output;
            by default half of the digits of their type. The outputs of a detector are choices
            that rounding may change; if they change, its layers are compared instead.
        fuse: Also multiply batch norms into plain layers before them. Where `torch.fx` cannot trace
            the model, its run on the example shows which.
        winograd: Also try Winograd convolutions, in torch alone: in graphs they never paid. They
            take more memory, up to four times the weights (twice where the folded layers have more
            than 128 MiB), and round about twice as coarsely in float32, more in lower precision:
            leave them out for a model that will run in autocast, and for export with sizes of
            images left open.
        rounds: How often each form is timed at least, short ones more often; the least time counts.
        seconds: Processor time to search for the CP decomposition of each of the different
            algebras; those that take longer, as for large n, have none.
        progress: Called with what is done, how far, and of how much, as that of `convert`.

    Returns:
        A new model of the same class (a PH layer alone becomes a plain module). Its `phnn_report`
        says how each layer is computed and prints as a table; `phnn.acceleration.Acceleration.of`
        returns it with its type.

    Raises:
        RuntimeError: The outputs differ by more than tol.

    Example:
        >>> import phnn
        >>> layer = phnn.PHConv2d(64, 64, 3, algebra=phnn.algebra.quaternion)
        >>> model, x = nn.Sequential(layer, nn.ReLU()).eval(), torch.randn(1, 64, 16, 16)
        >>> fast = accelerate(model, x)
        >>> torch.allclose(fast(x), model(x), atol=1e-4)
        True
        >>> again = accelerate(model, x, plan=fast.phnn_report.plan)
    """
    check_model(model, "accelerate")
    clock = Clock(find_runtime(runtime), rounds, progress)
    fast = find_fastest(model, example_input, clock, plan, rank, tol, fuse, winograd, seconds).model
    return cast(Model, fast)


@dataclass(frozen=True)
class Accelerated:
    """An accelerated model, and what it was made of.

    Attributes:
        model: The model.
        report: What was done.
        choice: The forms of its layers.
        workshop: Builds them.
    """

    model: nn.Module
    report: Acceleration
    choice: Choice
    workshop: Workshop

    def shrink(self, storage: str) -> nn.Module:
        """Return the model as one that computes its weights from filters in a storage type."""
        return self.workshop.assemble_small(self.choice, storage)


@torch.inference_mode(False)
def find_fastest(
    model: nn.Module,
    example_input: Any,
    clock: Clock,
    plan: Mapping[str, Any] | str | Path | None = None,
    rank: int | None = None,
    tol: float | None = None,
    fuse: bool = True,
    winograd: bool = True,
    seconds: float = 10.0,
) -> Accelerated:
    """Return the fastest model with its workshop; the arguments are those of `accelerate`."""
    _check(model, clock.rounds)
    seen = observe(model, example_input, fuse)
    origin = Origin.here(clock.runtime, seen.layers[0].layer.F.device)
    notes = list(seen.notes)
    measured: list[Measured] = []
    times: dict[str, float] = {}
    if plan is None:
        ranks = dict.fromkeys((layer.name for layer in seen.layers), rank)
        clock.tell("decomposing algebras", 0, 1)
        layers = decompose_algebras(seen.layers, ranks, seconds)
        workshop = Workshop(seen, layers)
        runtime = clock.runtime
        candidates = find_candidates(
            seen, layers, winograd and runtime.has_winograd, runtime.has_formats
        )
        measured = measure(workshop, candidates, clock)
        choice, times = race(workshop, find_choices(measured), clock)
    else:
        forms, note = read_plan(plan, [layer.name for layer in seen.layers], origin)
        choice, notes = Choice.of(forms), [*notes, *filter(None, [note])]
        ranks = {name: form.rank for name, form in choice.forms if form.rank is not None}
        layers = decompose_algebras(seen.layers, ranks, max(seconds, PLAN_SECONDS))
        check_plan(layers, dict(choice.forms))
        workshop = Workshop(seen, layers)
    fast = workshop.assemble(choice)
    entries = describe(workshop, choice, measured)
    fused = workshop.count_fused(choice)
    difference, note = verify(workshop, choice, fast, tol, entries, clock.runtime)
    notes += [note] * bool(note)
    report = Acceleration(entries, times, difference, fused, origin, "; ".join(notes))
    fast.phnn_report = report  # type: ignore[assignment]
    return Accelerated(fast, report, choice, workshop)


def _check(model: nn.Module, rounds: int) -> None:
    if rounds < 1:
        raise ValueError(f"rounds must be at least 1, got rounds={rounds}")
    for module in model.modules():
        if "_orig_mod" in module._modules or module._compiled_call_impl is not None:
            raise ValueError(
                "the model is compiled, so the inputs of its layers cannot be observed; accelerate "
                "it first, then compile the result"
            )
    training = [name for name, module in model.named_modules() if module.training]
    if training:
        where = "the model is" if model.training else f"its module {training[0]!r} is"
        raise ValueError(
            f"accelerate is for inference, but {where} in training mode; call model.eval() first"
        )
