"""Every record and every figure of README and docs agrees, and a change to either is noticed."""

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "experiments"))
import verify

from marginattack.reproduce.records import STATED, decode, encode, find_fault, provenance, seal

CONDITIONS = provenance("python benchmarks/x.py", "a CPU") | {"commit": "abc1234"}
REAL = verify.ROOT
FILES = [str(path.relative_to(REAL)) for path in verify.record_files()]


def test_everything_agrees() -> None:
    assert verify.main([]) == 0


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the records and pages; programs read records and pages from it."""
    for name in ("benchmarks/records", "experiments/results"):
        shutil.copytree(REAL / name, tmp_path / name, copy_function=link)
    shutil.copytree(REAL / "docs", tmp_path / "docs", ignore=shutil.ignore_patterns("img", "tutorials"))
    shutil.copy(REAL / "README.md", tmp_path)
    shutil.copy(verify.UNVERIFIED, tmp_path)
    for name, value in {
        "ROOT": tmp_path, "RECORDS": tmp_path / "benchmarks/records", "RESULTS": tmp_path / "experiments/results",
        "OLDER": tmp_path / "benchmarks/records/older.json", "UNVERIFIED": tmp_path / "unverified.json",
    }.items():  # fmt: skip
        monkeypatch.setattr(verify, name, value)
    import pages
    import suite_page

    for module in (pages, suite_page):
        monkeypatch.setattr(module, "RECORDS", verify.RECORDS)
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    return tmp_path


def link(source: str, target: str) -> None:
    """Records are only read, or replaced by ``rewrite``; the list is written."""
    if Path(source).name == "older.json":
        shutil.copy(source, target)
    else:
        Path(target).symlink_to(source)


def rewrite(path: Path, text: str) -> None:
    path.unlink()  # it may be a link
    path.write_text(text)


def edit(path: Path, change: Any) -> None:
    record = json.loads(path.read_text())
    change(record)
    rewrite(path, json.dumps(record, indent=1) + "\n")


def faults() -> list[str]:
    return [*verify.check_records(), *verify.check_pages()]


def test_an_edited_record_is_noticed(copy: Path) -> None:
    assert faults() == []
    for name in FILES:
        path = copy / name
        if path.suffix == ".json":
            edit(path, lambda record: record["conditions"].update(hardware="a faster machine"))
        else:
            path.unlink()
            path.write_bytes(b"corrupted")
    found = "\n".join(verify.check_records())
    assert [
        name for name in FILES if f"{Path(name).name} " not in found and f"another {Path(name).name}" not in found
    ] == []


@pytest.mark.parametrize("name", FILES)
def test_a_deleted_record_is_noticed(copy: Path, name: str) -> None:
    (copy / name).unlink()
    try:
        found = [*verify.check_records()] or faults()
    except (FileNotFoundError, KeyError):
        return  # a page cannot be made
    assert found


@pytest.mark.parametrize(
    ("page", "shown"),
    [
        ("README.md", r"\d(?=<!-- =)"),
        ("README.md", r"\| resnet50 \| 64 \|[^|]*\| \d\.\d\d"),
        ("docs/randomised-models.md", r"\| gaussian noise \| l2 \| \d+"),
        ("docs/measure.md", r"\d(?=<!-- =)"),
        ("docs/speed.md", r"\d(?=<!-- =)"),
        ("docs/speed.md", r"\| mnist-cnn \| ℓ2 \| fp16 \| \d\.\d+"),
        ("docs/how-to-choose.md", r"\| Foolbox DeepFool l2 \| l2 \| \d"),
        ("docs/scale.md", r"\| 1,000 \| \d+ \| \d"),
        ("docs/limits.md", r"\| 2,000"),
        ("docs/results.md", r"\| CW 10 \| \d"),
        ("docs/results.md", r"\d(?=<!-- =)"),
        ("docs/parity.md", " ok"),
        ("docs/benchmark-results.md", r"lowest mean excess among the baselines in \d\d"),
        ("docs/bounds.md", r"\| mnist-cnn"),
        ("docs/method.md", r"\d(?= %)"),
    ],
)
def test_a_false_figure_is_noticed(copy: Path, page: str, shown: str) -> None:
    text = (copy / page).read_text()
    match = re.search(shown, text)
    assert match
    last = match[0][-1]
    false = str((int(last) + 1) % 10) if last.isdigit() else "x"
    (copy / page).write_text(text[: match.end() - 1] + false + text[match.end() :])
    assert any(page in fault for fault in verify.check_pages())


@pytest.mark.parametrize(
    "claim",
    ["Ours is 37 % better.", "Ours is 7.0\n% better.", "It wins in 58 of 60 cells.", "The test gives p = 0.03.",
     "The ratio is 1.28 here.", "    It takes 12 ms.", "| race | 0.37 |", "Twice: 12 to 18 % less."],
)  # fmt: skip
def test_a_new_figure_needs_a_record(copy: Path, claim: str) -> None:
    with (copy / "docs/limits.md").open("a") as file:
        file.write(f"\n{claim}\n")
    (fault,) = verify.check_pages()
    assert fault.startswith("docs/limits.md has numbers without a record: ")
    verify.pin()
    assert [*verify.check_pages()] == [fault]  # only by hand


def test_figures_and_tables_are_written_anew(copy: Path) -> None:
    kept = {page: (copy / page).read_text() for page in ("docs/limits.md", "docs/bounds.md")}
    shown = verify.FIGURE.search(kept["docs/limits.md"])
    assert shown
    (copy / "docs/limits.md").write_text(kept["docs/limits.md"].replace(shown[0], f"9{shown[0]}", 1))
    (copy / "docs/bounds.md").write_text(kept["docs/bounds.md"].replace("| mnist-cnn |", "| mnist-cnn-best |", 1))
    assert f"9{shown[1]} should be {shown[1]}" in "\n".join(verify.check_pages(write=True))
    assert {page: (copy / page).read_text() for page in kept} == kept


def test_only_new_records_of_the_past_can_be_listed_as_older(copy: Path) -> None:
    older = json.loads(verify.OLDER.read_text())
    old = [verify.ROOT / name for name in older if name.endswith(".json")]
    edit(old[0], lambda record: record["conditions"].update(hardware="a faster machine"))
    (copy / "benchmarks/records/suite.parquet").unlink()
    new, late = verify.RECORDS / "new.json", verify.RECORDS / "late.json"
    new.write_text(json.dumps({"conditions": {"date": "2026-11-14"}, "numbers": []}))
    late.write_text(json.dumps({"conditions": {"date": "2030-01-01"}, "numbers": []}))
    verify.pin()
    assert json.loads(verify.OLDER.read_text()) == older | {
        "benchmarks/records/new.json": verify.file_digest(new)
    }  # fmt: skip
    found = " ".join(verify.check_records())
    assert all(name in found for name in (old[0].name, "suite.parquet", "late.json"))
    assert "new.json" not in found


def test_files_beside_a_record_have_the_digest_that_it_states(copy: Path) -> None:
    (verify.RECORDS / "x.bin").write_bytes(b"1")
    assert "benchmarks/records/x.bin belongs to no record" in " ".join(verify.check_records())
    record = seal(CONDITIONS, [1], files={"x.bin": verify.file_digest(verify.RECORDS / "x.bin")})
    (verify.RECORDS / "x.json").write_text(json.dumps(record))
    assert [*verify.check_records()] == []
    (verify.RECORDS / "x.bin").write_bytes(b"2")
    assert [*verify.check_records()] == ["benchmarks/records/x.json was written with another x.bin: measure again"]


@pytest.mark.parametrize("name", STATED)
def test_a_record_states_everything(name: str) -> None:
    incomplete = {key: value for key, value in CONDITIONS.items() if key != name}
    assert find_fault(seal(incomplete, [1, 2])) == f"does not state {name}"
    assert (
        find_fault(seal(CONDITIONS, [1, 2], parts=[CONDITIONS, incomplete])) == f"has a part that does not state {name}"
    )


def test_a_record_is_what_was_written() -> None:
    record = seal(CONDITIONS, [{"mean": 0.5}])
    assert find_fault(record) is None
    assert find_fault(json.loads(json.dumps(record))) is None
    assert find_fault({**record, "numbers": [{"mean": 0.4}]}) == "was changed after it was written (other digest)"
    assert "uncommitted" in str(find_fault(seal({**CONDITIONS, "commit": "abc1234-dirty"}, [1])))
    assert "before it starts" in str(find_fault(seal({**CONDITIONS, "end": "2001-01-01"}, [1])))


def test_the_commit_of_the_repository_cannot_be_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    from marginattack.reproduce import records

    monkeypatch.setenv("COMMIT", "fedcba9")
    for known, stated in (("abc1234-dirty", "abc1234-dirty"), ("", "fedcba9")):
        monkeypatch.setattr(records, "COMMIT", known)
        assert provenance("x", "a CPU")["commit"] == stated


def test_distances_are_kept_with_the_digits_of_float32() -> None:
    assert decode(encode([0.1, 1 / 3, float("inf"), 0.0])).tolist() == [0.1, 0.33333333, float("inf"), 0.0]


def test_expressions_see_records_and_little_else() -> None:
    records = verify.Records(rows=[{"a": 1, "b": 2}, {"a": 2, "b": 5}])
    assert verify.evaluate('row(rows, a=2)["b"] + max(each["b"] for each in rows)', records) == 10
    assert verify.evaluate('trimmed(each["b"] for each in rows)', records) == 3.5
    with pytest.raises(KeyError):
        verify.evaluate("open", records)
    with pytest.raises(LookupError, match="names no record"):
        verify.evaluate("max(4, 5)", records)
    with pytest.raises(LookupError, match="0 rows"):
        verify.evaluate("row(rows, a=3)", records)
