"""The documentation site: its navigation, its notebooks, and every page in a browser."""

import importlib.util
import json
import pkgutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import yaml

import phnn
from helpers.browser import BROWSER, open_all, run
from helpers.links import find_broken_links
from phnn.lab.packaged import list_comparisons, list_recipes

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


def load_extension(name):
    pytest.importorskip("sphinx")
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / "_site" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class TestNavigation:
    def test_the_file_names_pages_that_exist(self):
        make = load_extension("navigation").Navigation
        sections = yaml.safe_load((ROOT / "docs/_site/navigation.yaml").read_text())
        pages = [
            *ROOT.glob("docs/*.md"), *ROOT.glob("docs/*/*.md"), *ROOT.glob("docs/*/*.ipynb"),
            *ROOT.glob("results/*.md"), *ROOT.glob("*.md"), ROOT / "benchmarks/README.md",
        ]  # fmt: skip
        found = {page.relative_to(ROOT).with_suffix("").as_posix() for page in pages}
        found |= {"docs/api/phnn"}  # written when the site is built
        navigation = make(found - {"docs/index"}, sections)
        placed = {page for pages in navigation.sections.values() for page in pages}
        placed |= {page for pages in navigation.below.values() for page in pages}
        assert {page for page in found if page.startswith("docs/")} - placed == {"docs/index"}

    def test_new_pages_find_a_place(self):
        make = load_extension("navigation").Navigation
        sections = {"Start": ["docs/a", "docs/own-*"], "Below": [{"docs/b": ["docs/b/*"]}]}
        found = {"docs/a", "docs/b", "docs/b/x", "docs/own-hat", "docs/new", "docs/far/away"}
        navigation = make(found, sections)
        assert navigation.sections == {
            "Start": ["docs/a", "docs/own-hat"], "Below": ["docs/b"], "More": ["docs/new"]
        }  # fmt: skip
        assert navigation.below == {"docs/b": ["docs/b/x"]}
        # docs/far/away has no place: Sphinx warns of it, and warnings are errors

    @pytest.mark.parametrize(
        ("pages", "message"),
        [(["docs/a", "docs/c"], "docs/c, which is no page"), (["docs/a", "docs/a"], "twice")],
    )
    def test_mistakes(self, pages, message):
        with pytest.raises(ValueError, match=message):
            load_extension("navigation").Navigation({"docs/a"}, {"Start": pages})


def test_every_public_name_has_a_place_in_the_reference():
    reference = load_extension("reference")
    modules = reference.list_modules()
    # by another way than that of the extension: what `phnn` offers, and packages with `__all__`
    packages = [
        entry.name
        for entry in pkgutil.walk_packages(phnn.__path__, "phnn.")
        if entry.ispkg and not entry.name.startswith(reference.INTERNAL)
    ]
    public = {name for name in packages if hasattr(import_module(name), "__all__")}
    assert {"phnn", "phnn.algebra", "phnn.init", "phnn.testing"} | public == set(modules)
    places = reference.place_names(modules)
    assert places["phnn.nn"]["PHConv2d"] == "phnn.PHConv2d"
    for module in modules:
        assert set(places[module]) == set(import_module(module).__all__)
        page = reference.render_page(module, places[module])
        for name, full in places[module].items():
            assert f" {full}\n" in page or f"`{full}" in page or f"py:data:: {name}\n" in page


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_hold_no_outputs(path):
    text = path.read_text(encoding="utf-8")
    cells = json.loads(text)["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert code
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in code)
    assert "".join(cells[0]["source"]).startswith("# ")


def test_the_recipes_page_names_all():
    page = (ROOT / "docs" / "recipes.md").read_text()
    for name in [*list_recipes(), *list_comparisons()]:
        network, _, dataset = name.rpartition("-")
        crossed = f"`{network}`" in page and f"`{dataset}`" in page  # NETWORK-DATASET
        assert f"`{name}`" in page or crossed, name


def test_there_are_five_notebooks():
    assert {path.stem for path in NOTEBOOKS} >= {
        "quaternions", "images", "shrink", "sound", "algebras"
    }  # fmt: skip


def test_broken_links_are_found(tmp_path):
    (tmp_path / "a.html").write_text('<h1 id="top">A</h1><a href="b.html#here">B</a>')
    (tmp_path / "b.html").write_text('<p id="here"><a href="a.html?x=1#top">A</a></p>')
    assert find_broken_links(tmp_path) == []
    (tmp_path / "b.html").write_text('<img src="c.png"><a href="https://example.org/x">X</a>')
    assert find_broken_links(tmp_path) == [
        "a.html → b.html#here: no such place on the page",
        "b.html → c.png: no such file",
    ]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, built as `make docs` builds it, notebooks included."""
    pytest.importorskip("myst_nb")
    built = tmp_path_factory.mktemp("site")
    command = [
        sys.executable, "-m", "sphinx", "--fail-on-warning", "--keep-going", "--quiet",
        "-c", "docs", "-d", built / "state", "-b", "html", ".", built / "html",
    ]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return built / "html"


@pytest.mark.slow
class TestBuilt:
    def test_every_public_name_is_described(self, site):
        from sphinx.util.inventory import InventoryFile

        with (site / "objects.inv").open("rb") as file:
            inventory = InventoryFile.load(file, "", lambda base, path: path)
        described = {
            name for kind, names in inventory.items() if kind[:3] == "py:" for name in names
        }
        assert {f"phnn.{name}" for name in phnn.__all__} <= described

    def test_notebooks_were_executed(self, site):
        for path in NOTEBOOKS:
            page = (site / "docs" / "notebooks" / f"{path.stem}.html").read_text()
            assert "cell_output" in page
            assert "Traceback" not in page

    def test_no_link_inside_is_broken(self, site):
        assert find_broken_links(site) == []

    def test_nothing_comes_from_the_network(self, site):
        for page in site.rglob("*.html"):
            text = page.read_text()
            for mark in ('<script src="http', '<link rel="stylesheet" href="http', "cdn."):
                assert mark not in text, f"{page.name} has {mark}"

    @pytest.mark.skipif(BROWSER is None, reason="no chromium or google-chrome here")
    @pytest.mark.parametrize("width", [390, 1280])  # a phone, a desk
    def test_every_page_in_a_browser(self, site, tmp_path, width):
        pages = sorted(site.rglob("*.html"))
        pages = [page for page in pages if page.parent != site or page.name != "index.html"]
        seen, console = open_all(pages, tmp_path, width=width)
        assert len(seen) == len(pages)
        for page in seen:
            assert not page["errors"], page
            assert not page["missing"], page
            assert page["wide"] <= 0, page
            assert page["title"]
            assert page["text"] > 100, page
        assert not [line for line in console if "Uncaught" in line or "SyntaxError" in line]

    @pytest.mark.skipif(BROWSER is None, reason="no chromium or google-chrome here")
    def test_search_works_from_disk(self, site, tmp_path):
        url = (site / "search.html").as_uri() + "?q=distillation"
        shown, _ = run(url, tmp_path, "--virtual-time-budget=10000")
        assert "guides/fine-tune.html" in shown
