"""The sizes of the paper's networks, derived from our networks.

The authors' code gives a bias to the convolutions of VGG and SEDnet and to all PH convolutions. The
batch norm that follows cancels it, but the paper counts it. Our networks have no such bias, so each
row holds both counts.
"""

import fnmatch
import io
from collections.abc import Iterable
from dataclasses import astuple, dataclass, fields
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from phnn._tables import keep_columns
from phnn.conversion import to_dense
from phnn.lab.paper.printed import PRINTED, Printed
from phnn.lab.tables import render
from phnn.models import Network, create_model
from phnn.nn import PHConv2d

NOTE = """\
params: exact count of our network (for SEDnet the convolutional part, as in the paper).
params with biases: the same plus the biases before batch norms, which the paper counts.
multiplications: forward pass of one input: 32×32 pixels, ImageNet 224×224, SEDnet 60 s.
agrees: params with biases differ from the paper by less than one unit of its last digit.
storage: MiB of the file that torch.save writes for our network.
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
        multiplications: The multiplications of the forward pass of one input.
        paper_params: The number of parameters that the paper prints.
        agrees: Whether the count is within one unit of the paper's last digit.
        storage: The size of the saved file in MiB, where the paper prints one.
        paper_storage: The storage that the paper prints.
        storage_agrees: Whether our storage is within one unit of the paper's last digit.
        remark: Why the numbers do not agree, or under which assumption they do.
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


# columns of the table for a terminal
FIRST = ("table", "model", "n", "params", "paper_params", "agrees")


def derive_rows(tables: str = "*") -> list[Row]:
    """Return every row of the paper's tables.

    Args:
        tables: A pattern of the labels wanted, such as "tab:sed_*".
    """
    wanted = [printed for printed in PRINTED if fnmatch.fnmatch(printed.table, tables)]
    if not wanted:
        known = ", ".join(dict.fromkeys(printed.table for printed in PRINTED))
        raise ValueError(f"only={tables} matches no table of the paper; they are {known}")
    return [
        _derive_row(printed, version, numbers)
        for printed in wanted
        for version, numbers in printed.numbers.items()
    ]


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
    table = render(head, cells, format)
    return f"{table}\n\n{NOTE}\n"


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


def _derive_row(printed: Printed, version: str, numbers: str) -> Row:
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
    paper_params, _, paper_storage = numbers.partition(" ")
    storage = measure_file(network) / 2**20 if paper_storage else None
    return Row(
        table=printed.table,
        model=_title(model, version, options),
        n=getattr(convs[0], "n", None),
        classes=network.config["num_classes"],
        params=params,
        params_with_biases=with_biases,
        multiplications=_multiplications(network),
        paper_params=paper_params,
        agrees=agree(with_biases / 1e6, paper_params),
        storage=storage,
        paper_storage=paper_storage or None,
        storage_agrees=None if storage is None else agree(storage, paper_storage),
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
        >>> agree(3.649, "3.6M"), agree(3.71, "3.6M")
        (True, False)
    """
    number = printed.rstrip("MB")
    decimals = len(number.partition(".")[2])
    return abs(exact - float(number)) < 0.1**decimals
