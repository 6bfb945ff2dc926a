"""What is optimized: a network with its loss and its scores."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import lightning
import torch
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor
from torchmetrics import Metric

from phnn.conversion.specs import find_changes
from phnn.lab.recipe import Recipe
from phnn.lab.seeds import derive_seed
from phnn.lab.training.optimization import make_optimizer, make_schedule
from phnn.lab.training.scores import Scores
from phnn.models import Network, create_model

PREFIX = "model."  # of the network's weights in a checkpoint


class NonFiniteLossError(RuntimeError):
    """The loss became infinite or not a number."""


class Learner(lightning.LightningModule, ABC):
    """Trains a network by a recipe; a task says what the loss and the scores are.

    The random numbers of a step, such as dropout's, are a function of (seed, step, process), so
    that a run that was stopped goes on as if it had not been. The scores of an unfinished epoch
    travel in checkpoints for the same reason.

    Args:
        model: The network.
        recipe: Optimizer, schedule, seed and trainer options are read from it.
        metadata: What a user of the network has to know, such as the names of the classes; it
            travels in checkpoints.
        metrics: What to measure of (answers, targets), besides the loss.
    """

    #: the score of the validation part that tells which epoch is the best
    score: str
    #: whether it is better lower, as a loss is
    lower_is_better = False

    def __init__(
        self,
        model: Network,
        recipe: Recipe,
        metadata: Mapping[str, Any],
        metrics: Mapping[str, Metric],
    ) -> None:
        super().__init__()
        if recipe.trainer.channels_last:
            model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.model = model
        self.recipe = recipe
        self.metadata = dict(metadata)
        self.train_scores = Scores("train", metrics)
        self.val_scores = Scores("val", metrics)
        self.test_scores = Scores("test", metrics)

    @staticmethod
    def network_options(metadata: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the options that a network needs for the task, besides its channels and classes.

        Args:
            metadata: Of the data.
        """
        return {}

    @abstractmethod
    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Returns the loss of a batch."""

    def answers(self, outputs: Tensor) -> Tensor:
        """Returns what the metrics take: the outputs, unless a task makes something of them."""
        return outputs

    def improves(self, score: float, best: float | None) -> bool:
        """Returns whether a score of the validation part is better than the best one so far."""
        better = best is None or (score < best if self.lower_is_better else score > best)
        return better and math.isfinite(score)

    def count_parameters(self) -> dict[str, int]:
        """Returns the sizes that the result of a run tells."""
        return {"parameters": sum(p.numel() for p in self.model.parameters())}

    def forward(self, inputs: Tensor) -> Tensor:
        """Returns the network's outputs."""
        if self.recipe.trainer.channels_last:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        outputs: Tensor = self.model(inputs)
        return outputs

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Makes the random numbers of this step a function of what step it is."""
        torch.manual_seed(derive_seed(self.recipe.seed, self.global_step, self.global_rank))

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """Returns the loss of a batch, unless it is not a number."""
        inputs, targets = batch
        outputs = self(inputs)
        loss = self.loss(outputs, targets)
        if not torch.isfinite(loss):
            raise NonFiniteLossError(self._explain(loss))
        self.train_scores.add(loss, self.answers(outputs), targets)
        self.log("loss", loss, prog_bar=True)
        return loss

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Gives all processes the first one's batch-norm statistics, at the end of an epoch.

        DDP does so before each training step, but not before validation.
        """
        if self.trainer.world_size > 1 and self.trainer.is_last_batch:
            for buffer in self.model.buffers():
                torch.distributed.broadcast(buffer, 0)

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """Measures a batch of the validation part."""
        self._evaluate(batch, self.val_scores)

    def test_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """Measures a batch of the test part."""
        self._evaluate(batch, self.test_scores)

    def _evaluate(self, batch: tuple[Tensor, Tensor], scores: Scores) -> None:
        inputs, targets = batch
        outputs = self(inputs)
        scores.add(self.loss(outputs, targets), self.answers(outputs), targets)

    def _explain(self, loss: Tensor) -> str:
        rate = self.trainer.optimizers[0].param_groups[-1]["lr"]
        return (
            f"the loss became {loss.item()} in epoch {self.current_epoch}, step "
            f"{self.global_step}, at learning rate {rate:.3g}; lower --optimizer.lr, clip gradients"
            " with --trainer.gradient_clip_val 1, or train with --trainer.precision 32-true"
        )

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        """Returns the recipe's optimizer and schedule."""
        optimizer = make_optimizer(self.model, self.recipe.optimizer)
        # Not Trainer.estimated_stepping_batches: it makes Lightning set its loader up before it
        # has read the checkpoint, and the loader's place in the epoch would be lost.
        loader = self.trainer.datamodule.train_dataloader()  # type: ignore[attr-defined]
        epochs = self.recipe.trainer.max_epochs
        schedule = make_schedule(optimizer, self.recipe.schedule, len(loader), epochs)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Adds the scores of the unfinished epoch, and what rebuilds the network."""
        checkpoint["phnn"] = {
            "scores": self.train_scores.gather(distributed=self.trainer.world_size > 1),
            "recipe": self.recipe.to_dict(),
            "config": self.model.config,
            "layers": self._changed_layers(),
            "metadata": self.metadata,
        }

    def _changed_layers(self) -> dict[str, Any]:
        """Returns what a converted network has in other places than its config says."""
        with torch.device("meta"):
            plain = create_model(**self.model.config)
        changes = find_changes(plain, self.model)
        return {name: spec and spec.to_dict() for name, spec in changes.items()}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Takes up the scores of the unfinished epoch."""
        if self.global_rank == 0:
            self.train_scores.restore(checkpoint["phnn"]["scores"])

    def load_weights(self, checkpoint: Mapping[str, Any]) -> None:
        """Takes the network's weights, and nothing else, from a checkpoint."""
        state = checkpoint["state_dict"].items()
        self.model.load_state_dict(
            {key.removeprefix(PREFIX): value for key, value in state if key.startswith(PREFIX)}
        )
