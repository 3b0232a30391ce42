"""Unreadable runs raise a one-line error; reports on partial runs say so."""

from pathlib import Path

import pytest
from runs import made_up_run

from marginattack.errors import InputError
from marginattack.report import write_figures, write_report


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return made_up_run(tmp_path / "run", 90, shard=30)


def error_message(run: Path) -> str:
    out = run.parent / "report.html"
    with pytest.raises(InputError) as caught:
        write_report([run], out)
    assert not out.exists()
    assert not list(run.parent.glob(".*.tmp"))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


def test_no_run(tmp_path: Path) -> None:
    assert "no manifest.json" in error_message(tmp_path / "none")
    with pytest.raises(InputError, match="no run given"):
        write_report([], tmp_path / "report.html")


def test_truncated_manifest(run: Path) -> None:
    truncate(run / "manifest.json")
    assert "is not a readable run folder" in error_message(run)


@pytest.mark.parametrize("kind", ["margins", "images"])
def test_truncated_shard(run: Path, kind: str) -> None:
    for path in (run / kind).rglob("*.parquet"):
        truncate(path)
    assert "is damaged" in error_message(run)


def test_truncated_traces(run: Path) -> None:
    (run / "traces.parquet").write_bytes(b"PAR1")
    assert "is damaged" in error_message(run)


def test_missing_images(run: Path) -> None:
    for path in (run / "images" / "marginattack-l2").iterdir():
        path.unlink()
    assert "is missing: copy the complete run folder" in error_message(run)


def test_nothing_finished(run: Path) -> None:
    for path in (run / "margins").rglob("*.parquet"):
        path.unlink()
    assert "no finished shard yet" in error_message(run)


def test_partial_run_says_so(tmp_path: Path) -> None:
    run = made_up_run(tmp_path / "run", 90, shard=30, leave_out=1)
    write_report([run], tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    assert "is not finished: 1 of 3 shards of marginattack-l2 are missing; 1 of 3 shards of marginattack-linf" in text
    assert "of 90 planned" in text


def test_bad_unit_and_bad_paths(run: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="unit is 7: choose 1"):
        write_report([run], tmp_path / "report.html", unit=7)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot write"):
        write_report([run], tmp_path / "file" / "report.html")
    with pytest.raises(InputError, match="is not a run folder"):
        write_figures(tmp_path / "none", tmp_path / "figures")


def test_page_starts_with_the_requested_unit(run: Path, tmp_path: Path) -> None:
    write_report([run], tmp_path / "report.html", unit=255)
    text = (tmp_path / "report.html").read_text()
    assert 'value="255" checked' in text
    assert '"unit":255' in text
