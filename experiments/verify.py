"""Recompute every figure of README and docs: ``python -m experiments.verify [--write | --list | --pin]``.

- **Records** are as the program that measured wrote them: they state how, and their digest fits. Older ones, which
  state less, and files without a record are listed in benchmarks/records/older.json with the digest of the file.
- **Pages** that programs write are what these programs write now.
- **Tables** stand between ``<!-- table: MODULE.FUNCTION RECORD … -->`` and ``<!-- end -->``: the lines that a function
  in benchmarks/ or experiments/ makes of the numbers of these records; ``conditions_NAME`` is how they were measured.
- **Figures** in prose are followed by a comment that says what they are: an expression over the numbers of records by
  name, with a format, such as ``0.12<!-- = row(exact["summary"], group="all", budget=100)["mean"]:.2f -->``.
- **Other numbers** with a unit or decimals, in prose or tables, must be listed in unverified.json: settings, not
  measurements. Add one by hand; ``--list`` shows those that are listed and those that are not.

``--write`` writes tables and figures anew after a record has changed. ``--pin`` removes from unverified.json and
older.json what is gone, and lists records of LAST_OLDER or before that state too little and are new, for merges. It
accepts no change to a file that is listed.
"""

import ast
import hashlib
import importlib
import json
import re
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from marginattack.reproduce.records import find_fault

