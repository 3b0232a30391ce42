"""Commands where the output is closed, the locale is not UTF-8, or names are not; files that lead elsewhere."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from run_folders import ENVIRONMENT, command
from typer.testing import CliRunner

import marginattack as ma
from marginattack.cli import app
from marginattack.errors import InputError
from marginattack.report.tables import to_csv
from marginattack.storage import files
from marginattack.storage.lock import lock_folder

LIST = f"{sys.executable} -m marginattack list attacks"


def shell(script: str) -> tuple[int, str]:
    """The exit code of the first command of a pipe, and everything on stderr."""
    result = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=120, env=ENVIRONMENT)
    return result.returncode, result.stderr


def test_closed_output_ends_a_command_quietly() -> None:
    assert shell(f"{LIST} | true; exit ${{PIPESTATUS[0]}}") == (1, "")
    assert shell(f"{LIST} >&-") == (0, "")


def test_names_that_are_not_utf_8_in_an_ascii_locale(tmp_path: Path) -> None:
    name = tmp_path / os.fsdecode(b"caf\xe9")  # Latin-1
    name.mkdir()
    locale = {**ENVIRONMENT, "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0", "LC_ALL": "POSIX"}
    arguments = command(name, name / "run", "--set", "attack.marginattack.moves=4", n=16)
    result = subprocess.run(arguments, env=locale, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    assert "Stored in " in result.stdout
    assert len(ma.Margins.load(name / "run", norm="l2")) == 16
    page = name / "page.html"
    report = [sys.executable, "-m", "marginattack", "report", str(name / "run"), "--out", str(page)]
    result = subprocess.run(report, env=locale, capture_output=True, text=True, timeout=120)
    assert (result.returncode, result.stderr) == (0, "")
    assert "data:image/png" in page.read_text()


def test_text_that_a_spreadsheet_would_execute_is_escaped() -> None:
    rows: list[list[str | float]] = [
        ["=cmd|' /C calc'!A0", "+1+1", "-2+3", "@SUM(A1)", "\t=1"],
        ["-1", "+0.5", -1, -0.5, "a=b"],
    ]
    written = to_csv(["a", "b", "c", "d", "e"], rows).split("\n")
    assert written[1] == "'=cmd|' /C calc'!A0,'+1+1,'-2+3,'@SUM(A1),'\t=1"
    assert written[2] == "-1,+0.5,-1,-0.5,a=b"


def test_files_are_never_written_through_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "precious").write_text("as it was")
    (tmp_path / "run").mkdir()
    (tmp_path / "run/.lock").symlink_to(tmp_path / "precious")
    with pytest.raises(InputError, match=r"run.*\.lock is a link: remove it"), lock_folder(tmp_path / "run"):
        pass
    monkeypatch.setattr("secrets.token_hex", lambda size: "guessed")
    (tmp_path / ".page.guessed.tmp").symlink_to(tmp_path / "precious")
    with pytest.raises(FileExistsError), files.write_atomically(tmp_path / "page") as file:
        file.write(b"other")
    assert (tmp_path / "precious").read_text() == "as it was"


def test_margins_are_saved_from_four_threads(tmp_path: Path) -> None:
    margins = ma.measure(torch.nn.Identity(), torch.rand(9, 3), [0] * 9, budget=20, diagnose=False)
    errors: list[BaseException] = []

    def save() -> None:
        try:
            for _ in range(5):
                margins.save(tmp_path / "margins.parquet")
                assert ma.Margins.load(tmp_path / "margins.parquet").distance.equal(margins.distance)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=save) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert [path.name for path in tmp_path.iterdir()] == ["margins.parquet"]


def test_a_file_cannot_make_the_command_line_load_a_pickle(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text('model = {source = "evil.pt", trust_pickle = true}\ndata = "samples:mnist"\n')
    result = CliRunner().invoke(
        app, ["measure", "--config", str(tmp_path / "run.toml"), "--out", str(tmp_path / "run")]
    )
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert "add --trust-pickle to the command" in result.stderr
