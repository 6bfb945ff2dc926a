"""The tables of the paper, derived again from the built networks.

The authors' code gives the convolutions of VGG and SEDnet, and all of its PH convolutions, a bias
that the batch norm behind them cancels, and the paper counts it. Our networks have none, so each
row holds both counts.
"""

import csv
import fnmatch
import io
from collections.abc import Iterable
from dataclasses import astuple, dataclass, fields
from typing import Any

import torch
from torch import nn

from phnn.lab.paper.printed import PRINTED, Printed
from phnn.models._network import Network, pick
from phnn.models.registry import create_model
from phnn.nn import PHConv2d, PHLinear

Layer = nn.Conv2d | nn.Linear | nn.GRU | PHConv2d | PHLinear
NOTE = """\
params: exact count of our network (of SEDnet the convolutional part, as in the paper).
params with biases: plus those that the authors' code has before batch norms; the paper counts them.
multiplications: of the forward pass of one input: 32×32 pixels, ImageNet 224×224, SEDnet 60 s.
agrees: params with biases and the paper differ by less than one unit of the paper's last digit.
storage: MiB of the file that torch.save writes for our network.
"""


@dataclass(frozen=True)
class Row:
    """One network of one table: ours beside the paper's.

    Attributes:
        table: the table's label in the paper.
        model: the network as the paper calls it.
        n: dimension of the algebra; None for a real network.
        classes: number of classes.
        params: number of our parameters.
        params_with_biases: the same with the authors' biases before batch norms.
        multiplications: of the forward pass of one input.
        paper_params: what the paper prints.
        agrees: whether the count is within one unit of the paper's last digit.
        storage: size of the saved file in MiB, where the paper prints one.
        paper_storage: what the paper prints.
        storage_agrees: whether that is within one unit of the paper's last digit.
        remark: why it does not agree, or under which reading it does.
    """

    table: str
    model: str
    n: int | None
    classes: int
    params: int
    params_with_biases: int
    multiplications: int
    paper_params: str
    agrees: bool
    storage: float | None
    paper_storage: str | None
    storage_agrees: bool | None
    remark: str


def rows(tables: str = "*") -> list[Row]:
    """Derive every row of the paper's tables.

    Args:
        tables: pattern of the labels wanted, such as "tab:sed_*".
    """
    return [
        _row(printed, version, figures)
        for printed in PRINTED
        if fnmatch.fnmatch(printed.table, tables)
        for version, figures in printed.figures.items()
    ]


def render(rows: Iterable[Row], format: str = "text") -> str:
    """Write rows as a table.

    Args:
        rows: what `rows()` returned.
        format: "text", "markdown" or "csv".
    """
    return pick("format", format, {"text": _text, "markdown": _markdown, "csv": _csv})(list(rows))


def count_multiplications(model: nn.Module, input: torch.Tensor) -> int:
    """Count the multiplications of convolutions, linear layers and GRUs in a forward pass.

    Assembling a hypercomplex weight is left out: it happens once for a whole batch, and never in a
    folded network.

    Args:
        model: any network of these layers, without groups.
        input: its input; the meta device is enough.
    """
    total = 0

    def count(layer: Layer, _: Any, output: Any) -> None:
        nonlocal total
        if isinstance(layer, nn.GRU):
            positions = output[0][..., 0].numel()
            weights = sum(p.numel() for name, p in layer.named_parameters() if "weight" in name)
        else:
            channel = -1 if isinstance(layer, nn.Linear | PHLinear) else 1
            positions = output.select(channel, 0).numel()
            weights = layer.weight.numel()
        total += positions * weights

    hooks = [m.register_forward_hook(count) for m in model.modules() if isinstance(m, Layer)]
    try:
        with torch.no_grad():
            model(input)
    finally:
        for hook in hooks:
            hook.remove()
    return total


def _row(printed: Printed, version: str, figures: str) -> Row:
    model, options = printed.model, dict(printed.options)
    learned = version.startswith("n=")
    if learned:
        options["n"] = int(version.removeprefix("n="))
    elif version != "real":
        options["algebra"] = version
    with torch.device("meta"):
        network = create_model(model, **options).eval()

    convs = [m for m in network.modules() if isinstance(m, nn.Conv2d | PHConv2d)]
    counted = network.get_submodule("cnn" if model == "sednet" else "")
    params = sum(p.numel() for p in counted.parameters())
    biases = sum(conv.out_channels for conv in convs)
    with_biases = params + biases if learned or not model.startswith("resnet") else params
    paper_params, _, paper_storage = figures.partition(" ")
    storage = _file_size(network) / 2**20 if paper_storage else None
    return Row(
        table=printed.table,
        model=_title(model, version, options),
        n=getattr(convs[0], "n", None),
        classes=network.config["num_classes"],
        params=params,
        params_with_biases=with_biases,
        multiplications=_multiplications(network),
        paper_params=paper_params,
        agrees=_agrees(with_biases / 1e6, paper_params),
        storage=storage,
        paper_storage=paper_storage or None,
        storage_agrees=None if storage is None else _agrees(storage, paper_storage),
        remark=printed.remarks.get(version, ""),
    )


def _title(model: str, version: str, options: dict[str, Any]) -> str:
    name = model.replace("resnet", "ResNet").replace("vgg", "VGG").replace("sednet", "SEDnet")
    prefix = (
        "PH" if version.startswith("n=") else "" if version == "real" else f"{version.title()} "
    )
    return prefix + name + (" (s)" if "width_multiplier" in options else "")


def _multiplications(network: Network) -> int:
    channels = network.config["in_channels"]
    if network.config["name"] == "sednet":
        # its cost is proportional to the length of the clip: one of 600 output frames is enough
        return 600 * count_multiplications(network, torch.empty(1, channels, 256, 8, device="meta"))
    size = 224 if network.config["num_classes"] == 1000 else 32
    return count_multiplications(network, torch.empty(1, channels, size, size, device="meta"))


def _file_size(network: nn.Module) -> int:
    """Bytes of the file that `torch.save` writes; the values of the parameters do not matter."""
    state = {
        key: torch.zeros(value.shape, dtype=value.dtype, device="cpu")
        for key, value in network.state_dict().items()
    }
    file = io.BytesIO()
    torch.save(state, file)
    return file.tell()


def _agrees(exact: float, printed: str) -> bool:
    """Whether the two differ by less than one unit of the last printed digit."""
    figure = printed.rstrip("MB")
    decimals = len(figure.partition(".")[2])
    return abs(exact - float(figure)) < 0.1**decimals


def _csv(rows: list[Row]) -> str:
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(field.name for field in fields(Row))
    writer.writerows(astuple(row) for row in rows)
    return file.getvalue()


def _markdown(rows: list[Row]) -> str:
    lines = ["| " + " | ".join(cells) + " |" for cells in _cells(rows)]
    lines.insert(1, "|" + "---|" * len(fields(Row)))
    return "\n".join([*lines, "", NOTE]) + "\n"


def _text(rows: list[Row]) -> str:
    cells = _cells(rows)
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in cells]
    return "\n".join([*lines, "", NOTE]) + "\n"


def _cells(rows: list[Row]) -> list[list[str]]:
    """The head of the table, then its rows, for people to read."""
    head = [field.name.replace("_", " ") for field in fields(Row)]
    return [head, *([_show(value) for value in astuple(row)] for row in rows)]


def _show(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.2f}"
    return "" if value is None else str(value)
