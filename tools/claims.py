"""Check that the numbers on our pages are those of the result files: make claims.

Three marks, HTML comments that readers do not see:

- `82.0<!-- claim FILE: [variant=real].accuracy -->` after a number. FILE lies in results/ or in the
  repository. `[key=value; key=value].column` names one record of a CSV file, of the `table` of a
  results.json, or of the first table of a Markdown page with these columns. Two of them with ` / `
  between are a ratio, and ` * 100` makes percent.
- `<!-- claims FILE -->` before a table or paragraph: all its numbers are in FILE. The numbers of a
  row of a table are in one record, or with `<!-- claims FILE by KEY -->` in records of one KEY.
- `<!-- no claims: REASON -->` before a block whose numbers are no results of ours.

`<!-- record: COMMAND -->` on a page says that the page itself is what the command wrote; then
nothing else on it needs a mark.

A number looks like a result when it has decimals or is followed by %, times or points. On README.md
and on the pages of results/, such a number without a mark is a mistake.
"""

from __future__ import annotations

import csv
import json
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results"
STRICT = [ROOT / "README.md", *sorted(RESULTS.glob("*.md"))]  # here every result needs a mark
GUIDES = ROOT / "docs" / "guides"
PAGES = [*STRICT, *sorted((ROOT / "docs").glob("*.md")), *sorted(GUIDES.glob("*.md"))]

INLINE = re.compile(r"(-?[\d,]*\.?\d+)( ?%)?\**<!-- claim ([^:\s]+): (.*?) -->")
BLOCK = re.compile(r"<!-- claims (\S+)(?: by ([^>]+?))? -->")
WAIVED = re.compile(r"<!-- no claims: .+? -->")
RECORD = re.compile(r"<!-- record: (.+?) -->")
TERM = re.compile(r"\[(.*?)\]\.([^\[\]]+)")
NUMBER = re.compile(r"(?<![\w./-])(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?![\w]|\.\d)")
LIKE_A_RESULT = re.compile(
    r"(?<![\w.,/=×-])(?:\d+\.\d+(?![\d.]|\w)|\d+(?:\.\d+)?(?= ?%| times\b| points\b))"
)
# what is no result: code, links, comments, versions, hardware
NOISE = re.compile(
    r"`[^`]*`|\]\([^)]*\)|<!--.*?-->|\$[^$]*\$|(?:Python|torch|phnn|onnxruntime) [\d.]+\w*",
    re.DOTALL,
)


class ClaimError(ValueError):
    """A mark that does not hold."""


def main() -> int:
    """Check all pages; print what is wrong."""
    problems = [problem for page in PAGES for problem in check_page(page)]
    problems += [*check_tables(), *check_records(), *check_ratios()]
    for problem in problems:
        print(problem)
    count = sum(
        len(INLINE.findall(p.read_text())) + len(BLOCK.findall(p.read_text())) for p in PAGES
    )
    print(f"{count} marks on {len(PAGES)} pages, {len(problems)} problems")
    return 1 if problems else 0


def check_page(page: Path) -> Iterator[str]:
    """Yield what is wrong on a page."""
    text = page.read_text()
    name = page.relative_to(ROOT).as_posix()
    if RECORD.search(text):
        return
    for line, block in split_blocks(text):
        marks, waived = BLOCK.findall(block), WAIVED.search(block)
        body = NOISE.sub(" ", BLOCK.sub("", block))
        for source, key in marks:
            yield from (f"{name}:{line}: {each}" for each in check_block(body, source, key.strip()))
        for number, percent, source, expression in INLINE.findall(block):
            try:
                check_inline(number, source, expression)
            except ClaimError as error:
                yield f"{name}:{line}: {number}{percent}: {error}"
        if page in STRICT and not marks and not waived:
            bare = NOISE.sub(" ", INLINE.sub(" ", block))
            found = LIKE_A_RESULT.findall(bare)
            if found:
                shown = ", ".join(found[:8]) + (", …" if len(found) > 8 else "")
                yield f"{name}:{line}: {shown}: like results, and without a mark"


def split_blocks(text: str) -> Iterator[tuple[int, str]]:
    """Yield the paragraphs and tables of a page, with the number of their first line.

    A mark that stands alone belongs to the block after it, also behind an empty line. Code is left
    out.
    """
    text = re.sub(r"^```.*?^```", lambda m: "\n" * m[0].count("\n"), text, flags=re.S | re.M)
    line, waiting, start = 1, "", 1
    for block in re.split(r"\n[ \t]*\n", text):
        begins = line
        line += block.count("\n") + 2
        if (
            block.strip().startswith("<!--")
            and not re.sub(r"<!--.*?-->", "", block, flags=re.S).strip()
        ):
            waiting, start = waiting + block + "\n", begins
            continue
        if waiting and block.lstrip().startswith("#"):
            yield start, waiting
            waiting = ""
        yield (start if waiting else begins), waiting + block
        waiting = ""


def check_block(body: str, source: str, key: str) -> Iterator[str]:
    """Yield the numbers of a block that its source does not have."""
    groups = group_numbers(source, key)
    whole = set().union(*groups)
    rows = [line for line in body.splitlines() if line.lstrip().startswith("|")]
    for row in rows:
        numbers = [n for n in NUMBER.findall(row) if is_measured(n)]
        if numbers and not any(all(is_in(n, group) for n in numbers) for group in groups):
            yield f"no record of {source} has all of {', '.join(numbers)}"
    if not rows:
        for number in LIKE_A_RESULT.findall(body):
            if not is_in(number, whole):
                yield f"{source} has no {number}"


