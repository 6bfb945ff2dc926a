"""The scores of one split of the data, gathered batch by batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torchmetrics import MeanMetric, Metric, MetricCollection


class Scores(nn.Module):
    """The mean loss and other scores since they were last taken, over all processes.

    Args:
        split: "train", "val" or "test"; the names of the scores begin with it.
        metrics: What to measure besides the loss, from (answers, targets).
    """

    def __init__(self, split: str, metrics: Mapping[str, Metric]) -> None:
        super().__init__()
        self.split = split
        self.loss = MeanMetric()
        self.metrics = MetricCollection(
            {name: metric.clone() for name, metric in metrics.items()}, compute_groups=False
        )

    def add(self, loss: Tensor, answers: Tensor, targets: Tensor) -> None:
        """Measure a batch."""
        self.loss.update(loss.detach(), len(targets))
        self.metrics.update(answers.detach(), targets)

    @property
    def empty(self) -> bool:
        """Whether nothing has been measured since the scores were last taken."""
        return not self.loss.update_called

    def take(self) -> dict[str, float]:
        """Return the scores and start again."""
        values = {"loss": self.loss.compute(), **self.metrics.compute()}
        self.loss.reset()
        self.metrics.reset()
        return {f"{self.split}_{name}": float(value) for name, value in values.items()}

    def _all(self) -> list[Metric]:
        return [self.loss, *self.metrics.values()]

    def gather(self, distributed: bool) -> list[dict[str, Any]]:
        """Return what all processes have measured together, for a checkpoint.

        Args:
            distributed: Whether there are several processes. All of them have to call this.
        """
        states = []
        for metric in self._all():
            with metric.sync_context(should_sync=distributed):
                states.append({name: getattr(metric, name) for name in metric.metric_state})
        return states

    def restore(self, states: list[dict[str, Any]]) -> None:
        """Continue from what `gather` returned; one process does so for all."""
        for metric, state in zip(self._all(), states, strict=True):
            for name, value in state.items():
                setattr(metric, name, value.to(metric.device))
            metric._update_count = 1  # compute would warn that nothing had been measured
