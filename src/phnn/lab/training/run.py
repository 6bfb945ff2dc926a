"""One training run: a recipe in, a run folder out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from phnn._screen import Screen
from phnn.lab.ranks import check_world, is_first_process
from phnn.lab.recipe import Recipe
from phnn.lab.runs import (
    RESULT,
    VALIDATION,
    RunFolderError,
    find_mismatch,
    read_json,
    write_json,
)
from phnn.lab.stopping import Stoppable
from phnn.lab.training.build import check_recipe
from phnn.lab.training.folder import open_folder

Judge = Callable[[Mapping[str, Any]], bool]  # of a row of metrics.csv: whether to end the run


def train(
    recipe: Recipe,
    out: Path | str,
    *,
    command: str = "",
    names: Mapping[str, Any] | None = None,
    progress: bool | Screen = True,
    wait: float = 0.0,
    judge: Judge | None = None,
) -> dict[str, Any]:
    """Train and test a network, or continue a run that was stopped.

    The folder gets `config.yaml`, which describes the run, `metrics.csv` with a row for each epoch,
    the logger's files, `checkpoints/last.ckpt` and, when there is a validation split, `best.ckpt`,
    and at the end `model.safetensors` and `result.json`. The best epoch is tested when there is a
    validation split, the last otherwise.

    Args:
        recipe: What to run.
        out: The folder of the run. A run of the same recipe that was stopped there continues from
            its last complete checkpoint. One that has ended is not repeated; with more epochs, it
            goes on from its last epoch, at the rate of the longer schedule.
        command: The command that started the run, for the result.
        names: What a comparison calls the run: `comparison`, `family` and `variant`.
        progress: Whether to show how far it is, on stderr; or where to show it.
        wait: Seconds to wait for another process that holds the folder.
        judge: Makes the run a trial of a study: the first process calls it after each epoch with
            its row of `metrics.csv`, and it says whether to give up. A trial is not tested, and
            writes `validation.json` instead of `result.json` and the network. Without a judge,
            the same recipe and folder continue the run up to its test.

    Returns:
        The contents of `result.json`, or of `validation.json` with a judge; nothing in
        processes other than the first of a run.

    Raises:
        RunFolderError: The folder holds another run, or another process is training there.
        NonFiniteLossError: The loss became infinite or not a number.
        Stopped: Ctrl-C or SIGTERM ended the run, after a checkpoint if it was training.
    """
    out = Path(out)
    check_recipe(recipe)
    check_world(recipe.trainer.devices, recipe.trainer.num_nodes)
    with Stoppable() as stop, open_folder(out, recipe, names or {}, wait) as finished:
        if finished is not None:
            return finished if is_first_process() else {}
        if judge is not None and (judged := read_json(out / VALIDATION)) is not None:
            if error := find_mismatch(out / VALIDATION, judged, recipe.to_dict()):
                raise RunFolderError(f"{out}: {error}; give another --out, or delete the folder")
            return judged if is_first_process() else {}
        from phnn.lab.training.fitting import fit  # Lightning takes seconds to import

        screen = Screen() if progress is True else progress or None
        with screen or nullcontext():
            result = fit(recipe, out, stop, screen, judge=judge)
        if result:
            result["command"] = command
            write_json(out / (RESULT if judge is None else VALIDATION), result)
        return result
