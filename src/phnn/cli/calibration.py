"""The options --calibration and --evaluate: data to fit a model to, and a score to judge it by."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from phnn._functions import find_function
from phnn.cli.example_input import read_arrays
from phnn.cli.parser import UsageError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from phnn.lab.trained import Trained

ARRAYS = (".npy", ".npz")
TRAINING, VALIDATION = "training", "validation"  # of the run that the model comes from
SAMPLES = 1024
ARRAYS_OR = "arrays (.npy or .npz), or "


class Score(NamedTuple):
    """A score by which a model is judged.

    Attributes:
        name: What people call it.
        evaluate: A function of a model that returns the score.
        lower_is_better: Whether a lower score is better; None where only the user knows.
    """

    name: str
    evaluate: Callable[[nn.Module], float]
    lower_is_better: bool | None


def read_calibration(text: str, source: str, model: nn.Module, samples: int, seed: int) -> Any:
    """Return the calibration data that an argument stands for.

    Args:
        text: A file of arrays, a folder or file of images or sound, "training", or
            package.module:function of a function that returns the data.
        source: The argument MODEL, whose metadata say how files become inputs.
        model: The model, for the type of its numbers.
        samples: Most samples that are taken.
        seed: Of the choice among more.
    """
    path = Path(text)
    if path.suffix in ARRAYS:
        return _draw(read_arrays(path), model, samples, seed)
    if text == TRAINING and not path.exists():
        from phnn.lab.conversion import read_training_inputs

        return read_training_inputs(
            _load_trained(source, "--calibration training", ARRAYS_OR), samples
        )
    if ":" in text and not path.exists():
        return _run(text, find_function(text))
    if not path.exists():
        raise FileNotFoundError(
            f"there is no file or folder {text}; --calibration takes arrays (.npy, .npz), images, "
            "recordings, training for the data of a run, or package.module:function"
        )
    from phnn.lab.conversion import read_inputs

    trained = _load_trained(source, f"--calibration {text}", ARRAYS_OR)
    return read_inputs(trained, [path], samples, seed)


def find_score(text: str | None, source: str) -> Score:
    """Return the score that an argument stands for.

    Args:
        text: package.module:function of a function of a model; "validation", or None, for the score
            of the task that the model was trained for.
        source: The argument MODEL.
    """
    if text is None or (text == VALIDATION and not Path(text).exists()):
        from phnn.lab.conversion import validate

        return Score(*validate(_load_trained(source, "--evaluate validation", "--evaluate ")))
    if ":" not in text:
        raise UsageError(
            f"--evaluate {text} is neither package.module:function nor validation, the score of a "
            "run on its validation split"
        )
    function = find_function(text)
    return Score(text, lambda model: _run(text, function, model), None)


def _run(text: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function of the user; its errors name it."""
    try:
        return function(*arguments)
    except Exception as error:
        raise ValueError(
            f"{text} fails: {type(error).__name__}: {error}; PHNN_DEBUG=1 shows where"
        ) from error


def _load_trained(source: str, option: str, instead: str = "") -> Trained:
    """Return the model with the recipe of its training.

    Args:
        source: The argument MODEL.
        option: What needs the recipe.
        instead: What to give for other models.
    """
    from phnn.lab.trained import load_trained

    if not Path(source).exists():
        raise UsageError(
            f"{option} needs to know how the model was trained, and {source} is neither the folder "
            f"of a run nor a file of phnn; give {instead}package.module:function"
        )
    return load_trained(source)


def _draw(arrays: tuple[Tensor, ...], model: nn.Module, samples: int, seed: int) -> Any:
    """Return some samples of arrays, in the type of the model's numbers."""
    import torch

    sizes = {len(array) if array.dim() else 0 for array in arrays}
    if len(sizes) != 1 or 0 in sizes:
        shapes = " and ".join(str(tuple(array.shape)) for array in arrays) or "no arrays"
        raise ValueError(
            f"the first axis of every calibration array counts the same samples, got {shapes}"
        )
    (size,) = sizes
    if size > samples:
        order = torch.randperm(size, generator=torch.Generator().manual_seed(seed))[:samples]
        arrays = tuple(array[order] for array in arrays)
    first = next((p for p in model.parameters() if p.is_floating_point()), None)
    if first is not None:
        arrays = tuple(a.to(first.dtype) if a.is_floating_point() else a for a in arrays)
    return arrays