ROOT = Path(__file__).parents[1]
RECORDS, RESULTS = ROOT / "benchmarks/records", ROOT / "experiments/results"
OLDER = RECORDS / "older.json"
LAST_OLDER = "2026-11-16"  # no record of a later day may be listed as an older one
TABLE = re.compile(r"(<!-- table: (\w+)\.(\w+) ([\w -]+?) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
MINUS = re.compile(r"(?<![\w.`-])-(?=\d)")
FIGURE = re.compile(r"([\d.,−+-]+)(\**)<!-- = (.+?)(?::([^:\"\]]*))? -->", re.DOTALL)
_N = r"\d[\d.,]*(?<![.,])"
_UNIT = r"(?:%|s\b|ms\b|µs\b|[kKMG]i?B\b|points?\b|times\b(?! the)|×(?!\d))"
NUMBER = re.compile(
    rf"(?<![\w.,^#-])(?:{_N}(?:\s(?:to|and|or|/)\s{_N})*\s?{_UNIT}|{_N}\s(?:out\s)?of\s(?:the\s)?{_N}|p\s[=<≈]\s{_N}"
    r"|(?<![=≤≥]\s)\d+\.\d+(?!\.?\d))"
)
CELL = re.compile(rf"(?<=\|) ?[±+−-]?{_N} ?(?=\|)")  # of a table
WRITTEN = {"docs/parity.md": "pages", "docs/benchmark-results.md": "suite_page"}  # page: the module that writes it
UNVERIFIED = ROOT / "experiments/unverified.json"  # numbers that are no measurements, by page


sys.path[:0] = [str(ROOT / folder) for folder in ("benchmarks", "experiments")]  # of the modules that make tables


class Records(dict[str, Any]):
    """The numbers of records by name, read on demand; ``paper_mnist`` is experiments/results/mnist.json.

    ``suite`` has the number of cells of the benchmark suite, and of those in which our default is first.
    """

    def __missing__(self, name: str) -> Any:
        if name == "suite":
            self[name] = count_suite()
            return self[name]
        bare = name.removeprefix("conditions_")
        if bare.startswith("paper_"):
            paths = [RESULTS / f"{bare.removeprefix('paper_')}.json"]
        else:
            paths = [RECORDS / f"{each}.json" for each in (bare, bare.replace("_", "-"))]
        path = next((each for each in paths if each.exists()), None)
        if path is None:
            raise KeyError(name)
        self[name] = json.loads(path.read_text())["numbers" if bare == name else "conditions"]
        return self[name]


def count_suite() -> dict[str, int]:
    """The cells of the benchmark suite, and those in which no baseline has a smaller mean excess than our default."""
    overall, page = importlib.import_module("overall"), importlib.import_module("suite_page")
    cells = overall.cells(page.records(RECORDS))
    return {"cells": len(cells), "first": overall.count_first(cells, "baselines")[0]}


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


def lead(rows: dict[str, Any], attack: str, ours: str) -> list[float]:
    """The success rate of ours minus that of another attack on the same samples, in points, at each level."""
    pair = rows[attack]["beside"][ours]
    return [100 * (own - other) / pair["n"] for own, other in zip(pair["ours"], pair["theirs"], strict=True)]


FUNCTIONS: dict[str, Any] = {
    "row": row, "trimmed": trimmed, "lead": lead, "mean": statistics.mean, "median": statistics.median, "min": min,
    "max": max, "sum": sum, "len": len, "__builtins__": {},
}  # fmt: skip


def record_files() -> list[Path]:
    """All records, and the files beside them."""
    return sorted(path for folder in (RECORDS, RESULTS) for path in folder.iterdir() if path != OLDER)


def file_digest(path: Path) -> str:
    """SHA-256 of a file; empty where it is missing."""
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else ""


def check_records() -> Iterator[str]:
    """Records and files that are missing, incomplete or were changed."""
    older = json.loads(OLDER.read_text())
    for name, digest in older.items():
        if file_digest(ROOT / name) != digest:
            yield f"{name} is missing or was changed after it was listed in older.json: measure again"
    described = set[Path]()
    for path in (each for each in record_files() if each.suffix == ".json"):
        name, record = str(path.relative_to(ROOT)), json.loads(path.read_text())
        if fault := find_fault(record):
            if name not in older:
                yield f"{name} {fault}: measure again"
            elif record["conditions"]["date"] > LAST_OLDER:
                yield f"{name} is of {record['conditions']['date']} and {fault}: measure again"
        elif name in older:
            yield f"{name} is listed in older.json, but states all: run --pin"
        for file, digest in record.get("files", {}).items():
            described.add(path.parent / file)
            if file_digest(path.parent / file) != digest:
                yield f"{name} was written with another {file}: measure again"
    for path in record_files():
        if path.suffix != ".json" and path not in described and str(path.relative_to(ROOT)) not in older:
            yield f"{path.relative_to(ROOT)} belongs to no record: remove it, or write its record with files="


def pages() -> dict[str, Callable[[], str]]:
    """What programs write, by page."""
    made, suite = importlib.import_module("pages"), importlib.import_module("suite_page")
    found = {"docs/parity.md": made.parity, "docs/benchmark-results.md": suite.whole_page}
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
        rows = [MINUS.sub("−", line) if line.startswith("|") else line for line in lines]
        return found[1] + "\n".join([*rows, found[6]])

    return TABLE.sub(fill, text)


def evaluate(expression: str, records: Records) -> Any:
    """The value of an expression in which names are functions, variables of its own, or records."""
    tree = ast.parse(expression.strip(), mode="eval")
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    bound = {node.id for node in names if isinstance(node.ctx, ast.Store)} | FUNCTIONS.keys()
    known = {node.id: records[node.id] for node in names if node.id not in bound}
    if not known:
        raise LookupError("it names no record")
    return eval(compile(tree, "figure", "eval"), {**FUNCTIONS, **known})


def fill_figures(page: str, text: str, records: Records, faults: list[str]) -> str:
    """The text of a page with its figures from the records; what cannot be computed stays and is a fault."""

    def fill(found: re.Match[str]) -> str:
        expression, form = found[3], found[4] or ""
        try:
            value = format(evaluate(expression, records), re.sub(r"^([+ ]?)(?=[,\d]*\.)", r"\1z", form))  # never -0.00
        except (KeyError, LookupError, TypeError, ValueError, NameError, SyntaxError) as error:
            faults.append(f"{page}: {expression} cannot be computed ({type(error).__name__}: {error})")
            return found[0]
        value = MINUS.sub("−", value)
        if value != found[1]:
            faults.append(f"{page}: {found[1]} should be {value} ({expression})")
        return f"{value}{found[2]}{found[0][found.start(2) - found.start() + len(found[2]) :]}"

    return FIGURE.sub(fill, text)


def other_numbers(text: str) -> list[str]:
    """Numbers with a unit or decimals, and numbers in tables, that no record is named for."""
    for mark in re.findall(r"<!-- from .*? -->", text):
        text = re.sub(rf"{re.escape(mark)}.*?{re.escape(mark)}", "", text, flags=re.DOTALL)
    text = FIGURE.sub("", TABLE.sub("", text))
    text = re.sub(r"```.*?```|`[^`]*`|<!--.*?-->|\]\([^)]*\)|^\[[^\n]*$", "", text, flags=re.DOTALL | re.MULTILINE)
    cells = [found[0] for line in text.splitlines() if line.lstrip().startswith("|") for found in CELL.finditer(line)]
    return sorted(" ".join(number.split()) for number in (*(found[0] for found in NUMBER.finditer(text)), *cells))


def texts() -> dict[str, str]:
    """README and the documentation by name."""
    paths = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
    return {str(path.relative_to(ROOT)): path.read_text() for path in paths}


def numbers_by_page() -> dict[str, list[str]]:
    """The other numbers of every page; of pages that programs write, those of the prose in the programs."""
    prose = {page: text for page, text in texts().items() if page not in WRITTEN}
    for module in WRITTEN.values():
        constants = vars(importlib.import_module(module)).items()
        parts = [value for name, value in constants if name.isupper() and isinstance(value, str)]
        prose[f"benchmarks/{module}.py"] = "\n\n".join(parts)
    return {page: found for page, text in prose.items() if (found := other_numbers(text))}


def pin() -> None:
    """Forget numbers and files that are gone, and list new records of LAST_OLDER or before."""
    allowed = json.loads(UNVERIFIED.read_text())
    kept = {page: _common(allowed.get(page, []), found) for page, found in numbers_by_page().items()}
    UNVERIFIED.write_text(format_lists({page: numbers for page, numbers in kept.items() if numbers}))
    listed = json.loads(OLDER.read_text())
    records = {
        str(path.relative_to(ROOT)): json.loads(path.read_text()) for path in record_files() if path.suffix == ".json"
    }
    older = {name: digest for name, digest in listed.items() if name not in records or find_fault(records[name])}
    for name, record in records.items():
        if name not in older and "digest" not in record and record["conditions"]["date"] <= LAST_OLDER:
            older[name] = file_digest(ROOT / name)
    OLDER.write_text(json.dumps(dict(sorted(older.items())), indent=1) + "\n")


def _common(allowed: list[str], found: list[str]) -> list[str]:
    return sorted((Counter(allowed) & Counter(found)).elements())


def format_lists(lists: dict[str, list[str]]) -> str:
    """JSON with a line per page."""
    return (
        "{\n" + ",\n".join(f" {json.dumps(k)}: {json.dumps(v, ensure_ascii=False)}" for k, v in lists.items()) + "\n}\n"
    )


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
    for page, found in numbers_by_page().items():
        if new := sorted((Counter(found) - Counter(allowed.get(page, []))).elements()):
            yield f"{page} has numbers without a record: {'; '.join(new)}: name it, or list settings in unverified.json"


def main(words: list[str]) -> int:
    """Print what is wrong; 1 if anything is."""
    if "--list" in words:
        print(format_lists(numbers_by_page()), end="")
        return 0
    if "--pin" in words:
        pin()
    faults = [*check_records(), *check_pages(write="--write" in words)]
    print(*faults, sep="\n")
    print(f"{len(faults)} faults" if faults else "Every record and figure agrees.")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
