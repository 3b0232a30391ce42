"""What an attack file may not contain: branches on a norm, loops over samples, a best point of its own, copied code."""

import ast
import re
from itertools import combinations
from pathlib import Path

import pytest

from marginattack import attacks

EVERY = sorted(Path(attacks.__file__).parent.rglob("*.py"))
FILES = [path for path in EVERY if path.name != "__init__.py" and path.parent.name != "external"]  # ours
NORM_TEST = re.compile(
    r"\bnorm(\.name)? ?([=!]=(?! problem\.norm:)|(is|not|in)\b)|[=!]= \S*norm\.name|isinstance\(.*norm|\bmatch\b.*norm"
)
SAMPLE_LOOP = re.compile(r"\bfor\b.*\bin\b.*(range\(len\(|\.tolist\(\)|enumerate\(.*x0|\bin (problem\.)?x0\b)")
BEST_SO_FAR = re.compile(r"^(best|nearest|closest|smallest|distance)\w*\b.*= torch\.(where|minimum)\(.*(distance|size)")
LONGEST_COMMON_RUN = 5  # lines


def code(path: Path) -> list[str]:
    """The stripped lines of a file without imports, docstrings, comments and blanks."""
    text = path.read_text()
    skipped = set[int]()
    for node in ast.walk(ast.parse(text)):
        docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if docstring or isinstance(node, ast.Import | ast.ImportFrom):
            assert isinstance(node, ast.stmt)
            skipped |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = (line.strip() for number, line in enumerate(text.splitlines(), 1) if number not in skipped)
    return [line for line in lines if line and not line.startswith("#")]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
@pytest.mark.parametrize("pattern", [NORM_TEST, SAMPLE_LOOP, BEST_SO_FAR], ids=["norm test", "sample loop", "best"])
def test_attacks_leave_norms_samples_and_incumbents_to_core(path: Path, pattern: re.Pattern[str]) -> None:
    assert [line for line in code(path) if pattern.search(line)] == []


def test_no_code_is_copied_between_attacks() -> None:
    length = LONGEST_COMMON_RUN + 1
    runs = {path.name: {tuple(lines[i : i + length]) for i in range(len(lines) - length + 1)}
            for path in FILES for lines in [code(path)]}  # fmt: skip
    for one, other in combinations(runs, 2):
        assert runs[one] & runs[other] == set(), f"the same lines in {one} and {other}"
