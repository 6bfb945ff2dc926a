"""The paper's tables, derived again."""

import csv
import io
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from phnn.lab.paper import sizes
from phnn.lab.paper.printed import PRINTED
from phnn.lab.paper.sizes import Row, agree, count_multiplications, derive_rows, render_rows
from phnn.models import create_model
from phnn.nn import PHConv2d, PHLinear

# the printed numbers that no network that matches the text has
DISAGREE = {
    ("tab:img_class", "Complex VGG19", 2),
    ("tab:img_class_full", "ResNet18", None),
    ("tab:img_class_full", "Complex ResNet18", 2),
    ("tab:img_class_full", "Complex ResNet50", 2),
    ("tab:img_class_full", "PHResNet50", 2),
    ("tab:img_img", "ResNet50", None),
    ("tab:red_real", "ResNet18", None),
}


ROWS = {
    "tab:img_class": 10,
    "tab:img_class_full": 18,
    "tab:img_img": 2,
    "tab:sed_4c": 4,
    "tab:sed_8c": 5,
    "tab:img_class_app2": 10,
    "tab:img_class_app3": 12,
    "tab:red_real": 6,
    "tab:sed_app": 4,
}


# the counts of all rows are quick to test, in test_models; their multiplications are not
@pytest.fixture(
    scope="module",
    params=["tab:img_class", "tab:sed_4c", pytest.param("*", marks=pytest.mark.slow)],
)
def rows(request: pytest.FixtureRequest) -> list[Row]:
    return derive_rows(request.param)


def test_every_row_of_every_table(rows: list[Row]) -> None:
    found = Counter(row.table for row in rows)
    assert found == {table: size for table, size in ROWS.items() if table in found}
    assert set(ROWS) == {printed.table for printed in PRINTED}


def test_rows_equal_the_oracle(rows: list[Row]) -> None:
    with (Path(__file__).parents[2] / "data" / "params.csv").open() as file:
        oracle = {
            (r["table"], r["model"], r["n"], r["classes"]): (r["without_conv_b"], r["official"])
            for r in csv.DictReader(file)
        }
    for row in rows:
        key = (row.table, row.model, str(row.n or ""), str(row.classes))
        assert (str(row.params), str(row.params_with_biases)) == oracle[key], key


def test_agreement(rows: list[Row]) -> None:
    tables = {row.table for row in rows}
    disagree = {(row.table, row.model, row.n) for row in rows if not row.agrees}
    assert disagree == {key for key in DISAGREE if key[0] in tables}
    assert all(row.remark for row in rows if not row.agrees or row.storage_agrees is False)
    # our own count, without the authors' biases, comes to the same verdict
    for row in rows:
        assert agree(row.params / 1e6, row.paper_params) == row.agrees


@pytest.mark.slow
def test_storage() -> None:
    printed = {(row.model, row.n): row for row in derive_rows("tab:img_class_full")}
    assert len(printed) == 18
    disagree = {key for key, row in printed.items() if not row.storage_agrees}
    assert disagree == {("ResNet18", None), ("PHResNet152", 3), ("PHResNet152", 4)}
    for row in printed.values():  # float32, and a little for batch norm statistics and the format
        assert row.params * 4 / 2**20 < row.storage < row.params * 4.1 / 2**20


def count_by_layer(model: nn.Module, input: torch.Tensor) -> int:
    """Count every weight once for each position of its output."""
    total = 0

    def count(layer: Any, _: Any, output: Any) -> None:
        nonlocal total
        if isinstance(layer, nn.GRU):
            positions = output[0][..., 0].numel()
            weights = sum(p.numel() for name, p in layer.named_parameters() if "weight" in name)
        else:
            channel = -1 if isinstance(layer, nn.Linear | PHLinear) else 1
            positions, weights = output.select(channel, 0).numel(), layer.weight.numel()
        total += positions * weights

    layers = nn.Conv2d | nn.Linear | nn.GRU | PHConv2d | PHLinear
    for layer in model.modules():
        if isinstance(layer, layers):
            layer.register_forward_hook(count)
    with torch.no_grad():
        model(input)
    return total


@pytest.mark.parametrize("n", [None, 2])
@pytest.mark.parametrize(
    ("name", "options", "shape"),
    [
        ("resnet20", {}, (1, 3, 32, 32)),
        ("vgg11", {"widths": (4, 4, 4, 4, 4, 4)}, (1, 3, 32, 32)),
        ("sednet", {"in_channels": 4}, (1, 4, 256, 16)),
    ],
)
def test_multiplications(
    name: str, options: dict[str, Any], shape: tuple[int, ...], n: int | None
) -> None:
    with torch.device("meta"):
        model, input = create_model(name, n=n, **options).eval(), torch.empty(shape)
    assert count_multiplications(model, input) == count_by_layer(model, input)


def test_multiplications_of_one_layer() -> None:
    network = nn.Sequential(nn.Conv2d(4, 8, 3))
    assert count_multiplications(network, torch.rand(2, 4, 5, 5)) == 2 * 9 * 8 * 4 * 9


def test_clip_of_sixty_seconds() -> None:
    with torch.device("meta"):
        model = create_model("sednet", in_channels=4).eval()
        half_second = count_multiplications(model, torch.empty(1, 4, 256, 40))
    found = {row.multiplications for row in derive_rows("tab:sed_4c")}
    assert found == {120 * half_second}  # whatever n is


def test_render(rows: list[Row]) -> None:
    table = list(csv.DictReader(io.StringIO(render_rows(rows, "csv"))))
    assert [row["params"] for row in table] == [str(row.params) for row in rows]
    assert table[0]["storage"] == ""
    markdown = render_rows(rows, "markdown").splitlines()
    assert markdown[0].startswith("| table | model | n | classes | params |")
    assert {line.count("|") for line in markdown[: len(rows) + 2]} == {markdown[0].count("|")}
    text = render_rows(rows)
    assert all(f"{row.params:,}" in text for row in rows)
    assert " ".join(sizes.NOTE.split()) in " ".join(text.split())
    assert render_rows([], "csv").count("\n") == 1
    with pytest.raises(ValueError, match=r"unknown format 'html'; known are text, markdown, csv"):
        render_rows(rows, "html")


def test_file_size(tmp_path: Path) -> None:
    model = create_model("resnet20", n=2)
    torch.save(model.state_dict(), tmp_path / "model.pt")
    size = (tmp_path / "model.pt").stat().st_size
    assert sizes.measure_file(model) == pytest.approx(
        size, rel=0.02
    )  # the archive repeats its name
