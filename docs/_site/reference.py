"""The reference: a page for each public module, with every name of its `__all__`.

A name that several modules offer is described once, under the shortest of them: `phnn.PHConv2d`,
not `phnn.nn.PHConv2d`. The pages are written to `docs/api` before each build.
"""

from __future__ import annotations

import inspect
import pkgutil
import re
import reprlib
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from sphinx.application import Sphinx
from sphinx.util import logging

import phnn

logger = logging.getLogger(__name__)
FOLDER = Path(__file__).parents[1] / "api"
# the command line is described by its own help; parts of a report are no interface
LARGEST_TABLE = 8  # rows of a multiplication table that fit on a page
INTERNAL = ("phnn.cli", "phnn.lab.tasks.images.report", "phnn.lab.tasks.sound.report")


def list_modules() -> list[str]:
    """Return the public modules: packages with `__all__`, and modules that a package offers."""
    found = ["phnn"]
    for entry in pkgutil.walk_packages(phnn.__path__, "phnn."):
        parent, _, name = entry.name.rpartition(".")
        if any(part.startswith("_") for part in entry.name.split(".")):
            continue
        if entry.name.startswith(INTERNAL) or not (entry.ispkg or parent in found):
            continue
        if not entry.ispkg:
            package = import_module(parent)
            if name not in package.__all__ or not isinstance(getattr(package, name), ModuleType):
                continue
        if hasattr(import_module(entry.name), "__all__"):
            found.append(entry.name)
    return found


def place_names(modules: list[str]) -> dict[str, dict[str, str]]:
    """Return where each name of each module is described: by module and name, the full name."""
    homes: dict[int, str] = {}
    places: dict[str, dict[str, str]] = {}
    for module in sorted(modules, key=lambda name: (name.count("."), modules.index(name))):
        places[module] = {}
        for name in import_module(module).__all__:
            value = getattr(import_module(module), name)
            if isinstance(value, ModuleType):
                places[module][name] = value.__name__
                continue
            full = f"{module}.{name}"
            # numbers and strings may be equal by chance; only code has an identity
            is_code = inspect.isclass(value) or inspect.isroutine(value)
            places[module][name] = homes.setdefault(id(value), full) if is_code else full
    return {module: places[module] for module in modules}


def render_page(module: str, places: dict[str, str]) -> str:
    """Return the page of a module."""
    summary = inspect.getdoc(import_module(module)) or ""
    lines = [f"# {module}", "", "```{eval-rst}", f".. py:module:: {module}"]
    lines += ["   :no-index-entry:", "", *summary.splitlines(), ""]
    elsewhere = []
    for name, full in places.items():
        value = getattr(import_module(module), name)
        if isinstance(value, ModuleType):
            elsewhere.append(f":doc:`{full} <{full}>`")
        elif full != f"{module}.{name}":
            elsewhere.append(f":py:obj:`{full}`")
    if elsewhere:
        lines += [f"Also here: {', '.join(elsewhere)}.", ""]
    for name, full in sorted(places.items(), key=lambda place: _rank(module, place[0])):
        value = getattr(import_module(module), name)
        if full == f"{module}.{name}" and not isinstance(value, ModuleType):
            lines += [*_describe(full, name, value), ""]
    return "\n".join([*lines, "```", ""])


def _rank(module: str, name: str) -> int:
    """Verbs come first, then nouns, then constants."""
    value = getattr(import_module(module), name)
    return 0 if inspect.isroutine(value) else 1 if inspect.isclass(value) else 2


def _describe(full: str, name: str, value: Any) -> list[str]:
    if inspect.isclass(value):
        return [f".. autoclass:: {full}", "   :members:"]
    if inspect.isroutine(value):
        return [f".. autofunction:: {full}"]
    lines = [f".. py:data:: {name}", f"   :type: {type(value).__name__}", ""]
    if isinstance(value, phnn.algebra.Algebra):
        table = value.table() if value.n <= LARGEST_TABLE else repr(value)
        return [*lines, "   ::", "", *(f"      {line}" for line in table.splitlines())]
    return [*lines, f"   ``{reprlib.repr(value)}``"]


def write_pages(app: Sphinx, *_: object) -> None:
    """Write the pages that changed, and remove those of modules that are gone."""
    modules = list_modules()
    places = place_names(modules)
    FOLDER.mkdir(exist_ok=True)
    for module in modules:
        file = FOLDER / f"{module}.md"
        page = render_page(module, places[module])
        if not file.exists() or file.read_text(encoding="utf-8") != page:
            file.write_text(page, encoding="utf-8")
    for file in FOLDER.glob("*.md"):
        if file.stem not in modules:
            file.unlink()


def escape_marks(
    app: Sphinx, kind: str, name: str, value: object, options: object, lines: list[str]
) -> None:
    """Keep stars and bars of a docstring as they are: outside of formulas they mean themselves."""
    formula: int | None = None  # the indentation of the formula that a line is in
    for number, line in enumerate(lines):
        indent = len(line) - len(line.lstrip())
        if formula is not None and line.strip() and indent <= formula:
            formula = None
        if line.lstrip().startswith(".. math::"):
            formula = indent
        if formula is None and not line.lstrip().startswith((">>>", "...", "* ", "**", "*a")):
            parts = re.split(r"(`[^`]*`)", line)
            parts[::2] = [re.sub(r"([*|])", r"\\\1", part) for part in parts[::2]]
            lines[number] = "".join(parts)


def skip_aliases(
    app: Sphinx, kind: str, name: str, value: object, skip: bool, options: object
) -> bool | None:
    """Leave out attributes that are classes, such as the torch class of a layer."""
    return True if kind == "class" and inspect.isclass(value) else None


def check_names(app: Sphinx, env: Any) -> None:
    """Warn of public names that the site does not describe."""
    described = env.domains["py"].objects
    for module, places in place_names(list_modules()).items():
        for name, full in places.items():
            if full not in described:
                logger.warning("%s.%s is public, but %s is not described", module, name, full)


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect to the build."""
    app.connect("config-inited", write_pages)
    app.connect("autodoc-process-docstring", escape_marks, priority=100)  # before napoleon
    app.connect("autodoc-skip-member", skip_aliases)
    app.connect("env-check-consistency", check_names)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
