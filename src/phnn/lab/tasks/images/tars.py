"""Images in tar files, without unpacking them: ImageNet's own, and shards of webdataset."""

import re
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from phnn.lab.seeds import permutation_of
from phnn.lab.tasks.images.decode import find_suffixes
from phnn.lab.tasks.images.sources import SPLIT_NAMES, Encoded, Opened, find_use, fingerprint_files
from phnn.lab.tasks.images.tables import TableFolder

TRAIN = "ILSVRC2012_img_train.tar"  # a tar file for each class inside
VALIDATION = "ILSVRC2012_img_val.tar"
DEVKIT = "ILSVRC2012_devkit_t12.tar.gz"  # the labels of the validation images
CLASSES = "classnames.txt"  # beside shards: the name of each class
TRUTH = "ILSVRC2012_validation_ground_truth.txt"


class Member(NamedTuple):
    """An image inside a tar file.

    Attributes:
        file: The tar file.
        name: Its name there.
        offset: Where its bytes begin.
        size: How many there are.
        label: The index of its class.
    """

    file: Path
    name: str
    offset: int
    size: int
    label: int


@dataclass(frozen=True)
class MemberRows:
    """Images inside tar files, each read from its position."""

    members: Sequence[Member]

    def __len__(self) -> int:
        return len(self.members)

    def __iter__(self) -> Iterator[Encoded]:
        return self._encode(range(len(self)))

    def shuffled(self, seed: int, epoch: int) -> Iterable[Encoded]:
        """Return the images in a random order."""
        return self._encode(permutation_of(len(self), seed, epoch).tolist())

    def _encode(self, order: Iterable[int]) -> Iterator[Encoded]:
        handles: dict[Path, Any] = {}
        try:
            for row in order:
                member = self.members[row]
                if member.file not in handles:
                    handles[member.file] = member.file.open("rb")
                handle = handles[member.file]
                handle.seek(member.offset)
                name = f"{member.file}: {member.name}"
                yield Encoded(name, handle.read(member.size), member.label)
        finally:
            for handle in handles.values():
                handle.close()


@dataclass(frozen=True)
class ImageNetArchives:
    """ImageNet as its authors publish it: two tar files, and a kit with the labels."""

    folder: Path

    @property
    def fingerprint(self) -> str:
        """A hash of the names, sizes and times of the files."""
        files = [self.folder / name for name in (TRAIN, VALIDATION, DEVKIT)]
        return fingerprint_files(self.folder, files)

    def open(self, *, streaming: bool = False) -> Opened:
        """List the images; reading the 1.3 million headers takes some minutes."""
        del streaming
        for name in (TRAIN, VALIDATION, DEVKIT):
            if not (self.folder / name).is_file():
                raise ValueError(f"{self.folder} lacks {name} of ImageNet")
        inside = _list_nested(self.folder / TRAIN)
        classes = tuple(sorted(inside))
        numbers = {name: number for number, name in enumerate(classes)}
        train = [
            member._replace(label=numbers[name]) for name in classes for member in inside[name]
        ]
        truth = _read_truth(self.folder / DEVKIT)
        found = sorted(_list_members(self.folder / VALIDATION), key=lambda member: member.name)
        if len(found) != len(truth):
            raise ValueError(
                f"{self.folder / VALIDATION} has {len(found)} images, {DEVKIT} {len(truth)} labels"
            )
        unknown = sorted(set(truth) - set(classes))
        if unknown:
            raise ValueError(f"{TRAIN} lacks the class {unknown[0]}, which {DEVKIT} has")
        test = [m._replace(label=numbers[name]) for m, name in zip(found, truth, strict=True)]
        return Opened(classes, {"train": MemberRows(train), "test": MemberRows(test)})


