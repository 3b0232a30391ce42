"""Recompute every figure of README and docs: ``python -m experiments.verify [--write | --list | --pin]``.

- **Records** are as the program that measured wrote them: they state how, and their digest fits. Older ones, which
  state less, are listed in benchmarks/records/older.json with a digest of the file; the list may only shrink.
- **Pages** that programs write are what these programs write now.
- **Tables** stand between ``<!-- table: MODULE.FUNCTION RECORD … -->`` and ``<!-- end -->``: the lines that a function
  in benchmarks/ or experiments/ makes of the numbers of these records.
- **Figures** in prose are followed by a comment that says what they are: an expression over the numbers of records by
  name, with a format, such as ``0.12<!-- = row(exact["summary"], group="all", budget=100)["mean"]:.2f -->``.
- Numbers with a unit and without a comment are counted per page (``--list`` shows them). Most are settings. The counts
  in unverified.json may only fall.

``--write`` writes tables and figures anew after a record has changed. ``--pin`` accepts the counts as they are now, and
lists records of LAST_OLDER or before that state too little: for merges, to be reviewed.
"""

import ast
import hashlib
import importlib
import json
import re
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from marginattack.reproduce.records import find_fault

ROOT = Path(__file__).parents[1]
RECORDS, RESULTS = ROOT / "benchmarks/records", ROOT / "experiments/results"
OLDER = RECORDS / "older.json"
LAST_OLDER = "2026-11-16"  # no record of a later day may be listed as an older one
TABLE = re.compile(r"(<!-- table: (\w+)\.(\w+) ([\w -]+?) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
FIGURE = re.compile(r"([\d.,−+-]+)(\**)<!-- = (.+?)(?::([^:\"\]]*))? -->", re.DOTALL)
NUMBER = re.compile(r"(?<![\w.,])\d[\d.,]*(?: to \d[\d.,]*)? ?(?:%|s\b|ms\b|MiB\b|points\b|times\b(?! the))(?!<!--)")
UNVERIFIED = ROOT / "experiments/unverified.json"  # numbers with a unit and without a record, by page


class Records(dict[str, Any]):
    """The numbers of records by name, read on demand; ``paper_mnist`` is experiments/results/mnist.json."""

    def __missing__(self, name: str) -> Any:
        if name.startswith("paper_"):
            paths = [RESULTS / f"{name.removeprefix('paper_')}.json"]
        else:
            paths = [RECORDS / f"{each}.json" for each in (name, name.replace("_", "-"))]
        path = next((each for each in paths if each.exists()), None)
        if path is None:
            raise KeyError(name)
        self[name] = json.loads(path.read_text())["numbers"]
        return self[name]


def row(rows: list[dict[str, Any]], **wanted: Any) -> dict[str, Any]:
    """The one row with these values."""
    found = [each for each in rows if all(each.get(key) == value for key, value in wanted.items())]
    if len(found) != 1:
        raise LookupError(f"{len(found)} rows have {wanted}")
    return found[0]


def trimmed(values: Iterable[float]) -> float:
    """The mean without the tenth at either end."""
    ordered = sorted(values)
    cut = len(ordered) // 10
    return statistics.mean(ordered[cut : len(ordered) - cut])


FUNCTIONS: dict[str, Any] = {
    "row": row, "trimmed": trimmed, "mean": statistics.mean, "median": statistics.median, "min": min, "max": max,
    "sum": sum, "len": len, "__builtins__": {},
}  # fmt: skip


def check_records() -> Iterator[str]:
    """Records that are missing, incomplete or were changed."""
    older = json.loads(OLDER.read_text())
    for path in sorted([*RECORDS.glob("*.json"), *RESULTS.glob("*.json")]):
        name = str(path.relative_to(ROOT))
        if path == OLDER:
            continue
        record = json.loads(path.read_text())
        if fault := find_fault(record):
            if older.get(name) != hashlib.sha256(path.read_bytes()).hexdigest():
                yield f"{name} {fault}: measure again"
            elif record["conditions"]["date"] > LAST_OLDER:
                yield f"{name} is of {record['conditions']['date']} and {fault}: measure again"
        elif name in older:
            yield f"{name} is listed in older.json, but states all: remove it from the list"
        for file, digest in record.get("files", {}).items():
            if hashlib.sha256((path.parent / file).read_bytes()).hexdigest() != digest:
                yield f"{name} was written with another {file}: measure again"
    for name in older:
        if not (ROOT / name).exists():
            yield f"{name} is missing, but listed in older.json"


def pages() -> dict[str, Callable[[], str]]:
    """What programs write, by page."""
    for folder in ("benchmarks", "experiments"):
        sys.path.insert(0, str(ROOT / folder))
    made, results = importlib.import_module("pages"), importlib.import_module("results_page")
    suite = importlib.import_module("suite_page")
    found = {"docs/parity.md": made.parity, "docs/results.md": results.page}
    found["docs/benchmark-results.md"] = suite.whole_page
    for page in made.TABLES:
        found[page] = lambda page=page: str(made.fill_in(page, (ROOT / page).read_text()))
    return found


def fill_tables(page: str, text: str, records: Records, faults: list[str]) -> str:
    """The text of a page with its tables from the records."""

    def fill(found: re.Match[str]) -> str:
        try:
            make = getattr(importlib.import_module(found[2]), found[3])
            lines = make(*(records[name] for name in found[4].split()))
        except (ImportError, AttributeError, LookupError, TypeError) as error:
            faults.append(f"{page}: the table of {found[4]} cannot be made ({type(error).__name__}: {error})")
            return found[0]
        return found[1] + "\n".join([*lines, found[6]])

    return TABLE.sub(fill, text)


def evaluate(expression: str, records: Records) -> Any:
    """The value of an expression in which names are functions, variables of its own, or records."""
    tree = ast.parse(expression.strip(), mode="eval")
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    bound = {node.id for node in names if isinstance(node.ctx, ast.Store)} | FUNCTIONS.keys()
    known = {node.id: records[node.id] for node in names if node.id not in bound}
    return eval(compile(tree, "figure", "eval"), {**FUNCTIONS, **known})


def fill_figures(page: str, text: str, records: Records, faults: list[str]) -> str:
    """The text of a page with its figures from the records; what cannot be computed stays and is a fault."""

    def fill(found: re.Match[str]) -> str:
        expression, form = found[3], found[4] or ""
        try:
            value = format(evaluate(expression, records), form.replace(".", "z.", 1))  # never -0.00
        except (KeyError, LookupError, TypeError, ValueError, NameError, SyntaxError) as error:
            faults.append(f"{page}: {expression} cannot be computed ({type(error).__name__}: {error})")
            return found[0]
        if value != found[1]:
            faults.append(f"{page}: {found[1]} should be {value} ({expression})")
        return f"{value}{found[2]}{found[0][found.start(2) - found.start() + len(found[2]) :]}"

    return FIGURE.sub(fill, text)


def unverified(page: str, text: str) -> list[str]:
    """Numbers with a unit in prose that no record is named for."""
    if page in ("docs/parity.md", "docs/benchmark-results.md"):  # written by programs, prose too
        return []
    for mark in re.findall(r"<!-- from .*? -->", text):
        text = re.sub(rf"{re.escape(mark)}.*?{re.escape(mark)}", "", text, flags=re.DOTALL)
    text = re.sub(r"```.*?```|`[^`]*`", "", TABLE.sub("", text), flags=re.DOTALL)
    lines = [line for line in text.splitlines() if not line.startswith(("|", "    "))]
    return [f"{found[0]}: {line.strip()[:100]}" for line in lines for found in NUMBER.finditer(line)]


def texts() -> dict[str, str]:
    """README and the documentation by name."""
    paths = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
    return {str(path.relative_to(ROOT)): path.read_text() for path in paths}


def pin() -> None:
    """Accept the counts and the older records as they are."""
    counts = {page: count for page, text in texts().items() if (count := len(unverified(page, text)))}
    UNVERIFIED.write_text(json.dumps(counts, indent=1) + "\n")
    older = {}
    for path in sorted([*RECORDS.glob("*.json"), *RESULTS.glob("*.json")]):
        record = json.loads(path.read_text())
        older_kind = "digest" not in record and path != OLDER  # one with another digest was changed
        if older_kind and find_fault(record) and record["conditions"]["date"] <= LAST_OLDER:
            older[str(path.relative_to(ROOT))] = hashlib.sha256(path.read_bytes()).hexdigest()
    OLDER.write_text(json.dumps(older, indent=1) + "\n")


def check_pages(*, write: bool = False) -> Iterator[str]:
    """Pages, tables and figures that do not agree with the records."""
    records, allowed = Records(), json.loads(UNVERIFIED.read_text())
    for page, make in pages().items():
        if (ROOT / page).read_text() != make():
            yield f"{page} is not what its program writes: run it"
    for page, text in texts().items():
        faults = list[str]()
        filled = fill_figures(page, fill_tables(page, text, records, faults), records, faults)
        if write and text != filled:
            (ROOT / page).write_text(filled)
        elif text != filled and not faults:
            yield f"{page} has a table that is not of its record: python -m experiments.verify --write"
        yield from faults
        if len(found := unverified(page, text)) > allowed.get(page, 0):
            yield f"{page} has {len(found)} figures without a record, more than {allowed.get(page, 0)}: see --list"


def main(words: list[str]) -> int:
    """Print what is wrong; 1 if anything is."""
    if "--list" in words:
        for page, text in texts().items():
            found = unverified(page, text)
            print(f"{page}: {len(found)}", *found, sep="\n    ")
        return 0
    if "--pin" in words:
        pin()
    faults = [*check_records(), *check_pages(write="--write" in words)]
    print(*faults, sep="\n")
    print(f"{len(faults)} faults" if faults else "Every record and figure agrees.")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
