"""What `make dist` builds: complete, without invented addresses, and ready for a clean machine."""

import email
import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

import phnn

ROOT = Path(__file__).parents[1]
README, INDEX = ROOT / "README.md", ROOT / "docs" / "index.md"
# what a reader of the quickstarts has
GIVEN = """
import torch
from torch import nn


def make_model():
    layers = [nn.Conv2d(3, 16, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(64, 8))


torch.manual_seed(0)
model, x = make_model().eval(), torch.randn(64, 3, 8, 8)
"""


def run(*command, cwd, **kwargs):
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        **kwargs,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def read_blocks(page):
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    assert len(blocks) == 2
    return blocks


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    """The archive and the wheel, built as `make dist` builds them."""
    pytest.importorskip("build")
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--outdir", folder, cwd=ROOT)
    return folder


@pytest.mark.slow
class TestDist:
    def test_the_wheel_is_complete(self, dist):
        (wheel,) = dist.glob("*.whl")
        names = set(zipfile.ZipFile(wheel).namelist())
        sources = {
            path.relative_to(ROOT / "src").as_posix()
            for pattern in ("*.py", "*.yaml", "*.typed", "*.css", "*.html", "*.j2")
            for path in (ROOT / "src").rglob(pattern)
        }
        assert sources <= names
        assert not [name for name in names if name.startswith(("tests", "docs"))]

    def test_the_metadata_invent_nothing(self, dist):
        (wheel,) = dist.glob("*.whl")
        archive = zipfile.ZipFile(wheel)
        (name,) = [name for name in archive.namelist() if name.endswith("METADATA")]
        metadata = email.message_from_bytes(archive.read(name))
        assert metadata["Version"] == phnn.__version__
        assert metadata["License-Expression"] == "MIT"
        assert metadata.get_all("Project-URL") is None  # there is no public repository yet
        assert metadata["Home-page"] is None
        for extra in ("train", "sound", "export", "hub", "docs", "dev"):
            assert extra in metadata.get_all("Provides-Extra")
        pictures = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", metadata.get_payload())
        assert pictures
        assert all((ROOT / picture).exists() for picture in pictures)  # relative

    def test_the_archive_has_the_pages(self, dist):
        (archive,) = dist.glob("*.tar.gz")
        with tarfile.open(archive) as file:
            names = {name.partition("/")[2] for name in file.getnames()}
        assert {
            "docs/index.md",
            "docs/conf.py",
            "docs/_site/navigation.yaml",
            "CHANGELOG.md",
        } <= names
        assert {"docs/notebooks/shrink.ipynb", "CONTRIBUTING.md", "results/README.md"} <= names
        # what `make test` needs
        assert {
            "tools/claims.py",
            ".ci/check_release",
            "results/shrink.csv",
            "tests/conftest.py",
        } <= names
        assert "docs/api/phnn.md" not in names  # written by each build

    def test_the_quickstarts_run_in_a_clean_environment(self, dist, tmp_path):
        (wheel,) = dist.glob("*.whl")
        venv.create(tmp_path / "venv", with_pip=True)
        folder = tmp_path / "venv" / ("Scripts" if sys.platform == "win32" else "bin")
        python = folder / "python"
        pinned = ["-c", ROOT / "constraints.txt"] if sys.version_info[:2] == (3, 11) else []
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *pinned]
        run(*pip, wheel, cwd=tmp_path)
        # the library alone first: it must not need an extra
        assert f"phnn {phnn.__version__}" in run(folder / "phnn", "--version", cwd=tmp_path)
        run(python, "-c", read_blocks(INDEX)[0], cwd=tmp_path)
        run(*pip, f"{wheel}[train,export]", cwd=tmp_path)
        for page in (README, INDEX):
            run(python, "-c", GIVEN + "".join(read_blocks(page)), cwd=tmp_path)
        assert "digits" in run(folder / "phnn", "train", "--help", cwd=tmp_path)


def test_the_release_check(tmp_path):
    copy = tmp_path / ".ci" / "check_release"
    copy.parent.mkdir()
    copy.write_text((ROOT / ".ci" / "check_release").read_text())
    (tmp_path / "src" / "phnn").mkdir(parents=True)
    (tmp_path / "src" / "phnn" / "__init__.py").write_text('__version__ = "0.1.0"\n')
    (tmp_path / "CHANGELOG.md").write_text("## [Unreleased]\n")
    done = subprocess.run(
        [sys.executable, copy, "v0.2.0"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "the tag is v0.2.0, but the package has version 0.1.0" in done.stderr
    assert 'no heading "## [0.1.0]' in done.stderr
    assert "dist has no phnn-0.1.0.tar.gz" in done.stderr
    (tmp_path / "CHANGELOG.md").write_text("## [0.1.0] - 2026-11-18\n")
    (tmp_path / "dist").mkdir()
    for name in ("phnn-0.1.0-py3-none-any.whl", "phnn-0.1.0.tar.gz"):
        (tmp_path / "dist" / name).touch()
    run(sys.executable, copy, "v0.1.0", cwd=tmp_path)
