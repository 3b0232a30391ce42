"""The table of docs/method.md: every item of the paper, with code, test, record and deviation that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NUMBERED, LEMMAS, THEOREMS, TABLES, FIGURES = 83, 5, 3, 5, 4  # in the paper
ALGORITHM = 7  # lines


def rows() -> list[list[str]]:
    section = (ROOT / "docs/method.md").read_text().split("## Every item of the paper")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


def test_every_item_of_the_paper_is_listed() -> None:
    items = [row[0] for row in rows()]
    numbers = set[int]()
    for item in items:
        for first, last in re.findall(r"\((\d+)\)(?:–\((\d+)\))?", item):
            numbers |= set(range(int(first), int(last or first) + 1))
    assert numbers == set(range(1, NUMBERED + 1))
    for kind, count in (("Theorem ", THEOREMS), ("Lemma 1.", LEMMAS), ("Table ", TABLES), ("Figure ", FIGURES)):
        assert {item[: len(kind) + 1] for item in items if item.startswith(kind)} == {
            f"{kind}{number}" for number in range(1, count + 1)
        }
    assert sum(item.startswith("Alg. 1") for item in items) == ALGORITHM


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0])
def test_no_cell_is_empty_and_every_reference_exists(row: list[str]) -> None:
    assert len(row) == 5
    assert all(row), row
    _, code, test, record, deviation = row
    assert "`" in code
    assert "`tests/" in test
    assert "`" in record or record.startswith("none: ")
    for reference in re.findall(r"`([^`]+/[^`]+)`", " ".join((code, test, record, deviation))):
        path, _, name = reference.partition("::")
        file = next(base / path for base in (ROOT, ROOT / "src/marginattack") if (base / path).is_file())
        if name:
            assert re.search(rf"^ *(def|class) {name}\b|^{name}\b", file.read_text(), re.MULTILINE), reference
