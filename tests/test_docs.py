"""The pages: their Python runs as written, their links lead somewhere, their commands exist."""

import doctest
import importlib
import re
import textwrap
from pathlib import Path

import pytest
import torch
from torch import nn

import phnn
from phnn.cli import LAB, LIBRARY
from phnn.forms import Source
from phnn.testing import assert_close

ROOT = Path(__file__).parents[1]
GUIDES = sorted((ROOT / "docs" / "guides").glob("*.md"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *GUIDES]
# these have tests of their own, beside what they are about
TESTED_ELSEWHERE = ("own-task.md", "tutorial.md")
# before a block that cannot run here: it needs what we do not have, or several processes
SKIP = r"<!-- (?:not run|run by tests/nn/test_sharding\.py) -->\n"


def read_blocks(page, language):
    """Return the fenced blocks of a page in one language, without those marked to be skipped."""
    pattern = rf"^({SKIP})?```{language}\n(.*?)^```"
    found = re.findall(pattern, page.read_text(), re.DOTALL | re.MULTILINE)
    return [code for skip, code in found if not skip]


def make_model():
    return nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(64, 8)
    )


RUN = [page for page in PAGES if page.name not in TESTED_ELSEWHERE]


@pytest.mark.parametrize("page", RUN, ids=lambda page: page.name)
def test_python_runs_as_written(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    # what a reader has: a model, a function that makes it, and inputs
    names = {"make_model": make_model, "model": make_model().eval(), "x": torch.randn(64, 3, 8, 8)}
    for number, code in enumerate(read_blocks(page, "python")):
        exec(compile(code, f"{page.name}, block {number}", "exec"), names)
    session = "\n".join(read_blocks(page, "pycon"))
    test = doctest.DocTestParser().get_doctest(session, {}, page.name, str(page), 0)
    assert doctest.DocTestRunner().run(test).failed == 0


def test_the_form_of_the_architecture_page(tmp_path, monkeypatch):
    page = (ROOT / "docs" / "architecture.md").read_text()
    (code,) = re.findall(r"^   ```python\n(.*?)^   ```", page, re.DOTALL | re.MULTILINE)
    (tmp_path / "matmul.py").write_text(textwrap.dedent(code))
    monkeypatch.syspath_prepend(tmp_path)
    kind = importlib.import_module("matmul").Matmul
    source = Source(phnn.PHConv2d(8, 4, 1, n=4))
    x = torch.randn(2, 8, 3, 3)
    for channels_last in (False, True):
        (form,) = kind.variants(source, channels_last)
        assert_close(form.build(source)(x), source.layer(x))
    assert not list(kind.variants(Source(phnn.PHConv2d(8, 4, 3, n=4)), False))


def anchors(page):
    """Return the anchors of a page, as GitHub makes them from its headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}


LINKED = [
    *PAGES,
    *(ROOT / name for name in ("CHANGELOG.md", "CONTRIBUTING.md", "CODE_OF_CONDUCT.md")),
    *(ROOT / name for name in ("benchmarks/README.md", "results/README.md")),
    *sorted((ROOT / "results").glob("*.md")),
]


@pytest.mark.parametrize("page", LINKED, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    links = re.findall(r"\]\(([^)\s]+)\)", page.read_text())
    for link in links:
        if link.startswith(("http://", "https://")):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), f"{link} does not exist"
        assert not anchor or anchor in anchors(target), f"{target.name} has no heading #{anchor}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_exist(page):
    commands = re.findall(r"(?:^\$ |`)phnn ([a-z]+)", page.read_text(), re.MULTILINE)
    assert set(commands) <= {*LIBRARY, *LAB}


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 130


def test_each_promise_names_a_test_that_exists():
    page = (ROOT / "docs" / "reliability.md").read_text()
    file = known = ""
    for path, function in re.findall(r"`(tests/[\w/]+\.py)?(?:::)?(test_\w+)?`", page):
        if path:
            file, known = path, (ROOT / path).read_text()
        assert f"def {function}" in known, f"{file} has no {function}"  # of the file before it
    assert file
