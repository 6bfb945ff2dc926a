"""The package as a user meets it."""

import subprocess
import sys

import phnn


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout


def test_every_public_name_exists():
    for module in (phnn, phnn.algebra, phnn.functional, phnn.init, phnn.nn):
        for name in module.__all__:
            assert hasattr(module, name), f"{module.__name__}.{name}"


def test_import_brings_in_the_core_alone():
    heavy = ["lightning", "jsonargparse", "datasets", "sklearn", "matplotlib", "yaml", "PIL"]
    loaded = run("import sys, phnn; print(*sys.modules)").split()
    assert not set(heavy) & set(loaded)


def test_the_quaternion_table_prints():
    assert "k   k   j  -i  -1" in run("import phnn; print(phnn.algebra.quaternion.table())")
