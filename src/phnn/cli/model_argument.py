"""The argument MODEL: the name of a network, a file, the folder of a run, or a function."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phnn._functions import call_function
from phnn._kinds import KINDS
from phnn._names import suggest
from phnn.cli.parser import Parser, parse_count

if TYPE_CHECKING:
    from torch import nn

CHOICES = (
    "give the name of a network, a file (.safetensors), the folder of a run, or "
    "package.module:function"
)
LARGEST_INPUT = 2**22  # numbers; a file that asks for more may be mistaken, or mean harm


@dataclass(frozen=True)
class FoundModel:
    """The model that the user named.

    Attributes:
        model: The model, in evaluation mode.
        metadata: What was saved with it.
        shape: The shape of one sample of its input; None if it is unknown.
    """

    model: nn.Module
    metadata: dict[str, Any]
    shape: tuple[int, ...] | None = None


def add_network_options(parser: Parser) -> None:
    """Add the options that `create_model` takes for the name of a network."""
    parser.add_argument(
        "--n", type=parse_count, help="for the name of a network: dimension of its algebras"
    )
    parser.add_argument(
        "--algebra", help="for the name of a network: its algebra, such as quaternion"
    )


def add_build_option(parser: Parser) -> None:
    """Add the option that says how a model is built, where its file does not."""
    parser.add_argument(
        "--build",
        metavar="FUNCTION",
        help="for the file of a converted model of your own: package.module:function, which "
        "builds the original",
    )


def find_model(text: str, *, build: str | None = None, **options: Any) -> FoundModel:
    """Return the model that an argument stands for.

    Args:
        text: Name of a network of the zoo, file, folder of a run, or `package.module:function`.
        build: The function that builds the original of a converted model, which its file holds.
        options: Options of `create_model` for the name of a network; None where not given.
    """
    from phnn.models import create_model

    file = find_file(text, **options)
    if build is not None and (file is None or file.suffix == ".ckpt"):
        raise ValueError(f"--build {build} is for a file of a converted model; {text} needs none")
    if file is None:
        model = call_function(text) if ":" in text else create_model(text, **options)
        return FoundModel(model.eval(), {})
    return _load_checkpoint(file) if file.suffix == ".ckpt" else _load(file, build)


def find_file(text: str, **options: Any) -> Path | None:
    """Return the file that an argument stands for; None for a name or a function.

    Raises:
        ValueError: The argument is something else; the message says what.
    """
    from phnn.models import list_models

    names, path = list_models(), Path(text)
    if text in names:
        return None
    for name, value in options.items():
        if value is not None:
            raise ValueError(
                f"--{name} {value} is for the name of a network, and {text} is not one; phnn "
                "convert changes the layers of a model"
            )
    if path.is_dir():
        return _look_into(path)
    if path.exists():
        if path.suffix in KINDS:
            raise ValueError(f"{path} {KINDS[path.suffix]}; {CHOICES}")
        return path
    if ":" in text:
        return None
    if path.suffix or len(path.parts) > 1:
        raise FileNotFoundError(f"there is no file or folder {path}; {CHOICES}")
    raise ValueError(
        f"there is no network, file or folder {text}; {suggest(text, names)}networks are "
        f"{', '.join(names)}"
    )


def _look_into(folder: Path) -> Path:
    """Return the model in a folder."""
    model = folder / "model.safetensors"
    if model.exists():
        return model
    checkpoints = sorted((folder / "checkpoints").glob("*.ckpt"), key=lambda file: file.name)
    if checkpoints:
        raise ValueError(
            f"the run in {folder} has not ended; continue it with phnn train, or give "
            f"{checkpoints[-1]}"
        )
    if not any(folder.iterdir()):
        raise ValueError(f"{folder} is an empty folder; {CHOICES}")
    inside = sorted([*folder.glob("*/model.safetensors"), *folder.glob("*/*/model.safetensors")])
    hint = f"give a run inside it, such as {inside[0].parent}" if inside else CHOICES
    raise ValueError(f"the folder {folder} holds no model.safetensors; {hint}")


def _load(file: Path, build: str | None) -> FoundModel:
    from phnn.io import inspect, load

    says_how = inspect(file).name is not None
    if says_how and build is not None:
        raise ValueError(f"{file} says how to build its model; leave out --build {build}")
    if not says_how and build is None:
        raise ValueError(
            f"{file} does not say how to build its model, because phnn.create_model did not build "
            "it; give --build package.module:function, which builds the original"
        )
    model = load(file, model=None if build is None else call_function(build))
    metadata: dict[str, Any] = model.phnn_metadata  # type: ignore[assignment]
    return FoundModel(model, metadata, _find_shape(model, metadata))


def _load_checkpoint(file: Path) -> FoundModel:
    try:
        from phnn.lab.trained import load_trained
    except ModuleNotFoundError as error:
        raise ValueError(
            f"{file} is a checkpoint of phnn train, and reading it needs {error.name}; "
            'pip install "phnn[train]", or give the model.safetensors of a run that has ended'
        ) from error
    trained = load_trained(file)
    shape = _find_shape(trained.model, trained.metadata)
    return FoundModel(trained.model, trained.metadata, shape)


def _find_shape(model: nn.Module, metadata: dict[str, Any]) -> tuple[int, ...] | None:
    """Return the shape of an image, if the metadata has a plausible one."""
    size, config = metadata.get("image_size"), getattr(model, "config", {})
    if not isinstance(size, list) or len(size) != 2 or not all(type(x) is int for x in size):
        return None
    if "in_channels" not in config:  # a model of somebody's own
        return None
    channels, (height, width) = config["in_channels"], size
    is_plausible = min(height, width) > 0 and channels * height * width <= LARGEST_INPUT
    return (channels, height, width) if is_plausible else None
