import pytest
import torch

import phnn
from phnn import algebra
from phnn.algebra import Algebra
from phnn.algebra._elements import read_element


@pytest.mark.parametrize("name", ["complex", "quaternion", "dual", "tessarine", "octonion"])
def test_a_table_gives_the_algebra_that_printed_it(name):
    known = algebra.get(name)
    cells = [row.split()[1:] for row in known.table().splitlines()[1:]]
    found = Algebra.from_table(cells, name=name)
    assert found == known
    assert tuple(found.labels) == tuple(known.labels)


def test_an_algebra_of_ones_own_in_a_layer():
    golden = Algebra.from_table([["1", "g"], ["g", "1 + g"]], name="golden")
    i, j = torch.eye(2)
    assert golden.multiply(j, j).tolist() == [1, 1]
    assert golden.multiply(i, j).tolist() == [0, 1]
    layer = phnn.PHLinear(4, 4, algebra=golden)
    assert layer.A.allclose(golden.structure.float())


@pytest.mark.parametrize(
    ("text", "components"),
    [
        ("0", [0, 0, 0]),
        ("-2", [-2, 0, 0]),
        ("1", [1, 0, 0]),
        ("- j", [0, 0, -1]),
        ("1 - 2i + 0.5*j", [1, -2, 0.5]),
        ("3·i+i", [0, 4, 0]),
        ("1e-3j", [0, 0, 1e-3]),
    ],
)
def test_elements(text, components):
    assert read_element(text, ["1", "i", "j"]) == components


@pytest.mark.parametrize(
    ("table", "labels", "message"),
    [
        ([["1", "i"]], None, "as many columns as rows"),
        ([["1", "i"], ["i", "q"]], None, "'q' is no multiple of a basis element; they are 1, i"),
        ([["1", "i"], ["i", ""]], None, "an empty cell is no element"),
        ([["0", "k"], ["-q", "0"]], None, "'-q' is no multiple"),
        ([["0", "-1"], ["1", "0"]], None, "otherwise give labels="),
        ([["i", "j"], ["j", "2"]], "ij", "'2' is no multiple of a basis element"),
        ([["1", "i"], ["i", "-1"]], ["1"], "2 labels"),
    ],
)
def test_tables_that_are_none(table, labels, message):
    with pytest.raises(ValueError, match=message):
        Algebra.from_table(table, labels=labels)
