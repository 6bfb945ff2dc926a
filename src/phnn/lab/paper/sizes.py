"""The sizes of the paper's networks, derived from our networks.

The authors' code gives a bias to the convolutions of VGG and SEDnet and to all PH convolutions. The
batch norm that follows cancels it, but the paper counts it. Our networks have no such bias, so each
row holds both counts.
"""

import fnmatch
import io
import re
from collections.abc import Iterable
from dataclasses import astuple, dataclass, fields
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from phnn._screen import Progress
from phnn._tables import fit_lines, keep_columns
from phnn.conversion import to_dense
from phnn.lab.paper.printed import PRINTED, Printed
from phnn.lab.tables import render
from phnn.models import Network, create_model
from phnn.nn import PHConv2d, PHLinear

NOTE = """\
params: exact count of our network (for SEDnet the convolutional part, as in the paper).
params with biases: the same plus the biases before batch norms, which the paper counts.
multiplications: convolutions and matrix products of the forward pass of one input: 32×32 pixels,
ImageNet 224×224, SEDnet 60 s.
assembly: the multiplications that H = Σ A ⊗ F costs besides, once per forward whatever the batch.
agrees: ours differs from the paper's by less than one unit of its last digit.
reduction: in percent, against the real network of the table (for tab:sed_app that of tab:sed_8c).
storage: of the file that torch.save writes for our network. All storage is in MiB, the paper's too.
"""


@dataclass(frozen=True)
class Row:
    """One network of one table: our sizes beside the paper's.

    Attributes:
        table: The label of the table in the paper.
        model: The name of the network in the paper.
        n: The dimension of the algebra; None for a real network.
        classes: The number of classes.
        params: The number of our parameters.
        params_with_biases: The same with the authors' biases before batch norms.
        multiplications: The multiplications of the forward pass of one input, without assembly;
            None where they were not counted.
        assembly: The multiplications of the assembly of all H, once per forward.
        paper_params: The number of parameters that the paper prints, in millions.
        agrees: Whether the count is within one unit of the paper's last digit.
        reduction: The change of the parameters in percent, where the paper prints one.
        paper_reduction: What the paper prints.
        reduction_agrees: Whether it is within one unit of the paper's last digit.
        storage: The size of the saved file in MiB, where the paper prints one.
        paper_storage: The storage that the paper prints, in MiB.
        storage_agrees: Whether our storage is within one unit of the paper's last digit.
        storage_reduction: The change of the storage in percent, where the paper prints one.
        paper_storage_reduction: What the paper prints.
        storage_reduction_agrees: Whether it is within one unit of the paper's last digit.
        remark: Why the numbers do not agree, or under which assumption they do.
    """

    table: str
    model: str
    n: int | None
    classes: int
    params: int
    params_with_biases: int
    multiplications: int | None
    assembly: int | None
    paper_params: str
    agrees: bool
    reduction: float | None
    paper_reduction: str | None
    reduction_agrees: bool | None
    storage: float | None
    paper_storage: str | None
    storage_agrees: bool | None
    storage_reduction: float | None
    paper_storage_reduction: str | None
    storage_reduction_agrees: bool | None
    remark: str


# columns of the table for a terminal
FIRST = ("table", "model", "n", "params", "paper_params", "agrees")


def derive_rows(
    tables: str = "*", *, work: bool = True, progress: Progress | None = None
) -> list[Row]:
    """Return every row of the paper's tables.

    Args:
        tables: A pattern of the labels wanted, such as "tab:sed_*".
        work: Whether to count multiplications, which takes most of the time.
        progress: Called with what is done, how far, and of how much.
    """
    wanted = [printed for printed in PRINTED if fnmatch.fnmatch(printed.table, tables)]
    if not wanted:
        labels = ", ".join(dict.fromkeys(printed.table for printed in PRINTED))
        raise ValueError(f"only={tables} matches no table of the paper; they are {labels}")
    known = [(p, version, numbers) for p in wanted for version, numbers in p.numbers.items()]
    rows: list[Row] = []
    for printed, version, numbers in known:
        if progress is not None:
            progress("counting networks", len(rows), len(known))
        rows.append(_derive_row(printed, version, numbers, work))
    return rows


def render_rows(rows: Iterable[Row], format: str = "text") -> str:
    """Return rows as a table.

    Args:
        rows: What `derive_rows` returned.
        format: "text" and "markdown" explain the columns; "csv" has full precision.
    """
    names = [field.name for field in fields(Row)]
    if format == "csv":
        return render(names, map(astuple, rows), format) + "\n"
    cells = [[_show(value) for value in astuple(row)] for row in rows]
    head = [name.replace("_", " ") for name in names]
    if format == "text":  # for a terminal: what is compared comes first
        order = [names.index(name) for name in (*FIRST, *(n for n in names if n not in FIRST))]
        head, *cells = keep_columns([[row[i] for i in order] for row in (head, *cells)], len(FIRST))
    note = fit_lines(NOTE) if format == "text" else NOTE
    return f"{render(head, cells, format)}\n\n{note}\n"


def _show(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.2f}"
    return "" if value is None else str(value)


def count_multiplications(model: nn.Module, input: torch.Tensor) -> int:
    """Count the multiplications of convolutions and matrix products in a forward pass.

    The assembly of H is not counted: it happens once for a whole batch, and never in a folded
    network.

    Args:
        model: A network in evaluation mode.
        input: The input, which may be on the meta device.
    """
    folded = to_dense(model)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        folded(input)
    return int(counter.get_total_flops()) // 2  # every multiplication comes with an addition


