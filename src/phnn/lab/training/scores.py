"""Scores of a part of the data, gathered batch by batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torchmetrics import MeanMetric, Metric, MetricCollection


class Scores(nn.Module):
    """The mean loss and other scores since they were last taken, over all processes.

    Args:
        part: "train", "val" or "test"; names begin with it.
        metrics: What to measure of (outputs, targets), besides the loss.
    """

    def __init__(self, part: str, metrics: Mapping[str, Metric]) -> None:
        super().__init__()
        self.part = part
        self.loss = MeanMetric()
        self.metrics = MetricCollection(
            {name: metric.clone() for name, metric in metrics.items()}, compute_groups=False
        )

    def add(self, loss: Tensor, outputs: Tensor, targets: Tensor) -> None:
        """Measures a batch."""
        self.loss.update(loss.detach(), len(targets))
        self.metrics.update(outputs.detach(), targets)

    @property
    def empty(self) -> bool:
        """Whether nothing has been measured since the scores were last taken."""
        return not self.loss.update_called

    def take(self) -> dict[str, float]:
        """Returns the scores and starts anew."""
        values = {"loss": self.loss.compute(), **self.metrics.compute()}
        self.loss.reset()
        self.metrics.reset()
        return {f"{self.part}_{name}": float(value) for name, value in values.items()}

    def _all(self) -> list[Metric]:
        return [self.loss, *self.metrics.values()]

    def gather(self, distributed: bool) -> list[dict[str, Any]]:
        """Returns what has been measured by all processes together, for a checkpoint.

        Args:
            distributed: Whether there are several; then all have to call this.
        """
        states = []
        for metric in self._all():
            with metric.sync_context(should_sync=distributed):
                states.append({name: getattr(metric, name) for name in metric.metric_state})
        return states

    def restore(self, states: list[dict[str, Any]]) -> None:
        """Takes up what `gather` returned; one process does so for all."""
        for metric, state in zip(self._all(), states, strict=True):
            for name, value in state.items():
                setattr(metric, name, value.to(metric.device))
            metric._update_count = 1  # compute would warn that nothing had been measured
