"""Every record and every figure of README and docs agrees, and a change to either is noticed."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "experiments"))
import verify

from marginattack.reproduce.records import STATED, find_fault, provenance, seal

CONDITIONS = provenance("python benchmarks/x.py", "a CPU") | {"commit": "abc1234"}


def test_everything_agrees() -> None:
    assert verify.main([]) == 0


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the records and pages, without those that programs write."""
    for name in ("benchmarks/records", "experiments/results", "docs"):
        shutil.copytree(verify.ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("*.parquet", "img"))
    shutil.copy(verify.ROOT / "README.md", tmp_path)
    monkeypatch.syspath_prepend(verify.ROOT / "benchmarks")
    for name, value in {
        "ROOT": tmp_path, "RECORDS": tmp_path / "benchmarks/records", "RESULTS": tmp_path / "experiments/results",
        "OLDER": tmp_path / "benchmarks/records/older.json", "pages": dict,
    }.items():  # fmt: skip
        monkeypatch.setattr(verify, name, value)
    return tmp_path


def faults() -> list[str]:
    return [*verify.check_records(), *verify.check_pages()]


def edit(path: Path, change: Any) -> None:
    record = json.loads(path.read_text())
    change(record)
    path.write_text(json.dumps(record, indent=1) + "\n")


def test_an_edited_or_deleted_record_is_noticed(copy: Path) -> None:
    assert faults() == []
    paths = sorted({*verify.RECORDS.glob("*.json"), *verify.RESULTS.glob("*.json")} - {verify.OLDER})
    for path in paths:
        edit(path, lambda record: record["conditions"].update(hardware="a faster machine"))
    assert len([*verify.check_records()]) == len(paths)
    (verify.RECORDS / "core.json").unlink()
    (verify.RECORDS / "brackets-gpu.json").unlink()
    found = faults()
    assert "benchmarks/records/core.json is missing, but listed in older.json" in found
    assert any("table of brackets-gpu cannot be made" in fault for fault in found)


def test_an_edited_figure_or_table_is_noticed_and_written_anew(copy: Path) -> None:
    page = copy / "docs/limits.md"
    kept = page.read_text()
    shown = verify.FIGURE.search(kept)
    assert shown
    page.write_text(kept.replace(shown[0], f"9{shown[0]}", 1))
    bounds = copy / "docs/bounds.md"
    right = bounds.read_text()
    bounds.write_text(right.replace("| mnist-cnn |", "| mnist-cnn-best |", 1))
    found = faults()
    assert [fault.split(":")[0].split(" has")[0] for fault in found] == ["docs/bounds.md", "docs/limits.md"]
    assert f"9{shown[1]} should be {shown[1]}" in found[1]
    assert [*verify.check_pages(write=True)]
    assert (page.read_text(), bounds.read_text()) == (kept, right)


def test_a_new_figure_needs_a_record(copy: Path) -> None:
    with (copy / "docs/limits.md").open("a") as file:
        file.write("\nOurs is 37 % better.\n")
    assert faults() == ["docs/limits.md has 1 figures without a record, more than 0: see --list"]


def test_only_records_of_the_past_can_be_listed_as_older(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "UNVERIFIED", copy / "unverified.json")
    edit(verify.RECORDS / "core.json", lambda record: record["conditions"].update(date="2030-01-01"))
    edit(verify.RECORDS / "choose.json", lambda record: record["conditions"].update(date="2026-11-14"))
    edit(verify.RECORDS / "brackets-gpu.json", lambda record: record["conditions"].update(hardware="a faster machine"))
    assert "digest" in json.loads((verify.RECORDS / "brackets-gpu.json").read_text())
    (verify.RECORDS / "ablation.json").unlink()
    verify.pin()
    assert [fault.split(" ")[0] for fault in faults()] == [
        "benchmarks/records/brackets-gpu.json", "benchmarks/records/core.json"
    ]  # fmt: skip


@pytest.mark.parametrize("name", STATED)
def test_a_record_states_everything(name: str) -> None:
    record = seal({key: value for key, value in CONDITIONS.items() if key != name}, [1, 2])
    assert find_fault(record) == f"does not state {name}"


def test_a_record_is_what_was_written() -> None:
    record = seal(CONDITIONS, [{"mean": 0.5}])
    assert find_fault(record) is None
    assert find_fault(json.loads(json.dumps(record))) is None
    assert find_fault({**record, "numbers": [{"mean": 0.4}]}) == "was changed after it was written (other digest)"
    assert "uncommitted" in str(find_fault(seal({**CONDITIONS, "commit": "abc1234-dirty"}, [1])))
    assert "before it starts" in str(find_fault(seal({**CONDITIONS, "end": "2001-01-01"}, [1])))


def test_expressions_see_records_and_little_else() -> None:
    records = verify.Records(rows=[{"a": 1, "b": 2}, {"a": 2, "b": 5}])
    assert verify.evaluate('row(rows, a=2)["b"] + max(each["b"] for each in rows)', records) == 10
    assert verify.evaluate('trimmed(each["b"] for each in rows)', records) == 3.5
    with pytest.raises(KeyError):
        verify.evaluate("open", records)
    with pytest.raises(LookupError, match="0 rows"):
        verify.evaluate("row(rows, a=3)", records)
