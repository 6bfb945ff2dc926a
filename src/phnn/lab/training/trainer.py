"""Lightning's trainer, set up by the options of a recipe."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch import callbacks as lightning_callbacks
from lightning.pytorch import loggers
from lightning.pytorch.callbacks import Callback, Checkpoint
from torch import Tensor

from phnn.lab.recipe import TrainerOptions
from phnn.lab.tasks.data import Data
from phnn.lab.tasks.learner import Learner
from phnn.lab.training.checkpoints import AtomicCheckpointIO


def make_trainer(
    options: TrainerOptions, *, callbacks: list[Callback], **arguments: Any
) -> lightning.Trainer:
    """Return Lightning's trainer for our loaders and checkpoints.

    Args:
        options: How to train.
        callbacks: Our callbacks.
        arguments: Further arguments of Lightning's trainer.
    """
    return lightning.Trainer(
        max_epochs=options.max_epochs,
        max_steps=-1 if options.max_steps is None else options.max_steps,
        accelerator=options.accelerator,
        devices=options.devices,
        num_nodes=options.num_nodes,
        strategy=_make_strategy(options),
        accumulate_grad_batches=options.accumulate_grad_batches,
        precision=_choose_precision(options),  # type: ignore[arg-type]
        gradient_clip_val=options.gradient_clip_val,
        deterministic=options.deterministic,
        callbacks=callbacks,
        plugins=[AtomicCheckpointIO()],
        num_sanity_val_steps=0,
        enable_checkpointing=any(isinstance(each, Checkpoint) for each in callbacks),
        enable_progress_bar=False,  # ours goes to stderr, in plain lines where nobody watches
        enable_model_summary=False,
        use_distributed_sampler=False,  # our loaders know their process
        inference_mode=options.strategy != "fsdp2",  # gathered tensors serve training again
        **arguments,
    )


def _choose_precision(options: TrainerOptions) -> str:
    """Return Lightning's name of the precision: what "auto" stands for on this device."""
    if options.precision != "auto":
        return options.precision
    device = torch.accelerator.current_accelerator()
    if options.accelerator == "cpu" or device is None:
        # elsewhere bf16 is emulated, and slower than float32
        has_bf16 = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    else:
        has_bf16 = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return "bf16-mixed" if has_bf16 else "32-true"


def _make_strategy(options: TrainerOptions) -> Any:
    """Return Lightning's strategy, or its name."""
    if options.strategy != "fsdp2":
        return options.strategy
    from lightning.pytorch.strategies import ModelParallelStrategy

    # whole checkpoints: a run resumes on another number of devices, and with other strategies
    return ModelParallelStrategy(
        data_parallel_size=options.devices * options.num_nodes,
        tensor_parallel_size=1,
        save_distributed_checkpoint=False,
    )


def make_logger(options: TrainerOptions, out: Path) -> Any:
    """Return the logger that the options name; False for none."""
    if options.logger == "wandb":
        return loggers.WandbLogger(name=out.name, save_dir=out)
    if options.logger == "mlflow":
        return loggers.MLFlowLogger(run_name=out.name, save_dir=str(out / "mlruns"))
    kinds = {"tensorboard": loggers.TensorBoardLogger, "csv": loggers.CSVLogger}
    kind = kinds.get(options.logger)
    return False if kind is None else kind(out, name=None, version=options.logger)


def make_callbacks(options: TrainerOptions, learner: Learner, steps: int) -> list[Callback]:
    """Return Lightning's callbacks for early stopping and weight averaging, as far as wanted.

    Args:
        options: What is wanted.
        learner: The learner, for its validation score.
        steps: The training steps of the whole run.
    """
    wanted: list[Callback] = []
    if options.averaging == "ema":
        wanted.append(lightning_callbacks.EMAWeightAveraging(decay=options.averaging_decay))
    elif options.averaging == "swa":
        start = round(options.averaging_start * steps)
        wanted.append(lightning_callbacks.WeightAveraging(avg_fn=partial(_average, start)))
    if options.early_stopping is not None:
        wanted.append(
            lightning_callbacks.EarlyStopping(
                f"val_{learner.criterion.name}",
                patience=options.early_stopping,
                mode="max" if learner.criterion.higher else "min",
                strict=False,  # at the end of an epoch that was logged before
                check_on_train_epoch_end=True,
            )
        )
    return wanted


def _average(start: int, average: Tensor, now: Tensor, count: Tensor) -> Tensor:
    """Return the weights themselves until step `start`, and their mean over the steps from then."""
    if count <= start:
        return now
    return average + (now - average) / (count - start + 1)


class LightningData(lightning.LightningDataModule):
    """Lightning's view of the data of a task.

    Args:
        data: The data.
    """

    def __init__(self, data: Data) -> None:
        super().__init__()
        self.data = data

    def setup(self, stage: str) -> None:
        """Read the data, and tell them which process this is."""
        assert self.trainer is not None
        self.data.setup()
        self.data.rank, self.data.world_size = self.trainer.global_rank, self.trainer.world_size

    def train_dataloader(self) -> Any:
        """Return the training batches."""
        return self.data.train_dataloader()

    def val_dataloader(self) -> Any:
        """Return the validation batches."""
        return self.data.val_dataloader()

    def test_dataloader(self) -> Any:
        """Return the test batches."""
        return self.data.test_dataloader()

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Return the inputs and targets of a batch."""
        return self.data.on_after_batch_transfer(batch, dataloader_idx)


def to_lightning(data: Data) -> lightning.LightningDataModule:
    """Return the data of a task as a data module, which they may be already."""
    return data if isinstance(data, lightning.LightningDataModule) else LightningData(data)


@contextmanager
def calm_lightning() -> Iterator[None]:
    """Hide Lightning's advice, and a warning about its own code, from the terminal."""
    # not all of lightning.fabric: it says there that a process of a run has died
    names = ("lightning.pytorch", "lightning.fabric.utilities.distributed")
    levels = {logging.getLogger(name): logging.getLogger(name).level for name in names}
    for logger in levels:
        logger.setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            # Lightning 2.6 uses a name of torch's pytrees that torch 2.13 deprecates
            warnings.filterwarnings("ignore", ".*LeafSpec", FutureWarning)
            # it looks at the name of a method alone; averaging with shards is refused
            warnings.filterwarnings("ignore", ".*WeightAveraging.*configure_model", UserWarning)
            # of DDP with 1×1 filters in channels-last format, whose strides have no meaning
            warnings.filterwarnings("ignore", "Grad strides do not match bucket", UserWarning)
            yield
    finally:
        for logger, level in levels.items():
            logger.setLevel(level)
