"""The report: stored runs as one page that needs nothing else, as figures and as tables."""

from collections.abc import Sequence
from pathlib import Path

from marginattack.errors import InputError
from marginattack.storage.files import write_atomically
from marginattack.storage.paths import StoragePath

NEEDED = ("altair", "jinja2", "vl_convert", "PIL")


def write_report(runs: Sequence[str | StoragePath], out: Path, *, unit: float | int = 1) -> None:
    """Write one self-contained HTML file about the runs; ``unit`` is 1, or 255 to begin with pixels up to 255."""
    _installed()
    if unit not in (1, 255):
        raise InputError(f"the unit of a report is {unit}: choose 1 (pixels from 0 to 1) or 255")
    from marginattack.report.page import page

    _write(Path(out), page(list(map(str, runs)), unit).encode())


def write_figures(run: str | StoragePath, folder: Path) -> list[Path]:
    """Write every chart of a run as SVG, PDF and PNG, and its tables as LaTeX and CSV: the files that were written."""
    _installed()
    from marginattack.report.figures import figures

    return [_write(Path(folder) / name, content) for name, content in figures(str(run))]


def _installed() -> None:
    from importlib.util import find_spec

    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise InputError(f"reports need {', '.join(missing)}: pip install 'marginattack[report]'")


def _write(path: Path, content: bytes) -> Path:
    """Write a file atomically."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with write_atomically(path) as file:
            file.write(content)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from None
    return path
