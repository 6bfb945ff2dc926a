"""Decoded data sets on disk, so that they are decoded once."""

import hashlib
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from phnn.io import read_sealed, write_tensors
from phnn.lab.tasks.cache import cache_folder
from phnn.lab.tasks.images.sources import Source

logger = logging.getLogger(__name__)

VERSION = 3  # part of every key; raise it when decoding or the file changes


@dataclass(frozen=True)
class Stored:
    """A decoded data set: images and labels of each split, and the images that were skipped."""

    classes: tuple[str, ...]
    tensors: Mapping[str, tuple[Tensor, Tensor]]
    skipped: tuple[str, ...]


def cached_splits(
    source: Source, options: Mapping[str, object], decode: Callable[[Source], Stored]
) -> Stored:
    """Read a decoded data set from the cache, or decode and cache it.

    Args:
        source: Where the images come from.
        options: Whatever changes the result, as JSON.
        decode: The function of the source that decodes it.
    """
    key = json.dumps([VERSION, source.fingerprint, dict(options)], sort_keys=True)
    path = cache_folder() / f"images-{hashlib.sha256(key.encode()).hexdigest()[:24]}.safetensors"
    if path.exists():
        try:
            return _read(path)
        except (OSError, KeyError, ValueError) as error:
            logger.warning("the cache file %s is damaged (%s) and is made again", path, error)
    stored = decode(source)
    try:
        _write(path, stored)
    except OSError as error:  # a full disk or a read-only home must not stop the training
        logger.warning("the decoded images cannot be cached in %s: %s", path.parent, error)
    return stored


def _write(path: Path, stored: Stored) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    tensors = {
        f"{split}.{kind}": tensor
        for split, pair in stored.tensors.items()
        for kind, tensor in zip(("images", "labels"), pair, strict=True)
    }
    write_tensors(path, tensors, {"classes": stored.classes, "skipped": stored.skipped})


def _read(path: Path) -> Stored:
    stored, header = read_sealed(path)
    splits = sorted({name.rpartition(".")[0] for name in stored})
    tensors = {split: (stored[f"{split}.images"], stored[f"{split}.labels"]) for split in splits}
    return Stored(tuple(header["classes"]), tensors, tuple(header["skipped"]))
