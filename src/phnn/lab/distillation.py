"""Fine-tuning without labels: a small network learns to compute what the original computes."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from phnn.io import replacing
from phnn.lab import sealing
from phnn.lab.recipe import FINE_TUNING, OptimizerOptions, ScheduleOptions
from phnn.lab.tasks.imitation import relative_error, stop_dropout
from phnn.lab.tasks.optimization import NonFiniteLossError, make_optimizer, make_schedule

__all__ = ["Epoch", "distill"]

logger = logging.getLogger(__name__)

SECONDS = 60.0  # between two checkpoints
Forward = Callable[[nn.Module, Any], Any]
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Epoch:
    """One pass over the data.

    Attributes:
        number: Of the epoch, from 1.
        loss: Mean loss of its steps.
        seconds: How long it took.
        score: What `evaluate` returned after it; None without such a function.
    """

    number: int
    loss: float
    seconds: float
    score: float | None = None


def distill(
    student: nn.Module,
    teacher: nn.Module,
    loader: Any,
    *,
    epochs: int = FINE_TUNING["trainer"]["max_epochs"],
    lr: float = FINE_TUNING["optimizer"]["lr"],
    forward: Forward | None = None,
    loss: Callable[[Any, Any], Tensor] = relative_error,
    evaluate: Callable[[nn.Module], float] | None = None,
    checkpoint: str | Path | None = None,
    progress: Progress | None = None,
) -> tuple[Epoch, ...]:
    """Train a converted network to compute what the original computes; labels are not needed.

    AdamW changes each tensor by a share `lr` of its own size in a step: filters, algebras and
    biases of a converted network differ in size by orders of magnitude. The rate rises for a
    twentieth of the steps and then falls to zero along a cosine. Batch norms learn their statistics
    again, and dropout is off.

    Args:
        student: The network that learns, in place. Frozen parameters stay as they are.
        teacher: The original, or any network with outputs of the same shapes.
        loader: Batches without labels, of known number, the same data each time it is iterated:
            each is a tensor, a tuple of arguments or a dict of named ones. Augmented images are
            better than plain ones, in a new order each time.
        epochs: Passes over the data.
        lr: The highest learning rate, as a share of the size of each tensor.
        forward: How a batch is fed: a function of model and batch, such as
            `lambda model, batch: model(batch[0])` for a loader with labels.
        loss: A function of the outputs of student and teacher; by default their squared difference,
            relative to the variation of the teacher's.
        evaluate: A function of the student that returns its score, called after each epoch.
        checkpoint: A file that keeps the state each minute; the same call goes on from there.
        progress: Called with what is done, how far, and of how much.

    Returns:
        What happened in each epoch.

    Raises:
        NonFiniteLossError: The loss became infinite or not a number.

    Example:
        >>> import phnn
        >>> _ = torch.manual_seed(0)
        >>> model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
        >>> small = phnn.convert(model, budget=0.5)
        >>> batches = torch.randn(1024, 16).split(32)
        >>> first, *_, last = distill(small, model, batches, epochs=5)
        >>> last.loss < first.loss
        True
    """
    steps = _check(student, teacher, loader, epochs, lr)
    # the rates follow the sizes at the start, also when a run goes on later
    options = OptimizerOptions(**{**FINE_TUNING["optimizer"], "lr": lr})
    optimizer = make_optimizer(student, options)
    schedule = make_schedule(optimizer, ScheduleOptions(**FINE_TUNING["schedule"]), steps, epochs)
    plan = {"epochs": epochs, "lr": lr, "steps": steps}
    state = _State(student, optimizer, schedule, plan, checkpoint)
    state.resume()
    feed = forward or _feed
    device = next(student.parameters()).device
    with _modes(student, teacher):
        while len(state.epochs) < epochs:
            number = len(state.epochs) + 1
            student.train()
            stop_dropout(student)
            began = time.monotonic() - state.seconds
            for step, batch in enumerate(loader):
                if step < state.step:
                    continue
                batch = _move(batch, device)
                with torch.no_grad():
                    targets = feed(teacher, batch)
                error = loss(feed(student, batch), targets)
                value = float(error.detach())
                if not math.isfinite(value):
                    rate = lr * schedule.get_last_lr()[0] / optimizer.param_groups[0]["initial_lr"]
                    raise NonFiniteLossError(
                        f"the loss became {value} in epoch {number}, step {step + 1}, at "
                        f"lr={rate:.3g}; give a lower lr= than {lr:g}, and check that the batches "
                        "are finite"
                    )
                optimizer.zero_grad()
                error.backward()
                optimizer.step()
                schedule.step()
                state.count(value, time.monotonic() - began)
                if progress is not None:
                    progress("distilling", (number - 1) * steps + step + 1, epochs * steps)
            score = None
            if evaluate is not None:
                student.eval()
                with torch.no_grad():
                    score = float(evaluate(student))
            state.end(score, time.monotonic() - began)
    return tuple(state.epochs)


class _State:
    """What a run that was stopped needs to go on."""

    def __init__(
        self,
        student: nn.Module,
        optimizer: Optimizer,
        schedule: LambdaLR,
        plan: Mapping[str, Any],
        checkpoint: str | Path | None,
    ) -> None:
        self.student, self.optimizer, self.schedule = student, optimizer, schedule
        self.plan = dict(plan)
        self.path = None if checkpoint is None else Path(checkpoint)
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        self.epochs: list[Epoch] = []
        self.step, self.total, self.seconds = 0, 0.0, 0.0
        self._saved = time.monotonic()

    @property
    def _previous(self) -> Path:
        """Where the checkpoint before the last is kept."""
        assert self.path is not None
        return self.path.with_name(f"{self.path.name}.previous")

    def count(self, loss: float, seconds: float) -> None:
        """Note a step, and keep the state now and then."""
        self.step, self.total, self.seconds = self.step + 1, self.total + loss, seconds
        if time.monotonic() - self._saved >= SECONDS:
            self.save()

    def end(self, score: float | None, seconds: float) -> None:
        """Note an epoch, and keep the state."""
        mean = self.total / max(self.step, 1)
        self.epochs.append(Epoch(len(self.epochs) + 1, mean, seconds, score))
        self.step, self.total, self.seconds = 0, 0.0, 0.0
        self.save()

    def save(self) -> None:
        """Write the checkpoint; the old one stays until the new one is complete."""
        self._saved = time.monotonic()
        if self.path is None:
            return
        content = {
            "plan": self.plan,
            "student": self.student.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "epochs": [asdict(epoch) for epoch in self.epochs],
            "position": [self.step, self.total, self.seconds],
        }
        with replacing(self.path) as temporary:
            torch.save(content, temporary)
            sealing.seal(temporary)
            sealing.keep(self.path, self._previous)

    def resume(self) -> None:
        """Go on from the checkpoint, if there is one."""
        remedy = "give another checkpoint=, or delete it"
        if self.path is None or not sealing.choose(self.path, self._previous, remedy):
            return
        try:
            content = torch.load(self.path, map_location="cpu", weights_only=True)
            plan, kept = dict(content["plan"]), dict(content["student"])
            shapes = {name: tuple(value.shape) for name, value in kept.items()}
        except Exception as error:  # torch and zip files have errors of many types
            raise ValueError(
                f"{self.path} is no checkpoint of distill ({error}); {remedy}"
            ) from error
        ours = {name: tuple(value.shape) for name, value in self.student.state_dict().items()}
        same = ours == shapes
        changes = [f"{k}: {plan.get(k)} → {v}" for k, v in self.plan.items() if plan.get(k) != v]
        if not same:
            changes.append("another student")
        if changes:
            raise ValueError(
                f"{self.path} holds another run ({', '.join(changes)}); give another checkpoint=, "
                "or delete it"
            )
        try:
            self.epochs = [Epoch(**fields) for fields in content["epochs"]]
            self.step, self.total, self.seconds = content["position"]
            self.optimizer.load_state_dict(content["optimizer"])
            self.schedule.load_state_dict(content["schedule"])
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"{self.path} is no checkpoint of distill ({error!r}); {remedy}"
            ) from error
        self.student.load_state_dict(kept)
        if len(self.epochs) < self.plan["epochs"]:
            logger.info("continuing %s in epoch %d", self.path, len(self.epochs) + 1)


def _check(student: nn.Module, teacher: nn.Module, loader: Any, epochs: int, lr: float) -> int:
    """Return the steps of an epoch; raise an error for what cannot work."""
    if student is teacher:
        raise ValueError("the student is the teacher; distill a converted copy of it")
    if epochs < 1:
        raise ValueError(f"epochs must be at least 1, got epochs={epochs}")
    if not lr > 0:
        raise ValueError(f"lr must be a positive share of the size of each tensor, got lr={lr}")
    learned = [parameter for parameter in student.parameters() if parameter.requires_grad]
    if not learned:
        raise ValueError("the student has no parameters that require a gradient")
    theirs = {id(parameter) for parameter in teacher.parameters()}
    if any(id(parameter) in theirs for parameter in learned):
        raise ValueError("student and teacher share parameters; distill a copy of the student")
    devices = {str(model_device(model)) for model in (student, teacher)}
    if len(devices) > 1:
        raise ValueError(f"student and teacher are on {' and '.join(sorted(devices))}; move one")
    try:
        steps = len(loader)
    except TypeError:
        raise TypeError(
            f"the learning rate follows the number of batches, which a {type(loader).__name__} "
            "does not know; give a DataLoader or a list"
        ) from None
    if not steps:
        raise ValueError("the loader has no batches")
    return steps


def model_device(model: nn.Module) -> torch.device:
    """Return where the parameters of a model are; the CPU for a model without any."""
    return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))


def _feed(model: nn.Module, batch: Any) -> Any:
    if isinstance(batch, Mapping):
        return model(**batch)
    try:
        return model(*batch) if isinstance(batch, tuple | list) else model(batch)
    except TypeError as error:
        if not isinstance(batch, tuple | list) or len(batch) < 2:
            raise
        raise TypeError(
            f"the model does not take the {len(batch)} parts of a batch as arguments ({error}); if "
            "they are inputs and labels, give forward=lambda model, batch: model(batch[0])"
        ) from error


def _move(batch: Any, device: torch.device) -> Any:
    if isinstance(batch, Tensor):
        return batch.to(device)
    if isinstance(batch, Mapping):
        return {name: _move(value, device) for name, value in batch.items()}
    if isinstance(batch, Sequence) and not isinstance(batch, str):
        return [_move(value, device) for value in batch]
    return batch


@contextmanager
def _modes(*models: nn.Module) -> Iterator[None]:
    """Put all models in evaluation mode, and their modes back after."""
    modes = {module: module.training for model in models for module in model.modules()}
    for model in models:
        model.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training