@dataclass(frozen=True)
class TarShards:
    """Tar files of webdataset: for each key an image and its label, KEY.jpg and KEY.cls.

    The split is in the name of the file or of its folder: train-0001.tar, val/0001.tar. Streams are
    those of `TableFolder`.
    """

    folder: Path
    splits: Mapping[str, str]

    @property
    def fingerprint(self) -> str:
        """A hash of the names, sizes and times of the files."""
        files = [*sorted(self.folder.rglob("*.tar")), *self.folder.glob(CLASSES)]
        return fingerprint_files(self.folder, files, self.splits)

    def open(self, *, streaming: bool = False) -> Opened:
        """List the images, or begin to stream them."""
        if streaming:
            return TableFolder(self.folder, self.splits).open(streaming=True)
        members: dict[str, list[Member]] = {}
        for file in sorted(self.folder.rglob("*.tar")):
            use = find_use(_name_split(self.folder, file), self.splits)
            if use is not None:
                members.setdefault(use, []).extend(_list_labelled(file))
        if not members:
            names = ", ".join(SPLIT_NAMES)
            raise ValueError(f"no tar file of {self.folder} is named after a split: {names}")
        most = max(member.label for found in members.values() for member in found)
        classes = _read_classes(self.folder) or [str(number) for number in range(most + 1)]
        if len(classes) <= most:
            raise ValueError(f"{self.folder} has the label {most} and {len(classes)} classes")
        return Opened(tuple(classes), {use: MemberRows(found) for use, found in members.items()})


def _name_split(folder: Path, file: Path) -> str:
    """Return the first part of the path of a shard that is the name of a split."""
    words = re.split(r"[^a-z]+", file.relative_to(folder).as_posix().lower())
    return next((word for word in words if word in SPLIT_NAMES), "")


def _read_classes(folder: Path) -> list[str]:
    file = folder / CLASSES
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    return [line.strip() for line in lines if line.strip()]


def _list_labelled(file: Path) -> list[Member]:
    """Return the images of a shard, with the labels beside them."""
    suffixes = find_suffixes()
    images: dict[str, Member] = {}
    labels: dict[str, int] = {}
    with _open(file) as archive:
        for info in archive:
            key, _, suffix = info.name.partition(".")
            if f".{suffix.lower()}" in suffixes:
                images[key] = Member(file, info.name, info.offset_data, info.size, -1)
            elif suffix in ("cls", "cls.txt"):
                content = archive.extractfile(info)
                text = content.read(20) if content is not None else b""
                if not text.strip().isdigit():
                    raise ValueError(f"{file}: {info.name} must hold the number of a class")
                labels[key] = int(text)
    missing = [key for key in images if key not in labels]
    if missing or not images:
        what = f"{missing[0]}.cls is missing" if missing else "it holds no images"
        raise ValueError(f"{file} is not a shard of images with labels: {what}")
    return [member._replace(label=labels[key]) for key, member in images.items()]


def _open(file: Path) -> tarfile.TarFile:
    try:
        return tarfile.open(file)
    except (tarfile.TarError, OSError) as error:
        raise ValueError(f"{file} cannot be read as a tar file: {error}") from error


def _list_members(file: Path) -> list[Member]:
    with _open(file) as archive:
        return [
            Member(file, info.name, info.offset_data, info.size, -1)
            for info in archive
            if info.isfile()
        ]


def _list_nested(file: Path) -> dict[str, list[Member]]:
    """Return the images of each tar file inside a tar file, by its name without suffix."""
    found: dict[str, list[Member]] = {}
    with _open(file) as archive:
        for info in archive:
            name = Path(info.name)
            inner = archive.extractfile(info) if name.suffix == ".tar" else None
            if inner is None:
                continue
            with tarfile.open(fileobj=inner) as images:
                found[name.stem] = [
                    Member(file, each.name, info.offset_data + each.offset_data, each.size, -1)
                    for each in images
                    if each.isfile()
                ]
    if not found:
        raise ValueError(f"{file} holds no tar files of classes")
    return found


def _read_truth(file: Path) -> list[str]:
    """Return the class of each validation image, such as n01440764."""
    from scipy.io import loadmat

    with _open(file) as archive:
        names = {Path(info.name).name: info for info in archive if info.isfile()}
        lacking = [name for name in (TRUTH, "meta.mat") if name not in names]
        if lacking:
            raise ValueError(f"{file} lacks {lacking[0]}")
        truth, meta = (archive.extractfile(names[name]) for name in (TRUTH, "meta.mat"))
        assert truth is not None
        assert meta is not None
        numbers = [int(line) for line in truth.read().split()]
        table = loadmat(meta, squeeze_me=True, variable_names=["synsets"])["synsets"]
    known = {int(row["ILSVRC2012_ID"]): str(row["WNID"]) for row in table.reshape(-1)}
    return [known[number] for number in numbers]