def is_measured(number: str) -> bool:
    """Return whether a cell's number is a result: those of settings, such as a batch, are short."""
    return "." in number or "," in number


def is_in(number: str, values: set[float]) -> bool:
    """Return whether a printed number is a value, rounded; shares may be printed in percent."""
    printed = float(number.replace(",", ""))
    decimals = len(number.partition(".")[2])
    slack = 0.501 * 10**-decimals
    return any(abs(scale * value - printed) <= slack for value in values for scale in (1, 100))


def check_inline(number: str, source: str, expression: str) -> None:
    """Raise a ClaimError when a marked number is not what its source says."""
    scale = 1.0
    if expression.endswith(" * 100"):
        expression, scale = expression.removesuffix(" * 100"), 100.0
    values = []
    for term in expression.split(" / ["):
        found = TERM.fullmatch(term if term.startswith("[") else f"[{term}")
        if found is None:
            raise ClaimError(f"{term!r} is not of the form [key=value].column")
        values.append(look_up(source, found[1], found[2]))
    value = scale * (values[0] / values[1] if len(values) == 2 else values[0])
    printed = float(number.replace(",", ""))
    decimals = len(number.partition(".")[2])
    if abs(value - printed) > 0.501 * 10**-decimals:
        raise ClaimError(f"{source} has {value:.{decimals + 2}f} for {expression}")


def look_up(source: str, conditions: str, column: str) -> float:
    """Return a number of the one record that meets conditions."""
    wanted = dict(part.strip().split("=", 1) for part in conditions.split(";"))
    found = [
        record
        for record in read_records(source)
        if all(str(record.get(key)) == value for key, value in wanted.items())
    ]
    if len(found) != 1:
        raise ClaimError(f"{len(found)} records of {source} have {conditions}")
    if column not in found[0]:
        raise ClaimError(f"{source} has no column {column}; it has {', '.join(found[0])}")
    try:
        return float(str(found[0][column]).replace(",", ""))
    except ValueError:
        raise ClaimError(f"{column} of {source} is {found[0][column]!r}, no number") from None


@cache
def read_records(source: str) -> list[dict[str, Any]]:
    """Return the records of a result file."""
    path = RESULTS / source if (RESULTS / source).is_file() else ROOT / source
    if not path.is_file():
        raise ClaimError(f"there is no file {source}")
    text = path.read_text()
    if path.suffix == ".csv":
        return list(csv.DictReader(text.splitlines()))
    if path.suffix == ".json":
        content = json.loads(text)
        if isinstance(content, dict):  # a comparison, or the result of one run
            return list(content["table"]) if "table" in content else [content]
        return list(content)
    if path.suffix == ".md":
        return list(_read_tables(text))
    return [{"line": line} for line in text.splitlines()]


def _read_tables(text: str) -> Iterator[dict[str, Any]]:
    head: list[str] = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not line.startswith("|"):
            head = []
        elif not head:
            head = cells
        elif not set(line) <= set("|-: "):
            yield dict(zip(head, cells, strict=False))


@cache
def group_numbers(source: str, key: str) -> list[set[float]]:
    """Return the numbers of each record of a file, or of the records that share a key."""
    groups: dict[str, set[float]] = {}
    for number, record in enumerate(read_records(source)):
        name = str(record.get(key)) if key else str(number)
        numbers = groups.setdefault(name, set())
        for value in record.values():
            numbers |= {float(n.replace(",", "")) for n in NUMBER.findall(f" {value} ")}
    return list(groups.values())


def check_tables() -> Iterator[str]:
    """Yield the rows of tables of comparisons that differ from the results beside them."""
    for page in sorted(RESULTS.glob("*/results.md")):
        source = (page.parent / "results.json").relative_to(RESULTS).as_posix()
        groups = group_numbers(source, "")
        grams = [group | {1000 * value for value in group} for group in groups]  # of kg
        for row in page.read_text().splitlines():
            numbers = [n for n in NUMBER.findall(row) if is_measured(n)]
            if row.startswith("|") and not any(all(is_in(n, g) for n in numbers) for g in grams):
                yield f"{page.relative_to(ROOT)}: no record of {source} has all of {numbers}"


def check_records() -> Iterator[str]:
    """Yield the result files that do not say where they come from."""
    for path in sorted(RESULTS.rglob("result.json")):
        content = json.loads(path.read_text())
        known = {"seed", "machine", "command", "versions"} - content.keys()
        if known:
            yield f"{path.relative_to(ROOT)}: lacks {', '.join(sorted(known))}"
    for path in sorted(RESULTS.glob("*.csv")):
        head = path.read_text().partition("\n")[0]
        if not re.search(r"made by|provenance|command", head):
            yield f"{path.relative_to(ROOT)}: no column says which command made it"


def check_ratios() -> Iterator[str]:
    """Yield the ratios `X / real` that are not those of the times `X ms` and `real X ms` beside."""
    for path in sorted(RESULTS.glob("*.csv")):
        for row, record in enumerate(read_records(path.name), 2):
            for column in (name for name in record if name.endswith(" / real") and record[name]):
                key = column.removesuffix(" / real")
                times = [record.get(name) for name in (f"{key} ms", f"real {key} ms")]
                if not all(times):
                    if f"{key} ms" in record:
                        yield f"{path.name}:{row}: {column} lacks the times it comes from"
                elif abs(float(times[0]) / float(times[1]) - float(record[column])) > 0.0016:
                    yield f"{path.name}:{row}: {column} is {record[column]}, but its times differ"


if __name__ == "__main__":
    sys.exit(main())
