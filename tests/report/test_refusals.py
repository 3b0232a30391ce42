"""Runs that cannot be reported on are refused in one line; those that are partial say so."""

import json
from pathlib import Path

import pytest
from runs import made_up_run

from marginattack.errors import InputError
from marginattack.report import write_figures, write_report


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return made_up_run(tmp_path / "run", 90, shard=30)


def refusal(run: Path) -> str:
    out = run.parent / "report.html"
    with pytest.raises(InputError) as caught:
        write_report([run], out)
    assert not out.exists()
    assert not list(run.parent.glob(".*.tmp"))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


def test_no_run(tmp_path: Path) -> None:
    assert "no manifest.json" in refusal(tmp_path / "none")
    with pytest.raises(InputError, match="no run is given"):
        write_report([], tmp_path / "report.html")


def test_older_format(run: Path) -> None:
    manifest = json.loads((run / "manifest.json").read_text())
    (run / "manifest.json").write_text(json.dumps({**manifest, "format": 0}))
    assert "has run format 0, this version reads" in refusal(run)


def test_truncated_manifest(run: Path) -> None:
    cut(run / "manifest.json")
    assert "is not a readable run folder" in refusal(run)


@pytest.mark.parametrize("kind", ["margins", "images"])
def test_truncated_shard(run: Path, kind: str) -> None:
    for path in (run / kind).rglob("*.parquet"):
        cut(path)
    assert "is damaged" in refusal(run)


def test_truncated_traces(run: Path) -> None:
    (run / "traces.parquet").write_bytes(b"PAR1")
    assert "is damaged" in refusal(run)


def test_missing_images(run: Path) -> None:
    for path in (run / "images" / "marginattack-l2").iterdir():
        path.unlink()
    assert "is missing: copy the run folder whole" in refusal(run)


def test_nothing_finished(run: Path) -> None:
    for path in (run / "margins").rglob("*.parquet"):
        path.unlink()
    assert "no finished shard yet" in refusal(run)


def test_partial_run_says_so(tmp_path: Path) -> None:
    run = made_up_run(tmp_path / "run", 90, shard=30, leave_out=1)
    write_report([run], tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    assert "is not finished: 1 of 3 shards of marginattack-l2 are missing; 1 of 3 shards of marginattack-linf" in text
    assert "of 90 planned" in text


def test_bad_unit_and_bad_places(run: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="unit of a report is 7: choose 1"):
        write_report([run], tmp_path / "report.html", unit=7)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot write"):
        write_report([run], tmp_path / "file" / "report.html")
    with pytest.raises(InputError, match="is not a run folder"):
        write_figures(tmp_path / "none", tmp_path / "figures")


def test_unit_is_the_one_that_the_page_begins_with(run: Path, tmp_path: Path) -> None:
    write_report([run], tmp_path / "report.html", unit=255)
    text = (tmp_path / "report.html").read_text()
    assert 'value="255" checked' in text
    assert '"unit":255' in text