class Numbers(NamedTuple):
    """What the paper prints for one network, without units."""

    params: str
    reduction: str | None
    storage: str | None
    storage_reduction: str | None


_NUMBERS = re.compile(r"([\d.]+)M(?:\((-\d+)%\))?(?: (\d+)MB(?:\((-\d+)%\))?)?")


def parse_numbers(text: str) -> Numbers:
    """Return the numbers of a cell.

    Example:
        >>> parse_numbers("5.2M(-50%) 20MB(-50%)")
        Numbers(params='5.2', reduction='-50', storage='20', storage_reduction='-50')
    """
    found = _NUMBERS.fullmatch(text)
    assert found is not None, text
    return Numbers(*found.groups())


def _derive_row(printed: Printed, version: str, numbers: str, work: bool) -> Row:
    model, options = printed.model, _version_options(printed, version)
    network = _build(model, options)
    paper = parse_numbers(numbers)
    with_biases = count_with_biases(network)
    whole = _build(model, {**(printed.options if printed.whole is None else printed.whole)})
    storage = _measure(network) / 2**20 if paper.storage else None
    reduction = storage_reduction = None
    if paper.reduction is not None:
        reduction = 100 * (with_biases / count_with_biases(whole) - 1)
    if paper.storage_reduction is not None and storage is not None:
        storage_reduction = 100 * (storage * 2**20 / _measure(whole) - 1)
    learned = [m for m in network.modules() if isinstance(m, PHConv2d | PHLinear)]
    convs = _convolutions(network)
    return Row(
        table=printed.table,
        model=_title(model, version, options),
        n=getattr(convs[0], "n", None),
        classes=network.config["num_classes"],
        params=sum(p.numel() for p in _counted(network).parameters()),
        params_with_biases=with_biases,
        multiplications=_multiplications(network) if work else None,
        assembly=sum(m.A.shape[0] * m.weight.numel() for m in learned) if work else None,
        paper_params=paper.params,
        agrees=agree(with_biases / 1e6, paper.params),
        reduction=reduction,
        paper_reduction=paper.reduction,
        reduction_agrees=_agree(reduction, paper.reduction),
        storage=storage,
        paper_storage=paper.storage,
        storage_agrees=_agree(storage, paper.storage),
        storage_reduction=storage_reduction,
        paper_storage_reduction=paper.storage_reduction,
        storage_reduction_agrees=_agree(storage_reduction, paper.storage_reduction),
        remark=printed.remarks.get(version, ""),
    )


def _version_options(printed: Printed, version: str) -> dict[str, Any]:
    options = dict(printed.options)
    if version.startswith("n="):
        options["n"] = int(version.removeprefix("n="))
    elif version != "real":
        options["algebra"] = version
    return options


def _build(model: str, options: dict[str, Any]) -> Network:
    with torch.device("meta"):
        return create_model(model, **options).eval()


def _convolutions(network: Network) -> list[nn.Conv2d | PHConv2d]:
    return [m for m in network.modules() if isinstance(m, nn.Conv2d | PHConv2d)]


def _counted(network: Network) -> nn.Module:
    """Return the part whose parameters the paper counts: of SEDnet, the convolutions."""
    return network.get_submodule("cnn" if network.config["name"] == "sednet" else "")


def count_with_biases(network: Network) -> int:
    """Return the parameters that the paper counts, with the authors' biases before batch norms.

    Their real, complex and quaternion ResNets have no such biases.
    """
    convs = _convolutions(network)
    count = sum(p.numel() for p in _counted(network).parameters())
    is_resnet = network.config["name"].startswith("resnet")
    if is_resnet and network.config["n"] is None:
        return count
    return count + sum(conv.out_channels for conv in convs)


def _measure(network: Network) -> int:
    """Return the bytes of the file of a network, each kind written once."""
    key = repr(sorted(network.config.items(), key=str))
    if key not in _files:
        _files[key] = measure_file(network)
    return _files[key]


_files: dict[str, int] = {}


def _agree(exact: float | None, printed: str | None) -> bool | None:
    return None if exact is None or printed is None else agree(exact, printed)


def _title(model: str, version: str, options: dict[str, Any]) -> str:
    name = model.replace("resnet", "ResNet").replace("vgg", "VGG").replace("sednet", "SEDnet")
    prefix = (
        "PH" if version.startswith("n=") else "" if version == "real" else f"{version.title()} "
    )
    return prefix + name + (" (s)" if "width_multiplier" in options else "")


def _multiplications(network: Network) -> int:
    channels = network.config["in_channels"]
    if network.config["name"] == "sednet":
        # the cost is proportional to the length of the clip: count one of its 600 output frames
        return 600 * count_multiplications(network, torch.empty(1, channels, 256, 8, device="meta"))
    size = 224 if network.config["num_classes"] == 1000 else 32
    return count_multiplications(network, torch.empty(1, channels, size, size, device="meta"))


def measure_file(network: nn.Module) -> int:
    """Return the bytes of the file that `torch.save` writes.

    Args:
        network: A network, which may be on the meta device.
    """
    state = {
        key: torch.zeros(value.shape, dtype=value.dtype, device="cpu")
        for key, value in network.state_dict().items()
    }
    file = io.BytesIO()
    torch.save(state, file)
    return file.tell()


def agree(exact: float, printed: str) -> bool:
    """Return whether two numbers differ by less than one unit of the last printed digit.

    Args:
        exact: Our number, in the unit of the printed one.
        printed: The number in the paper.

    Example:
        >>> agree(3.649, "3.6"), agree(3.71, "3.6")
        (True, False)
    """
    decimals = len(printed.partition(".")[2])
    return abs(exact - float(printed)) < 0.1**decimals
