"""The package as a user meets it."""

import subprocess
import sys

import pytest

import phnn


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout


def test_every_public_name_exists():
    for module in (phnn, phnn.algebra, phnn.functional, phnn.init, phnn.nn):
        for name in module.__all__:
            assert hasattr(module, name), f"{module.__name__}.{name}"


def test_import_is_light():
    heavy = {"torch", "numpy", "safetensors", "lightning", "jsonargparse", "yaml", "matplotlib"}
    loaded = run("import sys, phnn; print(*sys.modules)").split()
    assert not heavy & set(loaded)


def test_the_library_needs_no_extra():
    extras = {"lightning", "jsonargparse", "datasets", "sklearn", "matplotlib", "yaml", "PIL"}
    code = "for name in set(phnn.__all__) - {'lab'}: getattr(phnn, name)"
    loaded = run(f"import sys, phnn\n{code}\nprint(*sys.modules)").split()
    assert "torch" in loaded
    assert not extras & set(loaded)


def test_unknown_names():
    with pytest.raises(AttributeError, match="module 'phnn' has no attribute 'PHConv4d'"):
        _ = phnn.PHConv4d
    assert set(phnn.__all__) <= set(dir(phnn))


def test_the_quaternion_table_prints():
    assert "k   k   j  -i  -1" in run("import phnn; print(phnn.algebra.quaternion.table())")
