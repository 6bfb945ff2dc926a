"""What a model file says about its tensors."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple, NoReturn

from phnn import algebra as algebras
from phnn.conversion.specs import LayerSpec


class Version(NamedTuple):
    """The version of the format; prints as `2.1`.

    A new minor version adds what older readers may ignore, or what they refuse layer by layer. A
    new major version is one that they must not read at all. docs/files.md has the whole policy.
    """

    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


# 1.0 could not hold converted models; 2.0 lists their layers; 2.1 may hold rectangular algebras;
# 2.2 may hold filters in a smaller type; 2.3 layers with several matrices, and attention
FORMAT = Version(2, 3)
# an algebra with this many structure constants is built in no time, whatever the size of the file
SMALL_ALGEBRA = 2**16
HEADER_FIELDS: dict[str, Any] = {
    "config": dict | None,
    "metadata": dict,
    "shared": dict,
    "layers": dict,
    "buffers": list,
    "storage": dict,
    "output_error": int | float | None,
    "sha256": str,
}
LAYER_FIELDS: dict[str, Any] = {
    "kind": str,
    "n": int | list,
    "terms": int,
    "algebra": str | dict | None,
    "learn_algebra": bool,
    "rank": int | None,
    "matrices": dict | None,
}


@dataclass(frozen=True)
class Header:
    """What a file says about its tensors.

    Attributes:
        config: The arguments of `create_model` that build the model; None for any other model.
        metadata: What the user wants to travel with the model.
        shared: Names of tensors that are another tensor, with that tensor's name.
        layers: The PH layers that `config` does not make by itself, all of them without a config;
            None for a plain layer where it would make a PH layer.
        buffers: Names of the tensors that are not parameters.
        storage: Names of the filters that are stored in a smaller type, with the code of the type
            that the model has them in.
        output_error: Largest difference of the outputs that this makes on an example, relative to
            the largest output; None without an example.
        sha256: Of the tensors.
        format: Version of the format.
    """

    config: dict[str, Any] | None
    metadata: dict[str, Any]
    shared: dict[str, str]
    layers: dict[str, LayerSpec | None] = field(default_factory=dict)
    buffers: list[str] = field(default_factory=list)
    storage: dict[str, str] = field(default_factory=dict)
    output_error: float | None = None
    sha256: str = ""
    format: Version = FORMAT

    def to_json(self) -> str:
        """Return the header as text; equal headers give equal texts."""
        return json.dumps({**asdict(self), "format": str(self.format)}, sort_keys=True)


def seal(text: str) -> dict[str, str]:
    """Return the strings that safetensors stores beside the tensors."""
    # "format" is what other libraries look for
    return {"format": "pt", "phnn": text, "phnn_sha256": hashlib.sha256(text.encode()).hexdigest()}


def open_seal(sealed: Mapping[str, str]) -> Any:
    """Return what `seal` has sealed.

    Raises:
        ValueError: The header is damaged, or is not JSON.
    """
    text = sealed.get("phnn", "")
    if sealed.get("phnn_sha256") != seal(text)["phnn_sha256"]:
        raise ValueError("its header is damaged or altered: the SHA-256 does not match")
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"its header is not JSON: {error}") from None


def parse_header(sealed: Mapping[str, str], sizes: Mapping[str, int]) -> Header:
    """Return the header of a file, with every type checked.

    Args:
        sealed: What safetensors stores beside the tensors.
        sizes: Number of elements of each tensor in the file.

    Raises:
        ValueError: This is not a header of `phnn.save`, or not one that this version reads.
    """
    if "phnn" not in sealed:
        raise ValueError(
            "it was not written by phnn.save; safetensors.torch.load_file reads its tensors"
        )
    values = open_seal(sealed)
    version = parse_version(values, FORMAT)
    try:
        return _parse_fields(values, version, sizes)
    except (ValueError, TypeError) as error:
        newer = f"; it has format {version}, a newer phnn may read it" * (version > FORMAT)
        raise ValueError(f"its header is not one of phnn.save: {error}{newer}") from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")


def parse_version(values: object, newest: Version) -> Version:
    """Return the version of a header, if this phnn can read it.

    Args:
        values: The header.
        newest: The newest version of this format.

    Raises:
        ValueError: There is none, or it is another major version than any that was written.
    """
    found = values.get("format") if isinstance(values, dict) else None
    if isinstance(found, int) and not isinstance(found, bool):  # before minor versions existed
        found = f"{found}.0"
    if not isinstance(found, str) or not re.fullmatch(r"\d{1,6}\.\d{1,6}", found):
        raise ValueError("its header names no format version; it is damaged, or not of phnn")
    version = Version(*map(int, found.split(".")))
    if version.major > newest.major:
        raise ValueError(
            f"it has format {version}, this version of phnn reads up to {newest.major}.x; "
            "install a newer phnn"
        )
    if version.major < 1:
        raise ValueError(f"it has format {version}, which phnn never wrote")
    return version


def _parse_fields(values: dict[str, Any], version: Version, sizes: Mapping[str, int]) -> Header:
    """Return the header; fields that only newer versions know are left out."""
    if version.major == 1:
        values = {"layers": {}, "buffers": [], **values}
    values = check_fields({"storage": {}, "output_error": None, **values}, HEADER_FIELDS)
    check_strings("buffers", values["buffers"])
    check_strings("storage", values["storage"].values())
    check_strings("shared", values["shared"].values())
    for alias, name in values["shared"].items():
        if name not in sizes or alias in sizes:
            raise ValueError(
                f"shared tensor {alias!r} names {name!r}, which the file does not hold"
            )
    for name in values["storage"]:
        if name not in sizes:
            raise ValueError(f"stored filters {name!r} are not in the file")
    layers = {name: _parse_layer(name, spec) for name, spec in values.pop("layers").items()}
    check_algebras(values["config"], layers.values(), sum(sizes.values()))
    return Header(**values, layers=layers, format=version)


def parse_layers(values: Mapping[str, object], stored: int) -> dict[str, LayerSpec]:
    """Return the layers that a file describes, with every type checked.

    Args:
        values: Their fields, by name.
        stored: How many numbers the file holds.
    """
    found = {}
    for name, fields in values.items():
        spec = _parse_layer(name, fields)
        if spec is None:
            raise ValueError(f"layer {name!r} is not described")
        found[name] = spec
    check_algebras(None, found.values(), stored)
    return found


def _parse_layer(name: str, values: object) -> LayerSpec | None:
    if values is None:
        return None
    if not isinstance(values, dict):
        raise ValueError(f"layer {name!r} is a {type(values).__name__}, not a mapping")
    try:
        checked = check_fields({"rank": None, "matrices": None, **values}, LAYER_FIELDS)
        checked["matrices"] = _parse_matrices(checked["matrices"])
        if isinstance(checked["n"], list):  # of a rectangular algebra: [n_out, n_in]
            checked["n"] = tuple(
                check_fields(dict(enumerate(checked["n"])), {0: int, 1: int}).values()
            )
        if isinstance(checked["algebra"], dict):
            check_fields(checked["algebra"], {"name": str})
        return LayerSpec(**checked)
    except (ValueError, TypeError) as error:
        raise ValueError(f"layer {name!r}: {error}") from None


def _parse_matrices(values: dict[str, object] | None) -> dict[str, LayerSpec] | None:
    """Return what is said about the matrices of one layer, which have none of their own."""
    if values is None:
        return None
    found = {}
    for name, spec in values.items():
        parsed = _parse_layer(name, spec)
        if parsed is None or parsed.matrices is not None:
            raise ValueError(f"matrix {name!r} is not described")
        found[name] = parsed
    return found


def check_fields(values: object, kinds: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return the known fields of a mapping from a file.

    Args:
        values: What the file holds.
        kinds: The type of each field; only `bool` stands for true and false.

    Raises:
        ValueError: It is no mapping, or a field is missing or of another type.
    """
    if not isinstance(values, Mapping):
        raise ValueError(f"expected a mapping, found {type(values).__name__}")
    for name, kind in kinds.items():
        if name not in values:
            raise ValueError(f"{name} is missing")
        value = values[name]
        wrong_bool = isinstance(value, bool) and kind is not bool
        if not isinstance(value, kind) or wrong_bool:
            raise ValueError(f"{name} is a {type(value).__name__}")
    return {name: values[name] for name in kinds}


def check_strings(name: str, values: Iterable[object]) -> None:
    """Raise a ValueError if there is something other than names among values."""
    if not all(isinstance(value, str) for value in values):
        raise ValueError(f"{name} holds something other than names")


def check_algebras(
    config: Mapping[str, Any] | None, layers: Iterable[LayerSpec | None], stored: int
) -> None:
    """Refuse algebras that are out of all proportion to the file, before one is built.

    The structure constants of an algebra are n³ numbers, and a model that has it stores about as
    many.
    """
    given = [spec for spec in layers if spec is not None]
    given += [part for spec in given for part in (spec.matrices or {}).values()]
    named = {spec.algebra for spec in given if isinstance(spec.algebra, str)}
    in_config = (config or {}).get("algebra")
    named |= {in_config} if isinstance(in_config, str) else set()
    needed = sum(algebras.dimension(name) ** 3 for name in named)
    if needed > max(stored, SMALL_ALGEBRA):
        raise ValueError(
            f"its algebras have {needed:,} structure constants, but the file holds only "
            f"{stored:,} numbers"
        )
