"""A network with its loss and its scores."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import lightning
import torch
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor, nn
from torchmetrics import Metric

from phnn.conversion.specs import find_changes
from phnn.lab.recipe import Recipe
from phnn.lab.seeds import derive_seed
from phnn.lab.tasks.formats import put_channels_last
from phnn.lab.tasks.imitation import relative_error, stop_dropout
from phnn.lab.tasks.networks import OwnNetwork
from phnn.lab.tasks.optimization import (
    NonFiniteLossError,
    make_optimizer,
    make_schedule,
    number_states,
)
from phnn.lab.tasks.registry import find_task
from phnn.lab.tasks.scores import Scores
from phnn.lab.tasks.sharding import hold_whole, is_sharded, load_weights, shard
from phnn.lab.tasks.task import Score
from phnn.models import Network, create_model

PREFIX = "model."  # of the network's weights in a checkpoint


class Learner(lightning.LightningModule, ABC):
    """Train a network by a recipe. A task derives from it and adds the loss and the scores.

    The random numbers of a step, such as those of dropout, are a function of (seed, step, process):
    a run that was stopped continues as if it had not been. For the same reason, checkpoints hold
    the scores of the unfinished epoch.

    Args:
        model: The network.
        recipe: The recipe, for the optimizer, schedule, seed and trainer options.
        metadata: What a user of the network has to know, such as the names of the classes. It is
            kept in checkpoints.
        metrics: What to measure besides the loss, from (answers, targets).
    """

    def __init__(
        self,
        model: Network | OwnNetwork,
        recipe: Recipe,
        metadata: Mapping[str, Any],
        metrics: Mapping[str, Metric],
    ) -> None:
        super().__init__()
        if recipe.trainer.channels_last:
            put_channels_last(model)
        if recipe.trainer.compile:
            model.compile()
        self.model = model
        self.recipe = recipe
        self.metadata = dict(metadata)
        self.train_scores = Scores("train", metrics)
        self.val_scores = Scores("val", metrics)
        self.test_scores = Scores("test", metrics)
        self._zeros: list[tuple[Tensor, Tensor]] = []
        self._teachers: list[nn.Module] = []  # in a list: a teacher is no part of the checkpoints

    def learn_from(self, teacher: nn.Module) -> None:
        """Learn what another network computes, instead of the targets."""
        self._teachers = [teacher.eval().requires_grad_(False)]

    def on_fit_start(self) -> None:
        """Move the teacher to the device of the network."""
        for teacher in self._teachers:
            teacher.to(self.device)

    @abstractmethod
    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of a batch."""

    def answers(self, outputs: Tensor) -> Tensor:
        """Return what the metrics take, by default the outputs."""
        return outputs

    def infer(self, inputs: Tensor) -> Tensor:
        """Return the outputs that are scored in validation and test, by default the network's."""
        outputs: Tensor = self(inputs)
        return outputs

    @property
    def criterion(self) -> Score:
        """The validation score that chooses the best epoch."""
        task = find_task(self.recipe.task)
        return task.criterion or task.primary

    def improves(self, score: float, best: float | None) -> bool:
        """Return whether a validation score is better than the best one so far."""
        better = best is None or (score > best if self.criterion.higher else score < best)
        return better and math.isfinite(score)

    def count_parameters(self) -> dict[str, int]:
        """Return the sizes for the result of a run."""
        return {"parameters": sum(p.numel() for p in self.model.parameters())}

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the outputs of the network."""
        if self.recipe.trainer.channels_last:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        outputs: Tensor = self.model(inputs)
        return outputs

    def on_train_start(self) -> None:
        """Note which weights are zero, if they shall stay so; a resumed run finds the same."""
        if self.recipe.optimizer.keep_zeros:
            weights = [p for p in self.model.parameters() if p.requires_grad and p.dim() > 1]
            self._zeros = [(p, p.detach() == 0) for p in weights if not p.detach().all()]

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Make the random numbers of this step a function of its number."""
        key = [self.recipe.seed, self.global_step, self.global_rank]
        batches = self.recipe.trainer.accumulate_grad_batches
        if batches > 1:  # several batches belong to one step
            key.append(batch_idx % batches)
        torch.manual_seed(derive_seed(*key))
        if self._teachers:
            stop_dropout(self.model)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """Return the loss of a batch; raise an error when it is not finite."""
        inputs, targets = batch
        outputs = self(inputs)
        loss = self._imitate(inputs, outputs) if self._teachers else self.loss(outputs, targets)
        if not torch.isfinite(loss):
            raise NonFiniteLossError(self._explain(loss))
        self.train_scores.add(loss, self.answers(outputs), targets)
        self.log("loss", loss, prog_bar=True)
        return loss

    def _imitate(self, inputs: Tensor, outputs: Any) -> Tensor:
        with torch.no_grad():
            targets = self._teachers[0](inputs)
        return relative_error(outputs, targets)

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        """Make a step, and restore the zeros that stay.

        Not later: callbacks save checkpoints and average weights before the module's own hooks.
        """
        super().optimizer_step(*args, **kwargs)
        with torch.no_grad():
            for parameter, zeros in self._zeros:
                parameter.masked_fill_(zeros, 0)

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Share the batch-norm statistics of the first process at the end of an epoch.

        DDP does it before each training step, but not before validation.
        """
        if self.trainer.world_size > 1 and self.trainer.is_last_batch:
            for buffer in self.model.buffers():
                torch.distributed.broadcast(buffer, 0)

    def _hold_whole(self, whole: bool) -> None:
        if self.recipe.trainer.strategy == "fsdp2":
            hold_whole(self.model, whole=whole)

    def on_validation_epoch_start(self) -> None:
        """Gather a network that is shared out: processes may have different numbers of batches."""
        self._hold_whole(True)

    def on_validation_epoch_end(self) -> None:
        """Share the network out again."""
        self._hold_whole(False)

    def on_test_epoch_start(self) -> None:
        """Gather a network that is shared out."""
        self._hold_whole(True)

    def on_test_epoch_end(self) -> None:
        """Share the network out again."""
        self._hold_whole(False)

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """Measure a batch of the validation split."""
        self._evaluate(batch, self.val_scores)

    def test_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """Measure a batch of the test split."""
        self._evaluate(batch, self.test_scores)

    def _evaluate(self, batch: tuple[Tensor, Tensor], scores: Scores) -> None:
        inputs, targets = batch
        outputs = self.infer(inputs)
        scores.add(self.loss(outputs, targets), self.answers(outputs), targets)

    def _explain(self, loss: Tensor) -> str:
        rate = self.trainer.optimizers[0].param_groups[-1]["lr"]
        return (
            f"the loss became {loss.item()} in epoch {self.current_epoch}, step "
            f"{self.global_step}, at learning rate {rate:.3g}; lower --optimizer.lr, clip gradients"
            " with --trainer.gradient_clip_val 1, or train with --trainer.precision 32-true"
        )

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        """Return the optimizer and the schedule of the recipe."""
        optimizer = make_optimizer(self.model, self.recipe.optimizer)
        # Not Trainer.estimated_stepping_batches: it makes Lightning set up its loader before it
        # has read the checkpoint, and the position of the loader would be lost.
        loader = self.trainer.datamodule.train_dataloader()  # type: ignore[attr-defined]
        epochs = self.recipe.trainer.max_epochs
        steps = -(-len(loader) // self.recipe.trainer.accumulate_grad_batches)
        schedule = make_schedule(optimizer, self.recipe.schedule, steps, epochs)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the scores of the unfinished epoch, and what rebuilds the network."""
        if not is_sharded(self.model):  # Lightning numbers those itself
            checkpoint["optimizer_states"] = [
                number_states(state, optimizer, self)
                for state, optimizer in zip(
                    checkpoint["optimizer_states"], self.trainer.optimizers, strict=True
                )
            ]
        checkpoint["phnn"] = {
            "scores": self.train_scores.gather(distributed=self.trainer.world_size > 1),
            "recipe": self.recipe.to_dict(),
            "config": self.model.config,
            "layers": self._changed_layers(),
            "metadata": self.metadata,
        }

    def _changed_layers(self) -> dict[str, Any]:
        """Return the layers of a converted network that differ from its config."""
        if isinstance(self.model, OwnNetwork):
            return {}
        with torch.device("meta"):
            plain = create_model(**self.model.config)
        changes = find_changes(plain, self.model)
        return {name: spec and spec.to_dict() for name, spec in changes.items()}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Continue with the scores of the unfinished epoch."""
        if self.global_rank == 0:
            self.train_scores.restore(checkpoint["phnn"]["scores"])

    def load_weights(self, checkpoint: Mapping[str, Any]) -> None:
        """Load the weights of the network, and nothing else, from a checkpoint."""
        state = checkpoint["state_dict"].items()
        weights = {
            key.removeprefix(PREFIX): value for key, value in state if key.startswith(PREFIX)
        }
        load_weights(self.model, weights)

    def configure_model(self) -> None:
        """Share the tensors of the network out to the devices, if the recipe wants it."""
        if self.recipe.trainer.strategy == "fsdp2" and not is_sharded(self.model):
            assert self.device_mesh is not None
            shard(self.model, self.device_mesh["data_parallel"])
